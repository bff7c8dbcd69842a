"""The least that Redis and Python can do for a message: two loops of short Lua scripts.

`bare`: a claim of a hundred with a lease, their bodies, their acknowledgement. No rules, no order, nothing of RQ's.
`needed`: the commands that a message needs that goes at once, by the rules of the benchmark, for order, lease, registry
of RQ and records, and not one more; nothing is decided or checked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from redis import Redis

from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, notifications, redis_cpu
from notifier import Notifier
from notifier.settings import parse_settings

BATCH: Final = 100
LEASE_US: Final = 10_000_000
CLAIM: Final = """
local time = redis.call('TIME')
local ends = string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[2])
local claimed = redis.call('LPOP', KEYS[1], ARGV[1])
if not claimed then return {} end
local leases = {}
for _, id in ipairs(claimed) do
  leases[#leases + 1] = ends
  leases[#leases + 1] = id
end
redis.call('ZADD', KEYS[2], unpack(leases))
return claimed
"""
BODIES: Final = """
local bodies = {}
for i, id in ipairs(ARGV) do bodies[i] = redis.call('HGET', 'rq:job:' .. id, 'data') end
return bodies
"""
ACKNOWLEDGE: Final = """
local keys = {}
for i, id in ipairs(ARGV) do keys[i] = 'rq:job:' .. id end
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('DEL', unpack(keys))
"""
LEASE: Final = """
local time = redis.call('TIME')
local ends = string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[2])
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {} end
local leases, started, leased = {}, {}, {}
for n, id in ipairs(ids) do
  local key, permit = 'rq:job:' .. id, id
  local job = redis.call('HMGET', key, 'origin', 'status', 'meta', 'data', 'push_targets')
  local user = cjson.decode(job[3]).user
  local sent = 'benchmarks:sent:' .. user
  redis.call('EXISTS', 'benchmarks:lines:' .. user)
  redis.call('GET', 'benchmarks:claim:' .. user)
  if redis.call('ZCARD', sent) > 0 then redis.call('ZREVRANGE', sent, '0', '0', 'WITHSCORES') end
  redis.call('ZCARD', sent .. ':default')
  for _, of in ipairs({sent, sent .. ':default'}) do
    redis.call('ZADD', of, ends, permit)
    redis.call('PEXPIRE', of, '86400000')
  end
  redis.call('SET', 'benchmarks:claim:' .. user, '1 worker', 'PX', '30000')
  redis.call('HSET', key, 'status', 'started', 'push_order', permit, 'push_permit', permit, 'worker_name', 'worker')
  leases[2 * n - 1], leases[2 * n] = ends, id
  started[2 * n - 1], started[2 * n] = '+inf', id .. ':' .. permit
  leased[n] = {id, user, job[4]}
end
redis.call('ZADD', KEYS[2], unpack(leases))
redis.call('ZADD', KEYS[3], unpack(started))
return leased
"""
SETTLE: Final = """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local keys, ids, started, ended = {}, {}, {}, {}
for n = 1, #ARGV / 2 do
  local id, user = ARGV[2 * n - 1], ARGV[2 * n]
  local key, sent = 'rq:job:' .. id, 'benchmarks:sent:' .. user
  redis.call('HMGET', key, 'push_permit', 'origin', 'status')
  redis.call('ZADD', sent, 'XX', now, id)
  redis.call('ZADD', sent .. ':default', 'XX', now, id)
  redis.call('HINCRBY', 'benchmarks:usage:' .. user, 'delivered', '1')
  redis.call('HSET', 'benchmarks:usage:' .. user, 'last', now)
  redis.call('GET', 'benchmarks:claim:' .. user)
  redis.call('DEL', 'benchmarks:claim:' .. user)
  redis.call('HGETALL', 'benchmarks:lines:' .. user)
  keys[n], ids[n], started[n], ended[2 * n - 1], ended[2 * n] = key, id, id .. ':' .. id, now, id
end
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call('ZREM', KEYS[2], unpack(started))
redis.call('ZADD', KEYS[3], unpack(ended))
return redis.call('DEL', unpack(keys))
"""
LEASES: Final = "benchmarks:leases"
STARTED: Final = "benchmarks:started"
DELIVERED: Final = "benchmarks:delivered"


@dataclass(frozen=True, slots=True)
class Floor:
    """What a loop took for all of its messages: seconds, and µs of Redis's CPU for each."""

    seconds: float
    redis_us: float


def bare(redis: Redis, count: int) -> Floor:
    """One process claims, reads and acknowledges so many of the jobs that the engine is given."""
    _fill(redis, count)
    claim, bodies, acknowledge = map(redis.register_script, (CLAIM, BODIES, ACKNOWLEDGE))
    begun, cpu = time.perf_counter(), redis_cpu(redis)
    while ids := claim(keys=[QUEUE, LEASES], args=[BATCH, LEASE_US]):
        bodies(args=ids)
        acknowledge(keys=[LEASES], args=ids)
    return Floor(time.perf_counter() - begun, 1e6 * (redis_cpu(redis) - cpu) / count)


def needed(redis: Redis, count: int) -> Floor:
    """One process asks of Redis what a message needs that goes at once, and nothing else."""
    _fill(redis, count)
    lease, settle = map(redis.register_script, (LEASE, SETTLE))
    begun, cpu = time.perf_counter(), redis_cpu(redis)
    while leased := lease(keys=[QUEUE, LEASES, STARTED], args=[BATCH, LEASE_US]):
        settle(keys=[LEASES, STARTED, DELIVERED], args=[part for job in leased for part in job[:2]])
    return Floor(time.perf_counter() - begun, 1e6 * (redis_cpu(redis) - cpu) / count)


def _fill(redis: Redis, count: int) -> None:
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
