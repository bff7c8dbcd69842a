"""The least that Redis and Python can do for a message: two loops of short Lua scripts.

`bare`: a claim of a hundred with a lease, their bodies, their acknowledgement. No rules, no order, nothing of RQ's.
`needed`: the commands that a message needs that goes at once, by the rules of the benchmark, for order, lease, registry
of RQ and records, and not one more; nothing is decided or checked.
`WAYS`: these scripts by name, for `benchmarks.instructions`: so, and with a packed record of each user in the place of
what is in flight, of its totals and of whether something waits.
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
local jobs, users, backlogs, claims, records = {}, {}, {}, {}, {}
for n, id in ipairs(ids) do
  jobs[n] = redis.call('HMGET', 'rq:job:' .. id, 'origin', 'status', 'meta', 'data', 'push_targets')
  local user = string.match(jobs[n][3], '"user":"([^"]*)"')
  users[n], backlogs[n], claims[n] = user, 'benchmarks:backlogs:' .. user, 'benchmarks:claim:' .. user
end
redis.call('EXISTS', unpack(backlogs)) --not-with-a-record
redis.call('MGET', unpack(claims))
local leases, started, leased = {}, {}, {}
for n, id in ipairs(ids) do
  local user, permit = users[n], id
  local sent = 'benchmarks:sent:' .. user
  if redis.call('ZCARD', sent) > 0 then redis.call('ZREVRANGE', sent, '0', '0', 'WITHSCORES') end
  redis.call('ZCARD', sent .. ':default')
  for _, of in ipairs({sent, sent .. ':default'}) do
    redis.call('ZADD', of, ends, permit)
    redis.call('PEXPIRE', of, '86400000')
  end
  records[2 * n - 1], records[2 * n] = claims[n], '1 ' .. ends .. ' - ' .. ARGV[3]
  redis.call('SET', claims[n], records[2 * n], 'PX', '30000') --not-with-a-record
  redis.call('HSET', 'rq:job:' .. id, 'status', 'started', 'push_order', permit, 'push_permit', permit, 'worker_name',
    ARGV[3])
  leases[2 * n - 1], leases[2 * n] = ends, id
  started[2 * n - 1], started[2 * n] = '+inf', id .. ':' .. permit
  leased[n] = {id, user, jobs[n][4]}
end
redis.call('MSET', unpack(records)) --with-a-record
redis.call('ZADD', KEYS[2], unpack(leases))
redis.call('ZADD', KEYS[3], unpack(started))
return leased
"""
SETTLE: Final = """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local keys, ids, started, ended, backlogs, claims, records = {}, {}, {}, {}, {}, {}, {}
for n = 1, #ARGV / 2 do
  local id, user = ARGV[2 * n - 1], ARGV[2 * n]
  local key, sent = 'rq:job:' .. id, 'benchmarks:sent:' .. user
  redis.call('HMGET', key, 'push_permit', 'origin', 'status')
  redis.call('ZADD', sent, 'XX', now, id)
  redis.call('ZADD', sent .. ':default', 'XX', now, id)
  redis.call('RPUSH', 'benchmarks:history:' .. user, now .. ' delivered default ' .. id)
  redis.call('HINCRBY', 'benchmarks:usage:' .. user, 'delivered', '1') --not-with-a-record
  keys[n], ids[n], started[n], ended[2 * n - 1], ended[2 * n] = key, id, id .. ':' .. id, now, id
  backlogs[n], claims[n] = 'benchmarks:backlogs:' .. user, 'benchmarks:claim:' .. user
  records[2 * n - 1], records[2 * n] = claims[n], '0 ' .. now .. ' 1'
end
redis.call('MGET', unpack(claims))
redis.call('DEL', unpack(claims)) --not-with-a-record
redis.call('EXISTS', unpack(backlogs)) --not-with-a-record
redis.call('MSET', unpack(records)) --with-a-record
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call('ZREM', KEYS[2], unpack(started))
redis.call('ZADD', KEYS[3], unpack(ended))
return redis.call('DEL', unpack(keys))
"""
LEASES: Final = "benchmarks:leases"
STARTED: Final = "benchmarks:started"
DELIVERED: Final = "benchmarks:delivered"
WORKER: Final = "w" * 32


def _without(mark: str) -> tuple[str, str]:
    """The two scripts without the lines that end so."""
    lease, settle = ("\n".join(line for line in of.splitlines() if not line.endswith(mark)) for of in (LEASE, SETTLE))
    return lease, settle


NEEDED: Final = "the needed commands of one that goes at once"
WAYS: Final = {
    NEEDED: _without(" --with-a-record"),
    "the same, with a record of the user": _without(" --not-with-a-record"),
}


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
    begun, cpu = time.perf_counter(), redis_cpu(redis)
    drive(redis, *WAYS[NEEDED], BATCH)
    return Floor(time.perf_counter() - begun, 1e6 * (redis_cpu(redis) - cpu) / count)


def drive(redis: Redis, lease: str, settle: str, batch: int) -> None:
    """Lease and settle by these scripts all that is queued, so many at a time."""
    leases, settles = redis.register_script(lease), redis.register_script(settle)
    while leased := leases(keys=[QUEUE, LEASES, STARTED], args=[batch, LEASE_US, WORKER]):
        settles(keys=[LEASES, STARTED, DELIVERED], args=[part for job in leased for part in job[:2]])


def _fill(redis: Redis, count: int) -> None:
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
