"""A sorted set in this process."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

SLACK: Final = 64  # how many entries that no longer hold a heap may have, beside as many as hold


class Ranked:
    """Members by score, as a sorted set in Redis, where only those in front are ever asked for."""

    __slots__ = ("_heap", "_score")

    def __init__(self) -> None:
        self._score: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # holds entries too that were moved or taken out since

    def __len__(self) -> int:
        return len(self._score)

    def __contains__(self, member: str) -> bool:
        return member in self._score

    def score(self, member: str) -> int:
        """The score of a member; raise KeyError where it is none."""
        return self._score[member]

    def put(self, member: str, score: int) -> None:
        """Add a member, or give it another score."""
        if self._score.get(member) == score:
            return
        self._score[member] = score
        heappush(self._heap, (score, member))
        if len(self._heap) > 2 * len(self._score) + SLACK:
            self._heap = [(score, member) for member, score in self._score.items()]
            heapify(self._heap)

    def lower(self, member: str, score: int) -> None:
        """Add a member, or give it a lower score; a higher one changes nothing."""
        if self._score.get(member, score) >= score:
            self.put(member, score)

    def lower_all(self, score: int) -> None:
        """Give a score to all members that have a higher one."""
        for member in list(self._score):
            self.lower(member, score)

    def discard(self, member: str) -> None:
        """Take a member out, if it is there."""
        self._score.pop(member, None)

    def first(self) -> tuple[int, str] | None:
        """The lowest score and its member."""
        heap = self._heap
        while heap:
            if self._score.get(heap[0][1]) == heap[0][0]:
                return heap[0]
            heappop(heap)
        return None

    def pop(self) -> tuple[int, str]:
        """Take out the first; raise KeyError where there is none."""
        entry = self.first()
        if entry is None:
            raise KeyError("it is empty")
        heappop(self._heap)
        del self._score[entry[1]]
        return entry

    def upto(self, score: int, most: int) -> list[str]:
        """At most so many members of a score up to `score`, in order; they stay."""
        found: dict[str, tuple[int, str]] = {}
        while len(found) < most and (entry := self.first()) is not None and entry[0] <= score:
            found[entry[1]] = heappop(self._heap)
        for entry in found.values():
            heappush(self._heap, entry)
        return list(found)
