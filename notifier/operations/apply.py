"""Applying rates: what changes, what would be lost, and publishing them to every worker through Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import Redis

from notifier.settings.rates import SECTIONS, differences
from notifier.shards.map import on_shard
from notifier.store.connection import ask
from notifier.store.published import Follower, Published, followers, publish, withdraw


@dataclass(frozen=True, slots=True)
class Change:
    """From the rates in force to others. lines: what changes, a line for each entry. lost: sections that would go."""

    lines: list[str]
    lost: list[str]


def change_to(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """What would change."""
    lost = [name for name in SECTIONS if before.get(name) and name not in after]
    return Change(list(differences(before, after)), lost)


def publish_to_all(clients: Mapping[str, Redis], rates: Mapping[str, Any], delay_us: int) -> Published:
    """Publish to each shard; they hold `delay_us` from now. Raises RedisUnusableError, which names the shard."""
    published = Published()
    for name, redis in clients.items():
        with on_shard(name):
            published = ask(partial(publish, redis, rates, delay_us))
    return published


def withdraw_from_all(clients: Mapping[str, Redis]) -> bool:
    """Take applied rates back; False where none were applied. Raises as `publish_to_all`."""
    taken_back = False
    for name, redis in clients.items():
        with on_shard(name):
            taken_back |= ask(partial(withdraw, redis))
    return taken_back


def find_followers(clients: Mapping[str, Redis]) -> tuple[dict[str, Published], list[tuple[str, Follower]]]:
    """What was applied on each shard, and which rates each worker follows, with its shard. Raises likewise."""
    applied: dict[str, Published] = {}
    found: list[tuple[str, Follower]] = []
    for name, redis in clients.items():
        with on_shard(name):
            applied[name], workers = ask(partial(followers, redis))
            found += [(name, worker) for worker in workers]
    return applied, found
