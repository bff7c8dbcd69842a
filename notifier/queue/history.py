"""The history of a user: the reasons that held each notification back, and how it ended. `history.lua` writes it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

from notifier.notification.job import accepted_us
from notifier.queue.circuits import OVERALL, paused_words
from notifier.rules.marks import rule_words
from notifier.scripts.keys import user_key
from notifier.texts import seconds_text
from notifier.units import moment

MAX_REPLIES: Final = 8  # of one hand-over
MAX_REASON: Final = 40
FIELDS: Final = 9  # of a record
PERIODS: Final = ("0", "1")  # of the lists of a user, see `history.lua`
SHOWN_S: Final = 0.005  # shorter delays are not shown
OWNED: Final = frozenset("uc")  # the first letter of a rule's mark: the user's, or the category's
BEHIND: Final = "the backlog before it"
# The reasons that hold the head of a backlog, and with it the notifications behind it.
_OF_HEADS: Final = frozenset(
    {"queue", "rule", "quiet_hours", "muted", "paused", "device", "route", "digest", "worker", "sending"}
)
_APART: Final = re.compile(r"[\s,;]+")

Why = Literal[
    "queue",
    "backlog",
    "rule",
    "quiet_hours",
    "muted",
    "paused",
    "device",
    "route",
    "digest",
    "send_at",
    "retry",
    "worker",
    "sending",
    "unknown",
]
_WHYS: Final[dict[str, Why]] = {
    "k": "queue",
    "b": "backlog",
    "q": "quiet_hours",
    "m": "muted",
    "d": "device",
    "g": "digest",
    "t": "send_at",
    "r": "retry",
    "f": "sending",
    "s": "sending",
}
WORDS: Final[dict[Why, str]] = {
    "queue": "the queue",
    "backlog": BEHIND,
    "quiet_hours": "quiet hours",
    "muted": "a mute",
    "device": "a limit of its device",
    "digest": "the digest that gathers",
    "send_at": "its own time, send_at",
    "retry": "a retry",
    "sending": "a worker that sent it",
}
_UNFINISHED: Final[tuple[Why, str]] = ("worker", "a worker that did not finish it")


class Reply(NamedTuple):
    """A provider's answer for one device. outcome: as in the log, 'delivered' or 'dead_token'. took_s: seconds."""

    route: str
    status: int | None
    took_s: float
    outcome: str
    reason: str = ""

    def encode(self) -> str:
        """One reply in the text of `Handed.encode`."""
        told = f"{self.route},{'' if self.status is None else self.status},{self.took_s * 1000:.0f}"
        if self.outcome == "delivered":
            return told
        return f"{told},{self.outcome},{_APART.sub('~', self.reason)[:MAX_REASON]}"

    def __str__(self) -> str:
        """For people: 'apns 200 after 45 ms'."""
        said = "" if self.outcome == "delivered" and self.status else self.outcome
        words = [self.route, "" if self.status is None else str(self.status), said, self.reason]
        return f"{' '.join(word for word in words if word)} after {self.took_s * 1000:.0f} ms"


class Handed(NamedTuple):
    """When a notification's providers got it, by a clock of the caller's, and their answers."""

    at: float
    replies: Sequence[Reply]

    def encode(self) -> str:
        """The text for `history.lua`, without tokens and without text of the message."""
        replies = self.replies
        return replies[0].encode() if len(replies) == 1 else ";".join([e.encode() for e in replies[:MAX_REPLIES]])


