"""The types of keys, read from the catalogue in `keys`. Audits and repairs use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from notifier.scripts.keys import CATALOGUE, in_force, redis_key, rq_key

# The keys of RQ's that scripts or workers of ours use.
OF_RQ: Final[Mapping[str, str]] = {
    "queue": "list", "wip": "zset", "scheduled": "zset", "failed": "zset", "finished": "zset", "canceled": "zset",
    "deferred": "zset", "job": "hash or set", "workers": "set", "queues": "set", "worker": "hash", "results": "stream",
}  # fmt: skip
_TYPE: Final = "(?:string|list|set|zset|hash|stream)"
TOLD: Final = re.compile(
    rf"(?P<rest>(?:<[^>]*>|[^< ])*) (?P<types>{_TYPE}(?:(?:, | or ){_TYPE})*)\b[,;]? ?(?P<meaning>.*)"
)


def name_of(key: bytes) -> str:
    """The name of a key of ours or of RQ's; '' for any other key."""
    text, named = key.decode(errors="replace"), in_force()
    first = next((each for each in (named.rqs, named.ours) if text.startswith(f"{each}:")), text)
    return text[len(first) + 1 :].partition(":")[0]


def is_key(key: bytes, name: str) -> bool:
    return key.startswith(redis_key(name, "").encode())


def types_of(key: bytes) -> frozenset[str] | None:
    """The types that a key may have by the catalogue; None for a key of another program."""
    of_rq = key.startswith(f"{in_force().rqs}:".encode())
    told = TOLD.fullmatch(f" {OF_RQ.get(name_of(key))}" if of_rq else CATALOGUE.get(name_of(key), ""))
    if told is None:
        return None
    if key.startswith(rq_key("worker", "").encode()) and key.endswith(b":executions"):  # RQ 3: jobs that run
        return frozenset(["set"])
    if key.startswith(rq_key("queue", "").encode()) and b":intermediate:first_seen:" in key:  # a time
        return frozenset(["string"])
    return frozenset(re.split(", | or ", told["types"]))
