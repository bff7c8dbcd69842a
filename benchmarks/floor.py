"""The least that Redis and Python can do for a message: three short Lua scripts, in one loop, with no rules at all.

A claim of a hundred with a lease, their bodies, their acknowledgement: by how much the engine stays below this is what
rules, order and RQ's registries cost.
"""

from __future__ import annotations

import time
from typing import Final

from redis import Redis

from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, notifications
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
LEASES: Final = "benchmarks:leases"


def floor_seconds(redis: Redis, count: int) -> float:
    """Seconds in which one process claims, reads and acknowledges so many of the jobs that the engine is given."""
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
    claim, bodies, acknowledge = map(redis.register_script, (CLAIM, BODIES, ACKNOWLEDGE))
    begun = time.perf_counter()
    while ids := claim(keys=[QUEUE, LEASES], args=[BATCH, LEASE_US]):
        bodies(args=ids)
        acknowledge(keys=[LEASES], args=ids)
    return time.perf_counter() - begun