@dataclass(frozen=True, slots=True)
class Delay:
    """A time for which one reason held a notification back. what: the reason for people, such as 'user 10/1m'."""

    why: Why
    what: str
    since: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Record:
    """How a notification ended, and what held it back until then.

    outcome: as in an event; '' if it has not ended.
    ended_at: when it ended; if it has not, the time of the call.
    accepted_at: None if it is not known, or was not kept.
    delays: what held it back, in order.
    handed_at: each time at which it was handed to the providers.
    replies: the providers' answers, for all devices and times, as far as they are kept.
    rates: the version of the rates by which it was settled.
    reason: why it was dropped.
    superseded_by: the job that took its place.
    """

    job_id: str
    user: str
    category: str
    outcome: str
    ended_at: datetime
    accepted_at: datetime | None = None
    delays: tuple[Delay, ...] = ()
    handed_at: tuple[datetime, ...] = ()
    replies: tuple[Reply, ...] = ()
    worker: str = ""
    rates: str = ""
    reason: str = ""
    superseded_by: str = ""

    @property
    def held_s(self) -> float:
        """For how many seconds it was held back in all, without the time with its providers."""
        return sum(delay.seconds for delay in self.delays if delay.why != "sending")

    def totals(self) -> dict[str, float]:
        """For how many seconds each reason held it back, by its words for people, the first reason first."""
        found: dict[str, float] = {}
        for delay in self.delays:
            if delay.why != "sending" and delay.seconds >= SHOWN_S:
                found[delay.what] = found.get(delay.what, 0.0) + delay.seconds
        return found

    def __str__(self) -> str:
        return self.describe()

    def describe(self, zone: tzinfo | None = UTC) -> str:
        """In one line: 'accepted 12:00:00.0, held 4.2 s by user 10/1m, sent 12:00:04.2, apns 200 after 45 ms'.

        With the date if it ended on another day.
        zone: of the clock; None is that of this computer.
        """

        def rounded(at: datetime) -> datetime:
            return (at + timedelta(milliseconds=50)).astimezone(zone)

        def clock(at: datetime) -> str:
            return f"{rounded(at):{form}}.{rounded(at).microsecond // 100_000}"

        days = {rounded(at).date() for at in (self.accepted_at, self.ended_at) if at is not None}
        form = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M:%S"

        parts = [] if self.accepted_at is None else [f"accepted {clock(self.accepted_at)}"]
        for n, (what, seconds) in enumerate(self.totals().items()):
            parts.append(f"{'' if n else 'held '}{seconds_text(seconds)} by {what}")
        parts += [f"sent {clock(at)}" for at in self.handed_at[-1:]]
        parts += [str(reply) for reply in self.replies]
        if self.outcome and (self.outcome != "delivered" or not self.handed_at):
            why = self.reason or self.superseded_by
            parts.append(f"{self.outcome} {clock(self.ended_at)}" + (f" ({why})" if why else ""))
        return ", ".join(parts)


def history_keys(user: str) -> list[str]:
    return [user_key("history", user, period) for period in PERIODS]


def decode_records(user: str, entries: Iterable[bytes]) -> Iterator[Record]:
    """The records in these entries, without entries that are no records."""
    for entry in entries:
        with suppress(ValueError, OverflowError):
            yield _record(user, entry.decode(errors="replace").split("\n", FIELDS - 1))


def _record(user: str, parts: Sequence[str]) -> Record:
    ended, noted, outcome, category, handed, worker, rates, detail, job_id = parts
    ended_us = int(ended)
    if handed and noted:
        ago, _, answers = handed.partition(" ")
        noted = f"{noted} {ended_us - int(ago) - accepted_us(noted)} f={answers}"
    return Record(
        job_id,
        user,
        category,
        outcome,
        moment(ended_us),
        *_read(noted, ended_us, category),
        worker,
        rates,
        reason=detail if outcome == "dropped" else "",
        superseded_by=detail if outcome == "superseded" else "",
    )


def name_those_before(records: Sequence[Record]) -> list[Record]:
    """The same records of a user; waits behind others of a category name the reasons that held these others back."""
    heads: dict[str, list[Delay]] = {}
    for record in records:
        heads.setdefault(record.category, []).extend(each for each in record.delays if each.why in _OF_HEADS)
    for delays in heads.values():
        delays.sort(key=lambda delay: delay.since)
    return [
        replace(record, delays=tuple(part for delay in record.delays for part in _parts(delay, heads[record.category])))
        for record in records
    ]


def as_due(record: Record) -> Record:
    """The same record of a notification that may go: none is before it any more, and no worker has looked yet."""
    last = (replace(d, why="queue", what=WORDS["queue"]) if d.what == BEHIND else d for d in record.delays[-1:])
    return replace(record, delays=(*record.delays[:-1], *last))


