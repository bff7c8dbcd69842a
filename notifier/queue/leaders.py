"""Tell other workers who leads the idle ones, and which rules were taken up last. See `idle_leaders.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, script


@dataclass(frozen=True, slots=True)
class LeaderKeys:
    """Name the keys that idle workers of the same lanes share; see `idle_leaders.lua`.

    leader: who leads them. wake: the list on which that one is woken. handover: the one on which the others are.
    """

    lanes: str
    leader: str
    wake: str
    handover: str


def leader_keys(lanes: Sequence[str]) -> LeaderKeys:
    """The keys of those that serve these lanes, in whichever order."""
    name = ",".join(sorted(lanes))
    return LeaderKeys(name, *(redis_key(what, name) for what in ("leader", "wake", "handover")))


def follow(version: str, *, clock: str = "") -> Call[bool]:
    """Note that a worker takes up rules of this version; the reply tells whether they are new to all."""
    return Call(script("follow"), [], [clock, version], bool)


def lead(worker: str, lanes: Sequence[str], *, lapse_ms: int) -> Call[int]:
    """Become the idle leader of these lanes, or stay it: then the reply is 0, else ms until another's lead lapses."""
    return Call(script("lead"), [leader_keys(lanes).leader], [worker, lapse_ms], int)


def hand_over(worker: str, lanes: Sequence[str], name: bytes) -> Call[bool]:
    """Give up the lead, if it is this worker's, and wake one idle worker of these lanes. name: of this call."""
    keys = leader_keys(lanes)
    return Call(script("hand_over"), [keys.leader, keys.handover], [worker, keys.lanes, name], bool)
