"""The least that Redis and Python can do for a message: two loops of short Lua scripts.

`bare`: a claim of a hundred with a lease, their bodies, their acknowledgement. No rules, no order, nothing of RQ's.
`needed`: the commands that a message needs that goes at once, by the rules of the benchmark, for order, lease, registry
of RQ and records, and not one more; nothing is decided or checked. All of a call that concern one key are one command.
`AT_ONCE`, `AFTER_A_WAIT`: these scripts, for `benchmarks.instructions`; the second for what waits first, one of each
user. `WAYS`: which lines to leave out of them; a packed record of each user stands in the place of what is in flight,
and of whether something waits.
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
# Pieces of the scripts. Those of one user stand side by side: n is the n-th message, and of the n-th user.
BEGIN: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local users, backlogs, claims, records, of = {}, {}, {}, {}, 0
"""
USER: Final = """
  if user ~= users[n - 1] then
    of = of + 1
    backlogs[of], claims[of] = 'benchmarks:backlogs:' .. user, 'benchmarks:claim:' .. user
  end
  users[n] = user
"""
READ: Final = f"""
  local job = redis.call('HMGET', 'rq:job:' .. id, 'origin', 'status', 'meta', 'data', 'push_targets')
  local user = string.match(job[3], '"user":"([^"]*)"')
  bodies[n] = job[4]
{USER}"""
ASK: Final = """
    if redis.call('ZCARD', sent) > 0 then redis.call('ZREVRANGE', sent, '0', '0', 'WITHSCORES') end
    redis.call('ZCARD', sent .. ':default')
"""
ARRIVE: Final = f"""{BEGIN}
local ends, bodies = string.format('%.0f', now + ARGV[2]), {{}}
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {{}} end
for n, id in ipairs(ids) do {READ} end
redis.call('EXISTS', unpack(backlogs)) --not-with-a-record
redis.call('MGET', unpack(claims))
"""
SEND: Final = f"""
local leases, started, leased, first = {{}}, {{}}, {{}}, 1
of = 0
for n, id in ipairs(ids) do
  local user, permit = users[n], id
  local sent = 'benchmarks:sent:' .. user
  if n == first then {ASK} end
  redis.call('HSET', 'rq:job:' .. id, 'status', 'started', written, permit, 'push_permit', permit, 'worker_name',
    ARGV[3])
  leases[2 * n - 1], leases[2 * n] = ends, id
  started[2 * n - 1], started[2 * n] = '+inf', id .. ':' .. permit
  leased[n] = {{id, user, bodies[n]}}
  if user ~= users[n + 1] then
    for _, key in ipairs({{sent, sent .. ':default'}}) do
      redis.call('ZADD', key, unpack(leases, 2 * first - 1, 2 * n))
      redis.call('PEXPIRE', key, '86400000')
    end
    of = of + 1
    records[2 * of - 1], records[2 * of] = claims[of], string.format('%d ', n - first + 1) .. ends .. ' - ' .. ARGV[3]
    redis.call('SET', claims[of], records[2 * of], 'PX', '30000') --not-with-a-record
    first = n + 1
  end
end
redis.call('MSET', unpack(records)) --with-a-record
redis.call('ZADD', KEYS[2], unpack(leases))
redis.call('ZADD', KEYS[3], unpack(started))
return leased
"""
LEASE: Final = f"{ARRIVE}local written = 'push_order'{SEND}"
WAIT: Final = f"""{ARRIVE}
local last, due, scheduled = redis.call('INCRBY', 'benchmarks:seq', #ids) - #ids, {{}}, {{}}
for n, id in ipairs(ids) do
  local user, order = users[n], string.format('%d', last + n)
  local sent = 'benchmarks:sent:' .. user
  {ASK}
  redis.call('HSET', backlogs[n], 'default', 'default', '#w:default', 'ug10000000') --not-with-a-record
  redis.call('ZADD', 'benchmarks:backlog:' .. user, order, id)
  redis.call('HSET', 'rq:job:' .. id, 'status', 'scheduled', 'push_order', order, 'push_history', now .. ' 20 ug10')
  records[2 * n - 1], records[2 * n] = claims[n], '0 ' .. ends .. ' 1 default default ug10000000'
  due[2 * n - 1], due[2 * n], scheduled[2 * n - 1], scheduled[2 * n] = ends, user, ends, id
end
redis.call('MSET', unpack(records)) --with-a-record
redis.call('ZADD', KEYS[4], unpack(due))
redis.call('ZADD', KEYS[5], unpack(scheduled))
redis.call('HINCRBY', 'benchmarks:waits', 'ug10000000', #ids)
return ids
"""
LEASE_DUE: Final = f"""{BEGIN}
local ends, bodies = string.format('%.0f', now + ARGV[2]), {{}}
local due = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now), 'LIMIT', '0', ARGV[1])
if not due[1] then return {{}} end
local written, ids, emptied = 'push_history', {{}}, {{}}
for n, name in ipairs(due) do
  redis.call('HGETALL', 'benchmarks:backlogs:' .. name) --not-with-a-record
  emptied[n] = 'benchmarks:backlog:' .. name
  local id = redis.call('ZRANGE', emptied[n], '0', '1')[1]
  ids[n] = id
  {READ}
end
redis.call('MGET', unpack(claims))
redis.call('ZREM', KEYS[4], unpack(due))
redis.call('ZREM', KEYS[5], unpack(ids))
redis.call('HINCRBY', 'benchmarks:waits', 'ug10000000', -#ids)
redis.call('DEL', unpack(emptied))
redis.call('DEL', unpack(backlogs)) --not-with-a-record
{SEND}"""
SETTLE: Final = f"""{BEGIN}
local keys, ids, started, ended, told, first = {{}}, {{}}, {{}}, {{}}, {{}}, 1
now = string.format('%.0f', now)
for n = 1, #ARGV / 2 do
  local id, user, after = ARGV[2 * n - 1], ARGV[2 * n], ARGV[2 * n + 2]
  local key = 'rq:job:' .. id
  redis.call('HMGET', key, 'push_permit', 'origin', 'status', 'push_history')
  keys[n], ids[n], started[n], ended[2 * n - 1], ended[2 * n] = key, id, id .. ':' .. id, now, id
  told[n] = now .. ' delivered default ' .. id
{USER}
  if user ~= after then
    local sent = 'benchmarks:sent:' .. user
    redis.call('ZADD', sent, 'XX', unpack(ended, 2 * first - 1, 2 * n))
    redis.call('ZADD', sent .. ':default', 'XX', unpack(ended, 2 * first - 1, 2 * n))
    redis.call('RPUSH', 'benchmarks:history:' .. user, unpack(told, first, n))
    local more = string.format('%d', n - first + 1)
    records[2 * of - 1], records[2 * of] = claims[of], '0 ' .. now .. ' ' .. more
    first = n + 1
  end
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
WAKE_UPS: Final = "benchmarks:wakeups"
SCHEDULED: Final = "benchmarks:scheduled"
WORKER: Final = "w" * 32


@dataclass(frozen=True, slots=True)
class Scripts:
    """What takes a message from its queue to its end. wait: what puts it into its backlog before, or ''."""

    lease: str
    settle: str
    wait: str = ""

    def without(self, mark: str) -> Scripts:
        """The same without the lines that end so."""
        return Scripts(
            *(
                "\n".join(line for line in of.splitlines() if not line.endswith(mark))
                for of in (self.lease, self.settle, self.wait)
            )
        )


AT_ONCE: Final = Scripts(LEASE, SETTLE)
AFTER_A_WAIT: Final = Scripts(LEASE_DUE, SETTLE, WAIT)
WAYS: Final = {"needed": " --with-a-record", "with a record": " --not-with-a-record"}
NEEDED: Final = AT_ONCE.without(WAYS["needed"])


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
    drive(redis, NEEDED, BATCH)
    return Floor(time.perf_counter() - begun, 1e6 * (redis_cpu(redis) - cpu) / count)


def drive(redis: Redis, scripts: Scripts, batch: int) -> int:
    """Take by these scripts all that is queued to its end, so many at a time; returns how many that were."""
    keys, ended = [QUEUE, LEASES, STARTED, WAKE_UPS, SCHEDULED], 0
    wait, lease, settle = map(redis.register_script, (scripts.wait, scripts.lease, scripts.settle))
    while scripts.wait and wait(keys=keys, args=[batch, 0]):
        pass
    while leased := lease(keys=keys, args=[batch, LEASE_US, WORKER]):
        ended += settle(keys=[LEASES, STARTED, DELIVERED], args=[part for job in leased for part in job[:2]])
    return ended


def _fill(redis: Redis, count: int) -> None:
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
