"""The users with rules of their own, as a set in Redis: so that *pull* knows whose rules are those of everyone."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from notifier.queue.writes import write
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run_async
from notifier.scripts.rule_table import RuleTable

KEPT_S: Final = 86_400  # then whoever pulls next publishes it again; what no worker follows any more goes
AT_ONCE: Final = 1_000  # users in a command


async def publish(redis: Any, rules: RuleTable, worker: str) -> None:
    """Write the set under its name, all at once for those who read it."""
    key, draft = redis_key("own_rules", rules.own_rules), redis_key("own_rules", "draft", worker)
    await redis.delete(draft)
    users = iter(rules.with_own_rules)
    while some := list(islice(users, AT_ONCE)):
        await run_async(redis, write("SADD", draft, *some))
    await redis.expire(draft, KEPT_S)
    await redis.rename(draft, key)