def _parts(delay: Delay, heads: Sequence[Delay]) -> Iterator[Delay]:
    """A wait behind others, split by the reasons that held the first of these."""
    at, ends = delay.since, delay.since + timedelta(seconds=delay.seconds)
    if delay.why == "backlog":
        first = bisect_right(heads, at, key=lambda head: head.since)
        for head in heads[max(0, first - 1) :]:
            since, until = max(head.since, at), min(head.since + timedelta(seconds=head.seconds), ends)
            if head.since >= ends:
                break
            if since < until:
                if at < since:
                    yield Delay("backlog", BEHIND, at, (since - at).total_seconds())
                what = "in flight" if head.why == "sending" else head.what
                yield Delay("backlog", f"those before it ({what})", since, (until - since).total_seconds())
                at = until
    if at < ends:
        yield replace(delay, since=at, seconds=(ends - at).total_seconds())


def so_far(user: str, category: str, job_id: str, noted: bytes, now_us: int) -> Record:
    """The record, as of now, of a notification that has not ended. noted: `push_history` of its hash."""
    told = _read(noted.decode(errors="replace"), now_us, category)
    return Record(job_id, user, category, "", moment(now_us), *told)


def _read(
    noted: str, ends_us: int, category: str
) -> tuple[datetime | None, tuple[Delay, ...], tuple[datetime, ...], tuple[Reply, ...]]:
    """Read `push_history`: accepted_at, delays, handed_at, replies of a `Record`. ends_us: of the last delay."""
    begins = accepted_us(noted) if noted else ends_us
    words = noted.split()[1:]
    starts, marks = [begins + int(at) for at in words[::2]], words[1::2]
    delays = [_delay("queue", WORDS["queue"], begins, [*starts, ends_us][0])]
    for mark, after, (since, until) in zip(marks, [*marks[1:], "f="], pairwise([*starts, ends_us]), strict=False):
        # A worker that sent it noted the answers, or a retry. A worker that died, or gave it back, noted neither.
        unfinished = mark == "f" and not after.startswith(("f=", "r"))
        told = _UNFINISHED if unfinished else describe_why(mark, category)
        delays.append(_delay(*told, since, until))
    answered = [(at, mark[2:]) for mark, at in zip(marks, starts, strict=True) if mark.startswith("f=")]
    return (
        moment(begins) if noted else None,
        tuple(delay for delay in delays if delay.seconds > 0),
        tuple(moment(at) for at, _ in answered),
        tuple(reply for _, text in answered for reply in _replies(text)),
    )


def _delay(why: Why, what: str, since_us: int, until_us: int) -> Delay:
    return Delay(why, what, moment(since_us), (until_us - since_us) / 1e6)


def describe_why(mark: str, category: str) -> tuple[Why, str]:
    """Return the kind of a reason, and its words for people, by its mark in `history.lua`."""
    kind, of = mark[:1], mark[1:]
    if kind in OWNED:
        words = rule_words(of)
        return "rule", words and f"{'user' if kind == 'u' else category} {words}"
    if kind == "h":
        name, _, who = of.partition("=")
        return "paused", f"the pause of {paused_words(unquote(name))} by {unquote(who)}"
    if kind == "p":
        return "route", route_words(of)
    why = _WHYS.get(kind, "unknown")
    return why, WORDS.get(why, "")


def why_dropped(mark: str, category: str) -> str:
    """Why a notification is dropped, by its mark: 'muted', 'quiet hours', or a rule such as 'chat 5/10s'."""
    return "muted" if mark == "m" else describe_why(mark, category)[1] or "its limits"


def route_words(name: str) -> str:
    """Return the words for a held route; see `routes.lua`."""
    route, _, more = name.partition("|")
    if route.startswith(OVERALL):
        return f"{route.removeprefix(OVERALL)} overall"
    if more == "full":
        return f"{route} at its quota"
    return f"{route} slow" if more else f"{route} stopped"


def _replies(text: str) -> Iterator[Reply]:
    for each in text.split(";"):
        route, status, took, *more = [*each.split(","), ""][:6]
        outcome, reason = [*more, "", ""][:2]
        yield Reply(
            route, int(status) if status else None, int(took) / 1000, outcome or "delivered", reason.replace("~", " ")
        )
