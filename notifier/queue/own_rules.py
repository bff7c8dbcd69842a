"""The users with rules of their own, and these rules, as a hash in Redis: so *pull* need not be told of them."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Final

from notifier.queue.writes import write
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run_async
from notifier.scripts.rule_table import RuleTable

KEPT_S: Final = 3_600  # from then on *pull* renews it; what no worker follows any more goes
AT_ONCE: Final = 1_000  # fields in a command
WRITTEN_IN_S: Final = 10  # or another worker writes it


async def publish(redis: Any, rules: RuleTable, worker: str) -> None:
    """Write the hash under its name, all at once for those who read it; nothing where another worker does."""
    key, draft = redis_key("own_rules", rules.own_rules), redis_key("own_rules", "draft", worker)
    writer = redis_key("own_rules_writer", rules.own_rules)
    if not await run_async(redis, write("SET", writer, worker, "NX", "EX", WRITTEN_IN_S)):
        return
    await redis.delete(draft)
    fields = rules.own_fields()
    while some := list(islice(fields, AT_ONCE)):
        await run_async(redis, write("HSET", draft, *chain.from_iterable(some)))
    await redis.expire(draft, KEPT_S)
    await redis.rename(draft, key)
