"""Several exchanges at once, each with its partition: their next steps go in one pipeline to each node.

A step that fails in a pipeline, because a slot moves or a connection is lost, is sent again alone.
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
    """The answers of partitions, by number. away: why the other partitions did not answer."""

    found: dict[int, T]
    away: dict[int, RedisUnusableError]

    @property
    def all(self) -> Iterable[T]:
        return self.found.values()


def ask_all(partitions: Sequence[Partition], make: Callable[[], Exchange[T]]) -> Told[T]:
    """Ask all of these partitions. Raises RedisUnusableError if none answers, and any other error of one of them."""
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
    """Run these exchanges; return the result of each, or the error that it raises."""
    return finished(together_by(one_by_one, exchanges))


async def together_by(
    do_all: Callable[..., Awaitable[object]], exchanges: Sequence[tuple[Partition, Exchange[T]]]
) -> Ended[T]:
    """See `together`. do_all: awaits the calls to several nodes: `one_by_one`, or asyncio's `gather`."""
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
    """Return all results, or raise the first error. If Redis failed, it names all partitions without a result.

    of_others: what to add if other partitions have one.
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
    """Run this in each partition, one after the other. Raises as `whole`, after all partitions were tried."""
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
    """Group the steps that may share a pipeline by their nodes; the others are under None."""
    found: dict[Any, dict[int, Asked]] = defaultdict(dict)
    for n, each in asked.items():
        found[_owner(each) if may_repeat(each[1]) else None][n] = each
    return found


def _owner(asked: Asked) -> Any:
    owner = owner_of(asked[0].client)
    return owner and owner.known


def _lost(node: Any, asked: Asked, reply: Any) -> Any:
    """The reply, if it tells that its node does not answer; otherwise None."""
    is_lost = isinstance(reply, LOST) and not isinstance(reply.__cause__, AskError | TryAgainError)
    return reply if node is not None and is_lost and _owner(asked) in {None, node} else None


def _queue(pipe: Any, asked: Sequence[Asked]) -> list[int]:
    """Put all of these into a pipeline; return how many commands each has."""
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
    """The reply to each step; None if the step is to be sent again alone."""
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
    lost: Any = None  # after one step that was sent alone got no answer, the node's others are not tried
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
