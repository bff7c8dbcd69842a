"""Exchanges without Redis: accepted notifications, and how they end by the real rules in simulated time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, count
from threading import RLock
from typing import Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar, cast

from notifier.errors import Refused
from notifier.forecast.replay import DROPPED, EXPIRED, NEVER, SUPERSEDED, Before, Replay
from notifier.forecast.trace import Event
from notifier.limiter import Hold
from notifier.notification import Notification
from notifier.notification.counted import counted
from notifier.notification.job import decode_data
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended, Outcome
from notifier.producer.exchanges import State, Status, all_accepted
from notifier.producer.feedback import Gone
from notifier.producer.permits import Asked, UserPermit
from notifier.producer.stream import ANYONE, check_reader
from notifier.producer.users import Edit
from notifier.queue import backlogs
from notifier.queue.circuits import Held
from notifier.queue.history import Delay, Record
from notifier.queue.walk import Kind
from notifier.rules.evaluator import Sends, opens
from notifier.rules.policies import Policies, Rules
from notifier.rules.preferences import Preferences
from notifier.rules.quiet_hours import PACE
from notifier.scripts.records import Job
from notifier.settings import Settings
from notifier.store.exchange import Exchange, Item, Search
from notifier.units import UNITS, moment

Failure = Literal["rejected", "failed"]
_UNSENT: Final = frozenset({"cancelled", "dropped", "expired", "superseded"})  # these free the dedupe key
S = TypeVar("S", bound="MemoryExchanges")
P = ParamSpec("P")
T = TypeVar("T")
G = TypeVar("G", Gone, Ended)
SendsOfUser: TypeAlias = defaultdict[str | None, Sends]  # under None all of them; else those of a category


@dataclass
class Accepted:
    """An accepted notification and its end so far. Times are µs since the simulation began.

    arrives_us: when it enters its backlog. failure, refusal: the failure that `fail_next` asked for, and its reason.
    fixed: it had ended before a replay, which cannot change it. into: the entry that superseded it. reason: why it was
    not delivered. sent: when it is sent, or a code of the replay, such as EXPIRED. turn: the order among entries that
    end at the same µs. count: how many notifications it stands for. forgotten: its user was, so no exchange shows it.
    """

    job_id: str
    notification: Notification
    arrives_us: int
    expires_in_us: int | None
    accepted_us: int
    failure: Failure | None = None
    refusal: str = ""
    reason: str = ""
    cancelled: bool = False
    fixed: bool = False
    into: Accepted | None = None
    sent: int = 0
    ends_us: int = 0
    turn: tuple[int, int] = (0, 0)
    count: int = 1
    forgotten: bool = False

    @property
    def superseded_by(self) -> str:
        """The id of the job that superseded this one, or ''."""
        return "" if self.into is None else self.into.job_id


def at_once(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Exchange[T]]:
    """Turn a method into an exchange that sends no commands: the answer is in memory."""

    def exchange(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Exchange[T]:
        yield from ()
        with self.lock:
            return method(self, *args, **kwargs)

    return exchange


class MemoryExchanges:
    """`Exchanges` in memory, for several threads. `now_us`: µs since the simulation began; only `advance` moves it."""

    waits_for_replicas = False

    def __init__(self, settings: Settings, begins: datetime) -> None:
        self.use(settings)
        self._begins = begins
        self._begins_us = round(begins.timestamp() * 1_000_000)
        self._by_key: dict[str, tuple[int, str]] = {}
        self._chosen: dict[str, Preferences] = {}
        # By group and item: the consumer that has it, and since when; '' and NEVER for an acknowledged item.
        self._given: defaultdict[str, dict[Gone | Ended, tuple[str, int]]] = defaultdict(dict)
        self._replays = 0
        self.accepted: dict[str, Accepted] = {}
        self.failures: list[tuple[Failure, str] | Exception] = []
        self.now_us = 0
        self._sends: defaultdict[str, SendsOfUser] = defaultdict(lambda: defaultdict(Sends))
        self._turn: defaultdict[str, int] = defaultdict(int)  # by user, see `Before`
        self._turns: dict[str, dict[int, int]] = {}  # see `Replay.turns`
        self._permits = count(1)
        self.lock = RLock()  # one exchange at a time, as in Redis

    def use(self, settings: Settings) -> None:
        self._settings = settings
        self._policies = settings.policies()

    def at(self, us: int) -> datetime:
        return moment(self._begins_us + us).astimezone(self._begins.tzinfo)

    def _us(self) -> int:
        return self._begins_us + self.now_us

    @at_once
    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        if self.failures and isinstance(self.failures[0], Exception):
            raise self.failures.pop(0)  # type: ignore[misc]  # an exception
        together = {job.id for job in jobs}
        with ExitStack() as changed:
            change = cache(lambda user: changed.enter_context(self._changed(user)))  # one replay for each user
            answers = [self._accept(job, together, change) for job in jobs]
        return all_accepted(answers)

    def _accept(self, job: Job, together: Container[str], change: Callable[[str], None]) -> str | Refused:
        kept_us, earlier = self._by_key.get(job.dedupe, (0, ""))
        if self.now_us < kept_us and self.state(self.accepted[earlier]) not in _UNSENT:
            return earlier
        if before := self.accepted.get(job.id):
            kept_us = self._settings.keep_failed_us
            if self.state(before) == "delivered":
                kept_us = max(self._settings.keep_delivered_us, UNITS["m"])  # its id stays for at least a minute
            if self.now_us < max(before.accepted_us, before.ends_us) + kept_us:
                return job.id
        meta = json.loads(job.meta)
        user: str = meta["user"]
        change(user)
        if job.max_waiting is not None and job.overflow == "reject":
            self._replay(user)
            # Redis queues all jobs of a call before it can lease the first.
            waiting = sum(
                entry.ends_us > self.now_us or (entry.job_id in together and not (entry.into or entry.fixed))
                for entry in self._of(user)
            )
            if waiting >= job.max_waiting:
                return Refused(user, "user", waiting, job.max_waiting)
        if job.dedupe:
            self._by_key[job.dedupe] = (self.now_us + self._settings.dedupe_for_us, job.id)
        arrives = self.now_us if job.send_at_us is None else max(self.now_us, job.send_at_us - self._begins_us)
        in_meta = {name: meta[name] for name in ("zone", "tags") if name in meta}
        notification = Notification.from_kwargs({**decode_data(job.data)[1], **in_meta})
        entry = Accepted(job.id, notification, arrives, job.expires_in_us, self.now_us)
        if self.failures and not isinstance(self.failures[0], Exception):
            entry.failure, entry.refusal = self.failures.pop(0)  # type: ignore[misc]  # no exception
        if before:
            aside = f"{job.id} {self.now_us}"  # the history keeps the earlier job
            self.accepted = {aside if each is before else key: each for key, each in self.accepted.items()}
        self.accepted[job.id] = entry
        return job.id

    def _of(self, user: str) -> list[Accepted]:
        found = [e for e in self.entries if e.notification.user == user and not e.cancelled]
        return sorted(found, key=lambda entry: entry.arrives_us)

    @contextmanager
    def _changed(self, user: str) -> Iterator[None]:
        """Change something of a user: ended entries stay as they are, a replay computes all others anew."""
        self._fix(user)
        yield
        self._replay(user)

    def _replay(self, user: str) -> None:
        """Compute anew when each waiting notification is sent. A failed one uses no limit: its permit was refunded."""
        policies, now_us = self._policies_of(user), self._us()
        going = [entry for entry in self._of(user) if not entry.fixed or _lives_on(entry)]
        events = [_event(entry) for entry in going]
        failed = {n for n, entry in enumerate(going) if entry.failure}
        sends = self._sends[user]  # Redis forgets sends that no rule needs
        known = {name: deepcopy(each) for name, each in sends.items() if each.until_us > now_us}
        before = Before(0, known, self._turn[user])
        replay = Replay(policies, user, events, begins_us=self._begins_us, explained=True, before=before, failed=failed)
        replay.gives_up, replay.from_us = False, now_us  # a waiting notification was not sent earlier
        replay.run()
        self._replays += 1
        self._turns[user] = replay.turns
        turns = {n: turn for turn, n in enumerate(replay.ended)}
        for n, (entry, sent) in enumerate(zip(going, replay.sent, strict=True)):
            if entry.fixed:
                continue
            expires_in_us = entry.expires_in_us or 0
            entry.sent, entry.count = sent, replay.stands_for.get(n, 1)
            entry.turn = (self._replays, turns[n])
            superseded_us, by = replay.superseded.get(n, (0, None))
            entry.into = None if by is None else going[by]
            entry.reason = {EXPIRED: backlogs.EXPIRED, SUPERSEDED: "", DROPPED: _why_dropped(replay.decided[n])}.get(
                sent, entry.refusal
            )
            entry.ends_us = {
                EXPIRED: entry.arrives_us + expires_in_us,
                SUPERSEDED: superseded_us,
                DROPPED: max(entry.arrives_us, self.now_us),
            }.get(sent, sent)

    def _policies_of(self, user: str) -> Policies:
        return self._policies.under({user: self._chosen.get(user, Preferences())})

    def _fix(self, user: str) -> None:
        """Fix the entries that have ended, and record their sends by the old rules. Failed ones reached nobody."""
        policies = self._policies_of(user)
        for at, turn in self._turns.get(user, {}).items():
            if at <= self._us():
                self._turn[user] = turn
        for entry in sorted(self._of(user), key=in_order):
            if entry.fixed or entry.ends_us > self.now_us:
                continue
            entry.fixed = True
            if entry.sent >= 0 and not entry.failure:
                category = entry.notification.category
                at = self._begins_us + entry.ends_us
                _record(self._sends[user], category, policies.rules(user, category), "", at)

    @at_once
    def cancel(self, job_ids: Sequence[str]) -> list[backlogs.Cancelled]:
        found = [self.accepted.get(job_id) for job_id in job_ids]
        self._cancel([entry for entry in found if entry is not None])
        return ["unknown" if entry is None else "cancelled" if entry.cancelled else "ended" for entry in found]

    @at_once
    def cancel_of(self, user: str, kind: Kind) -> Cancellation:
        """See `Exchanges.cancel_of`. Nothing is ever in flight, so no cancellation is too late."""
        return Cancellation(self._cancel([e for e in self._of(user) if _is_of(e.notification, kind)]))

    def _cancel(self, meant: Sequence[Accepted]) -> int:
        """Cancel the entries that wait, all of them before any replay; return how many."""
        waiting = [entry for entry in meant if not entry.cancelled and entry.ends_us > self.now_us]
        users = {entry.notification.user for entry in waiting}
        for user in users:
            self._fix(user)
        for entry in waiting:
            entry.cancelled, entry.ends_us, entry.into, entry.reason = True, self.now_us, None, ""
        for user in users:
            self._replay(user)
        return len(waiting)

    @at_once
    def prefer(self, user: str, edit: Edit, who: str) -> Preferences:  # noqa: ARG002 - of the protocol
        chosen = edit(self._chosen.get(user, Preferences()), moment(self._us()))  # in UTC, to add spans
        with self._changed(user):
            self._chosen[user] = chosen
        return chosen

    @at_once
    def acquire(self, user: str, category: str) -> UserPermit | Hold:
        chosen = self._chosen.get(user, Preferences())
        with self._changed(user):
            asked = Asked.of(self._policies, user, category, chosen, self._us())
            return take(self._sends[user], asked, str(next(self._permits)))

    @at_once
    def refund(self, permit: UserPermit) -> bool:
        with self._changed(permit.user):
            return sum(self._sends[permit.user][name].remove(permit.id) for name in (None, permit.category)) > 0

    @at_once
    def forget(self, user: str, *, hard: bool) -> Cancellation:
        """See `Exchanges.forget`. Delivered notifications stay in the outbox, for the test to read."""
        cancelled = self._cancel(self._of(user))
        if hard:
            with self._changed(user):
                self._sends.pop(user, None)
        self._chosen.pop(user, None)
        for entry in self.entries:
            entry.forgotten |= entry.notification.user == user
        self._by_key = {key: kept for key, kept in self._by_key.items() if not self.accepted[kept[1]].forgotten}
        return Cancellation(cancelled)

    def preferences(self) -> Search[tuple[str, Preferences]]:
        yield from (Item((user, chosen)) for user, chosen in self._chosen.items() if not chosen.is_empty)

    @property
    def entries(self) -> list[Accepted]:
        return [*self.accepted.values()]

    @property
    def ended(self) -> list[Accepted]:
        return sorted((e for e in self.entries if self.state(e) != "waiting"), key=in_order)

    @property
    def _remembered(self) -> list[Accepted]:
        return [entry for entry in self.ended if not entry.forgotten]

    def rendered(self, entry: Accepted) -> Notification:
        """Return the notification as its devices get it: with the text of its digest, and its count."""
        return counted(entry.notification, self._policies.category(entry.notification.category), entry.count)

    def state(self, entry: Accepted) -> State:
        if entry.cancelled:
            return "cancelled"
        if entry.ends_us > self.now_us:
            return "waiting"
        words: dict[int, State] = {EXPIRED: "expired", SUPERSEDED: "superseded", DROPPED: "dropped"}
        return words.get(entry.sent) or entry.failure or "delivered"

    @at_once
    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """See `Exchanges.history`. One delay, `its limits`, stands for all rules that held a notification back."""
        ended = [e for e in self._remembered if e.notification.user == user]
        oldest = moment(self._us()) - since if since is not None else None
        found = [self._record(entry) for entry in reversed(ended)]
        return [each for each in found if oldest is None or each.ended_at >= oldest]

    def _record(self, entry: Accepted) -> Record:
        state, accepted_at, ended_at = self.state(entry), self.at(entry.accepted_us), self.at(entry.ends_us)
        was_sent = state in {"delivered", "rejected", "failed"}
        held_s = max(0, entry.ends_us - entry.accepted_us) / 1e6
        return Record(
            entry.job_id,
            entry.notification.user,
            entry.notification.category,
            state,
            ended_at,
            accepted_at,
            (Delay("unknown", "its limits", accepted_at, held_s),) if held_s else (),
            (ended_at,) if was_sent else (),
            reason=entry.reason if state == "dropped" else "",
            superseded_by=entry.superseded_by,
        )

    @at_once
    def status(self, job_id: str, user: str | None = None) -> Status | None:  # noqa: ARG002 - of the protocol
        if (entry := self.accepted.get(job_id)) is None or entry.forgotten:
            return None
        state = self.state(entry)
        ends = self.at(entry.ends_us)
        match state:
            case "waiting":
                return Status(job_id, state, expected_at=ends if entry.sent >= 0 else None)
            case "delivered":
                return Status(job_id, state, settled_at=ends, record=self._record(entry))
        record, attempts = self._record(entry), int(state in {"rejected", "failed"})
        by, why = entry.superseded_by or None, entry.reason or None
        return Status(job_id, state, reason=why, attempts=attempts, superseded_by=by, record=record)

    @at_once
    def routes(self) -> list[Held]:
        """See `Exchanges.routes`. No provider is ever away."""
        return []

    def feedback(self, group: str, consumer: str | None, *, lease: timedelta, **_: object) -> Search[Gone]:
        """See `Exchanges.feedback`: the devices of rejected notifications. It never waits."""
        return self._unread(self._gone, group, consumer, lease)

    def _gone(self) -> Iterator[Gone]:
        for entry in self._remembered:
            sent, at = entry.notification, self.at(entry.ends_us).astimezone(UTC)
            for device in sent.devices if self.state(entry) == "rejected" else ():
                yield Gone(device.token, device.platform, sent.app, sent.user, entry.reason, at, entry.job_id)

    def events(self, group: str, consumer: str | None, *, lease: timedelta, **_: object) -> Search[Ended]:
        """See `Exchanges.events`: the notifications that have ended by now. It never waits."""
        return self._unread(self._events, group, consumer, lease)

    def _events(self) -> Iterator[Ended]:
        for entry in self._remembered:
            sent, at = entry.notification, self.at(entry.ends_us).astimezone(UTC)
            outcome = cast("Outcome", self.state(entry))
            ref = sent.data.get("ref")
            job_id, why = entry.job_id, entry.reason
            yield Ended(job_id, job_id, sent.user, sent.category, outcome, at, why, entry.superseded_by, ref)

    def _unread(self, find: Callable[[], Iterable[G]], group: str, name: str | None, lease: timedelta) -> Search[G]:
        """Yield items as `stream.Reader` does: this consumer's own, new ones, and those whose lease is over."""
        check_reader(group, name, lease)
        consumer = name or ANYONE
        given, free_us = self._given[group], self.now_us - lease // timedelta(microseconds=1)
        for each in chain(
            (each for each in find() if consumer != ANYONE and given.get(each, ("", 0))[0] == consumer),
            (each for each in find() if each not in given),
            (each for each in find() if given[each][1] <= free_us),
        ):
            given[each] = consumer, self.now_us
            yield Item(each)
            given[each] = "", NEVER


