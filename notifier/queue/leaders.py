"""Tell other workers who leads the idle ones, and which rules were taken up last. See `idle_leaders.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, script


def joined(lanes: Sequence[str]) -> str:
    """Name those that serve these lanes, in whichever order."""
    return ",".join(sorted(lanes))


def leader_key(what: Literal["leader", "wake", "handover"], lanes: Sequence[str]) -> str:
    """A key of the idle workers of these lanes: who leads, the list on which that one wakes, or that of the others."""
    return redis_key(what, joined(lanes))


def follow(version: str, *, changed: bool = False, clock: str = "") -> Call[tuple[int, int]]:
    """Note that a worker takes up rules of this version; changed: it followed others.

    The reply is when rules were taken up last, and when that was as a walk over all wake-ups began last.
    """
    return Call(script("follow"), [], [clock, version, int(changed)], tuple)


def lead(worker: str, lanes: Sequence[str], *, lapse_ms: int) -> Call[int]:
    """Become the idle leader of these lanes, or stay it: then the reply is 0, else ms until another's lead lapses."""
    return Call(script("lead"), [leader_key("leader", lanes)], [worker, lapse_ms], int)


def hand_over(worker: str, lanes: Sequence[str], name: bytes) -> Call[bool]:
    """Give up the lead, if it is this worker's, and wake one idle worker of these lanes. name: of this call."""
    keys = [leader_key("leader", lanes), leader_key("handover", lanes)]
    return Call(script("hand_over"), keys, [worker, joined(lanes), name], bool)
