"""Several exchanges at once, each with its partition: what they ask next goes in one pipeline to each node.

What a pipeline does not bring to an end, as a slot moves or a connection is lost, is asked again by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from redis.exceptions import AskError, RedisError, TryAgainError

from notifier.errors import NotifierError, RedisAwayError, RedisUnusableError
from notifier.scripts.keys import under
from notifier.scripts.loader import Call, finished, queue, settled
from notifier.store.cluster import owner_of
from notifier.store.connection import ask, unusable
from notifier.store.exchange import LOST, Exchange, Step, answer, may_repeat
from notifier.store.partitions import Partition

T = TypeVar("T")
Asked = tuple[Partition, Step]
Ended = list[T | NotifierError]


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """Answers of partitions, by their number. away: why the others did not."""

    found: dict[int, T]
    away: dict[int, RedisUnusableError]

    @property
    def all(self) -> Iterable[T]:
        return self.found.values()


def ask_all(partitions: Sequence[Partition], make: Callable[[], Exchange[T]]) -> Told[T]:
    """Ask all of these. Raises RedisUnusableError where none answers, and what else is wrong in one of them."""
    told: Told[T] = Told({}, {})
    for at, each in zip(partitions, together([(at, make()) for at in partitions]), strict=True):
        if isinstance(each, RedisUnusableError):
            told.away[at.number] = each
        elif isinstance(each, NotifierError):
            raise each
        else:
            told.found[at.number] = each
    if not told.found:
        raise next(iter(told.away.values()))
    return told


def together(exchanges: Sequence[tuple[Partition, Exchange[T]]]) -> Ended[T]:
    """Return what each of these comes to, or the error that it raises."""
    return finished(together_by(one_by_one, exchanges))


async def together_by(
    do_all: Callable[..., Awaitable[object]], exchanges: Sequence[tuple[Partition, Exchange[T]]]
) -> Ended[T]:
    """See `together`. do_all: how several nodes are asked: `one_by_one`, or in asyncio by `gather`."""
    ended: dict[int, Any] = {}
    resume: dict[int, Callable[[], Step]] = {n: partial(next, steps) for n, (_, steps) in enumerate(exchanges)}
    while resume:
        asked: dict[int, Asked] = {}
        for n, go_on in resume.items():
            at, _ = exchanges[n]
            try:
                with under(at.prefixes):
                    asked[n] = at, go_on()
            except StopIteration as end:
                ended[n] = end.value
            except NotifierError as error:
                ended[n] = error
            except RedisError as error:
                ended[n] = unusable(error)
        replies: dict[int, Any] = {}
        await do_all(*(_ask(node, some, replies) for node, some in _by_node(asked).items()))
        resume = {n: _resumed(exchanges[n][1], replies[n]) for n in asked}
    return [ended[n] for n in range(len(exchanges))]


async def one_by_one(*calls: Awaitable[T]) -> list[T]:
    """Await these as `asyncio.gather` does, one after the other."""
    return [await call for call in calls]


def whole(partitions: Sequence[Partition], ended: Sequence[T | NotifierError], of_others: str = "") -> list[T]:
    """Return the results of all. Raises the first error; of a Redis, with the partitions that it is about.

    of_others: what to say then, where others have a result.
    """
    errors = [(at.number, each) for at, each in zip(partitions, ended, strict=True) if isinstance(each, NotifierError)]
    if errors:
        _, first = errors[0]
        if type(first) not in {RedisUnusableError, RedisAwayError} or partitions[0].count == 1:
            raise first
        numbers = ", ".join(str(number) for number in sorted(number for number, _ in errors))
        more = of_others if len(errors) < len(ended) else ""
        raise type(first)(f"{first}; asked for partitions {numbers} of {partitions[0].count}{more}") from first
    return [each for each in ended if not isinstance(each, NotifierError)]


def on_all(partitions: Sequence[Partition], do: Callable[[Any], T], of_others: str = "; done in the others") -> list[T]:
    """Run this in each partition, one after the other. Raises as `whole`, when all others are done."""
    found: list[T | NotifierError] = []
    for at in partitions:
        try:
            with under(at.prefixes):
                found.append(ask(partial(do, at.client)))
        except RedisUnusableError as error:
            found.append(error)
    return whole(partitions, found, of_others)


def _resumed(steps: Exchange[Any], reply: Any) -> Callable[[], Step]:
    return partial(steps.throw, reply) if isinstance(reply, RedisError) else partial(steps.send, reply)


def _by_node(asked: Mapping[int, Asked]) -> dict[Any, dict[int, Asked]]:
    """Sort out what can go in a pipeline, by node; the rest under None."""
    found: dict[Any, dict[int, Asked]] = defaultdict(dict)
    for n, each in asked.items():
        found[_owner(each) if may_repeat(each[1]) else None][n] = each
    return found


def _owner(asked: Asked) -> Any:
    owner = owner_of(asked[0].client)
    return owner and owner.known


def _lost(node: Any, asked: Asked, reply: Any) -> Any:
    """The reply, where it tells that nothing is to be had of its node."""
    is_lost = isinstance(reply, LOST) and not isinstance(reply.__cause__, AskError | TryAgainError)
    return reply if node is not None and is_lost and _owner(asked) in {None, node} else None


def _queue(pipe: Any, asked: Sequence[Asked]) -> list[int]:
    """Put all of these into a pipeline; how many commands each has."""
    lengths = []
    for at, step in asked:
        before = len(pipe)
        with under(at.prefixes):
            if isinstance(step, Call):
                queue(pipe, step)
            else:
                step.queue(pipe)  # type: ignore[union-attr]
        lengths.append(len(pipe) - before)
    return lengths


def _read(asked: Sequence[Asked], lengths: Sequence[int], replies: list[Any]) -> list[Any]:
    """The reply to each; None where it is to be asked by itself."""
    found: list[Any] = []
    rest = iter(replies)
    for (_, step), length in zip(asked, lengths, strict=True):
        own = [next(rest) for _ in range(length)]
        if any(isinstance(each, Exception) for each in own):
            found.append(None)
        else:
            found.append(step.decode(own[0]) if isinstance(step, Call) else own)
    return found


async def _ask(node: Any, asked: Mapping[int, Asked], replies: dict[int, Any]) -> None:
    lost: Any = None  # of a node that does not answer, one question more is enough
    for (n, each), reply in zip(asked.items(), await _pipelined(node, [*asked.values()]), strict=True):
        replies[n] = (lost or await _alone(*each)) if reply is None else reply
        lost = lost or _lost(node, each, replies[n])


async def _pipelined(node: Any, asked: Sequence[Asked]) -> list[Any]:
    if node is None or len(asked) == 1:
        return [None] * len(asked)
    try:
        pipe = asked[0][0].client.pipeline(transaction=False)
        lengths = _queue(pipe, asked)
        return _read(asked, lengths, await settled(pipe.execute(raise_on_error=False)))
    except RedisError:
        return [None] * len(asked)


async def _alone(at: Partition, step: Step) -> Any:
    try:
        with under(at.prefixes):
            return await answer(at.client, step)
    except RedisError as error:
        return error
