"""Which partitions a producer asks, and how their answers are combined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from notifier.errors import NotifierError, NotReplicatedError, OverloadedError, Refused
from notifier.store.exchange import Exchange
from notifier.store.partitions import Partition
from notifier.store.pipelining import whole

T = TypeVar("T")
A = TypeVar("A", bound=str)
Asked = list[tuple[Partition, Exchange[T]]]
FOLLOW_S: Final = 1.0  # the pause of a search that follows, after it has found nothing in all partitions


async def ended(call: Awaitable[T]) -> T | NotifierError:
    """Return this call's result, or its error."""
    try:
        return await call
    except NotifierError as error:
        return error


class Split:
    """A list of things, split by partition for the exchanges; their answers come back in the order of the list."""

    def __init__(self, wheres: Iterable[Sequence[Partition]]) -> None:
        """wheres: the partitions in which each thing may be."""
        self._places: dict[int, list[int]] = defaultdict(list)
        self._at: dict[int, Partition] = {}
        self._count = 0
        for self._count, where in enumerate(wheres, 1):
            for at in where:
                self._at[at.number] = at
                self._places[at.number].append(self._count - 1)

    def ask(self, things: Sequence[T], make: Callable[[Sequence[T]], Exchange[list[A]]]) -> Asked[list[A]]:
        return [(at, make([things[n] for n in self._places[number]])) for number, at in self._at.items()]

    def answers(self, ended: Sequence[list[A] | NotifierError], unknown: Any = "") -> list[A]:
        """The answer to each thing. If several partitions were asked for it, the answer that is not `unknown`.

        Raises NotReplicatedError and OverloadedError with the jobs of all partitions, and what `whole` raises.
        """
        found: list[A] = [unknown] * self._count
        refused: list[Refused] = []
        for places, each in zip(self._places.values(), ended, strict=True):
            if isinstance(each, OverloadedError | NotReplicatedError):
                refused += [replace(one, place=places[one.place]) for one in each.refused]
            elif isinstance(each, list):
                for place, answer in zip(places, each, strict=True):
                    found[place] = answer if answer != unknown else found[place]
        others = [[] if isinstance(each, OverloadedError | NotReplicatedError) else each for each in ended]
        whole([*self._at.values()], others)
        refused.sort(key=lambda one: one.place)
        if unreplicated := [each for each in ended if isinstance(each, NotReplicatedError)]:
            job_ids = [job_id for each in unreplicated for job_id in each.job_ids]
            raise NotReplicatedError(job_ids, unreplicated[0].why, refused)
        if refused:
            raise OverloadedError(refused, self._count)
        return found


def first_known(partitions: Sequence[Partition], ended: Sequence[T | NotifierError | None]) -> T | None:
    """Return the first result that is not None. If there is none, raise as `whole`, or return None."""
    known = next((each for each in ended if each is not None and not isinstance(each, NotifierError)), None)
    return known if known is not None else next(iter(whole(partitions, ended)), None)