def take(sends: SendsOfUser, asked: Asked, permit: str) -> UserPermit | Hold:
    """Give a permit or a hold, as the script *acquire* does."""
    rules, now, name = asked.rules, asked.now_us, asked.rules.category.name
    of_user, of_category = sends[None], sends[name]
    for each, policy in ((of_user, rules.user), (of_category, rules.category.policy)):
        if policy.burst is not None and not rules.category.bypass:
            each.take_in(policy.burst, now)
    clock = asked.clock(of_user.latest, of_category.latest)
    at, by = opens(rules, of_user, of_category, now, mute=asked.mute, clock=clock)
    if by is not None and at > now:
        return asked.hold(at, by, now)
    _record(sends, name, rules, permit, now)
    return UserPermit(permit, asked.user, rules.category.cost, now, category=name)


def _record(sends: SendsOfUser, category: str, rules: Rules, permit: str, at_us: int) -> None:
    for name, policy in ((None, rules.user), (category, rules.category.policy)):
        each = sends[name]
        each.add(policy, permit, at_us, at_us, cost=rules.category.cost, longest_us=each.longest_us(at_us))


def in_order(entry: Accepted) -> tuple[int, tuple[int, int]]:
    return entry.ends_us, entry.turn


def _why_dropped(decided: str) -> str:
    """Return the words of `history.why_dropped` for a decision, in the form that `quiet_hours.said` gives it."""
    rule = decided.partition(" until ")[0]
    words = {"muted": "muted", "quiet": "quiet hours", PACE: "quiet hours"}
    return words.get(rule.partition(" ")[2], rule)


def _lives_on(entry: Accepted) -> bool:
    """Whether a waiting entry counts this superseded one. Only a fixed entry's `into` is final."""
    while entry.fixed and entry.into is not None:
        entry = entry.into
    return not entry.fixed and not entry.cancelled


def _is_of(notification: Notification, kind: Kind) -> bool:
    return (
        kind.category in {None, notification.category}
        and kind.collapse_id in {None, notification.collapse_id}
        and (kind.tag is None or kind.tag in notification.tags)
    )


def _event(entry: Accepted) -> Event:
    sent = entry.notification
    high = sent.priority == "high"
    return Event(entry.arrives_us, sent.category, high, entry.expires_in_us, sent.collapse_id, sent.zone)
