"""Writes the two hashes in which scripts find users' rules: @own_rules, and @chosen, the results of preferences.

Their names have the version of the rules. They last for a day after the last *pull* or *settle* that used them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

from notifier.queue.writes import write
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run_async
from notifier.scripts.rule_table import RuleTable
from notifier.units import to_bytes

KEPT_S: Final = 86_400
AT_ONCE: Final = 1_000  # fields in a command
WRITTEN_IN_S: Final = 1.0  # else another worker writes it
LOOKS: Final = 20
MAX_CHOSEN: Final = 100_000  # different preferences; each mute with an end of its own is one more


async def publish(redis: Any, rules: RuleTable, worker: str) -> None:
    """Write the rules of users who have their own. One worker writes for all; readers see all fields or none."""
    key = redis_key("own_rules", rules.own_rules)
    if not rules.own_rules or await redis.exists(key):
        return
    writer = redis_key("own_rules_writer", rules.own_rules)
    if not await run_async(redis, write("SET", writer, worker, "NX", "PX", round(WRITTEN_IN_S * 1_000))):
        for _ in range(LOOKS):
            await asyncio.sleep(WRITTEN_IN_S / LOOKS)
            if await redis.exists(key):
                return
    draft = redis_key("own_rules", "draft", secrets.token_hex(8))  # a worker may write two at once
    fields = rules.own_fields()
    while some := list(islice(fields, AT_ONCE)):
        await run_async(redis, write("HSET", draft, *map(to_bytes, chain.from_iterable(some))))
        await redis.expire(draft, KEPT_S)
    await redis.rename(draft, key)


async def write_down(redis: Any, rules: RuleTable, chosen: Iterable[tuple[str, str]]) -> None:
    """Write the rules that result from users' preferences: (user, preferences as Redis has them)."""
    if fields := dict(rules.chosen_field(*each) for each in chosen):
        key = redis_key("chosen", rules.chosen_version)
        if await redis.hlen(key) >= MAX_CHOSEN:
            await redis.unlink(key)
        await run_async(redis, write("HSET", key, *map(to_bytes, chain.from_iterable(fields.items()))))
        await redis.expire(key, KEPT_S)
