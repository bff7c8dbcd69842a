"""The calls about the leader of idle workers, and about the rules that workers follow. See `idle_leaders.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, script


def joined(lanes: Sequence[str]) -> str:
    """One name for these lanes, whatever their order."""
    return ",".join(sorted(lanes))


def leader_key(what: Literal["leader", "wake", "handover"], lanes: Sequence[str]) -> str:
    """A key of the idle workers of these lanes: the leader's name, or the list that wakes it, or the others."""
    return redis_key(what, joined(lanes))


def follow(version: str, *, changed: bool = False, clock: str = "") -> Call[tuple[int, int]]:
    """Note that a worker follows rules of this version from now on. changed: it followed others before.

    The reply is, in µs, when a worker last began to follow new rules, and the same value at the beginning of the last
    walk over all wake-ups.
    """
    return Call(script("follow"), [], [clock, version, int(changed)], tuple)


def lead(worker: str, lanes: Sequence[str], *, lapse_ms: int) -> Call[int]:
    """Become or remain the idle leader of these lanes: the reply is 0. Else it is ms until the other's lead lapses."""
    return Call(script("lead"), [leader_key("leader", lanes)], [worker, lapse_ms], int)


def take_turn(worker: str, *, lapse_ms: int) -> Call[int]:
    """Take the turn to walk over all wake-ups: the reply is 0. Else it is ms until the other worker's turn lapses."""
    return Call(script("lead"), [redis_key("reload", "turn")], [worker, lapse_ms], int)


def hand_over(worker: str, lanes: Sequence[str], name: bytes) -> Call[bool]:
    """Give up the lead, if this worker has it, and wake one idle worker of these lanes. name: of this call."""
    keys = [leader_key("leader", lanes), leader_key("handover", lanes)]
    return Call(script("hand_over"), keys, [worker, joined(lanes), name], bool)
