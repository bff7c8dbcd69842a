"""Walks through waiting notifications of a kind, of one user or of all, a page at a time, to count or cancel them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from operator import methodcaller
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from notifier.notification.json_values import fields_of
from notifier.queue.backlogs import queue_keys
from notifier.rules.category import DEFAULT_CATEGORY, LANES
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key
from notifier.store.exchange import Commands, Exchange, nothing
from notifier.units import from_bytes

PAGE: Final = 250
OVERLAP: Final = 50  # of two pages of a queue, as RQ's tools may delete jobs from its middle
FIELDS: Final = ("meta", "status", "push_permit", "push_rq_job")
WAITING: Final = frozenset({b"queued", b"scheduled"})
# Fields that a meta must have. RQ's registries also have delayed jobs of the program's own, without a category.
NAMED: Final = frozenset({"user"})
IN_REGISTRY: Final = frozenset({"user", "category"})


@dataclass(frozen=True, slots=True)
class Kind:
    """Which notifications are meant: those that have every value given here; None is any value."""

    category: str | None = None
    collapse_id: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        """The kind in words, for a log."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value)

    def has(self, meta: dict[str, Any]) -> bool:
        tags = meta.get("tags")
        return (
            _fits(self.category, meta.get("category", DEFAULT_CATEGORY))
            and _fits(self.collapse_id, meta.get("collapse_id"))
            and (self.tag is None or (isinstance(tags, list) and self.tag in tags))
        )


class Met(NamedTuple):
    """A notification of the kind."""

    job_id: str
    user: str


Meet = Callable[[list[Met], int], Exchange[None]]


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk through waiting notifications. meet: is called for each page with those of the kind, and the page's size.

    The places come in the order in which a job passes through them, so that a walk misses no job that moves meanwhile.
    It may meet a job twice.
    """

    kind: Kind
    meet: Meet
    page: int = PAGE

    def of_everybody(self) -> Exchange[None]:
        """Walk through the queues and RQ's registries of waiting jobs."""
        yield from self._queues(None)
        yield from self._registries(None)

    def of_user(self, user: str) -> Exchange[None]:
        """Walk through a user's jobs, also in flight; twice through places to which a job may return for a retry."""
        if self.kind.tag is not None:
            yield from self._set(user_key("tagged", user), user)
            return
        if (yield from some_delayed()):
            yield from self._registries(user)
        yield from self._queues(user)
        for _ in range(2):
            yield from self._set(redis_key("later"), user)
            (fields,) = yield _ask("hkeys", user_key("backlogs", user))
            for category in map(from_bytes, fields):
                if not category.startswith("#") and self.kind.category in {None, category}:
                    yield from self._set(user_key("backlog", user, category), user)
            yield from self._set(redis_key("leases"), user)

    def _queues(self, user: str | None) -> Exchange[None]:
        for queue in queue_keys():
            behind, looked_at = 0, self.page
            while looked_at == self.page:
                # From the end, as new jobs and taken jobs do not move the places of jobs not yet read.
                (ids,) = yield _ask("lrange", queue, -behind - self.page, -behind - 1)
                yield from self._look(ids, user)
                looked_at = len(ids)
                behind += self.page - min(OVERLAP, self.page // 2)

    def _registries(self, user: str | None) -> Exchange[None]:
        for lane in LANES:
            yield from self._set(rq_key("scheduled", lane), user, IN_REGISTRY)

    def _set(self, key: str, user: str | None, needed: AbstractSet[str] = NAMED) -> Exchange[None]:
        cursor, ended = 0, False
        while not ended:
            ((cursor, found),) = yield _ask("zscan", key, cursor, None, self.page)
            yield from self._look([job_id for job_id, _ in found], user, needed)
            ended = cursor == 0

    def _look(self, ids: Sequence[bytes], user: str | None, needed: AbstractSet[str] = NAMED) -> Exchange[None]:
        met = []
        jobs = yield from _read(ids)
        for job_id, (meta, status, permit, rq_job) in zip(ids, jobs, strict=True):
            if rq_job is not None or (permit is None and status not in WAITING):
                continue
            fields = fields_of(meta)
            if needed <= fields.keys() and _fits(user, fields["user"]) and self.kind.has(fields):
                met.append(Met(from_bytes(job_id), str(fields["user"])))
        yield from self.meet(met, len(ids))


def find_waiting(user: str) -> Exchange[list[str]]:
    """Return the ids of a user's waiting notifications, also of those in flight."""
    found = dict[str, None]()

    def meet(met: Sequence[Met], _: int) -> Exchange[None]:
        found.update((each.job_id, None) for each in met)
        return nothing()

    yield from Walk(Kind(), meet).of_user(user)
    return [*found]


def count() -> Exchange[int]:
    """Return how many jobs `Walk.of_everybody` reads."""
    queued = yield Commands(lambda pipe: [pipe.llen(queue) for queue in queue_keys()])
    return sum(queued) + sum((yield Commands(_registered)))


def _registered(pipe: Any) -> None:
    for lane in LANES:
        pipe.zcard(rq_key("scheduled", lane))


def some_delayed() -> Exchange[bool]:
    """Whether RQ's registries have jobs that only RQ put there, by enqueue_in.

    Our jobs in them may be very many, and are found elsewhere. The registries are counted before and after our own
    sets, as other programs go on meanwhile.
    """

    def ask(pipe: Any) -> None:
        _registered(pipe)
        pipe.zcard(redis_key("later"))
        pipe.hvals(redis_key("waits"))
        _registered(pipe)

    told = yield Commands(ask)
    before, (later, waits), after = told[: len(LANES)], told[len(LANES) : -len(LANES)], told[-len(LANES) :]
    ours = later + sum(map(int, waits))
    return not sum(before) == ours == sum(after)


def _fits(wanted: str | None, has: object) -> bool:
    # The meta of another program's job may have a list here, which no set could contain.
    return wanted is None or wanted == has


def _ask(command: str, *args: object) -> Commands:
    return Commands(methodcaller(command, *args))


def _read(ids: Sequence[bytes]) -> Exchange[list[Any]]:
    """Read these jobs. A key that is no hash counts as no job."""
    try:
        jobs: list[Any] = yield Commands(lambda pipe: [pipe.hmget(job_key(job_id), FIELDS) for job_id in ids])
    except ResponseError:
        if len(ids) == 1:
            return [[None] * len(FIELDS)]
        half = len(ids) // 2
        return (yield from _read(ids[:half])) + (yield from _read(ids[half:]))
    return jobs
