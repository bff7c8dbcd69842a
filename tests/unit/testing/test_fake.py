"""FakeNotifier: real validation and real rules in simulated time, and a pytest plugin that brings it."""

import asyncio
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from redis import Redis

from notifier import (
    AsyncNotifier,
    Cancellation,
    Device,
    Hold,
    InvalidNotificationError,
    InvalidPreferenceError,
    Notifier,
    OverloadedError,
    Permit,
    RedisUnusableError,
    Status,
)
from notifier.django import sending
from notifier.producer.aio import MAX_CALLS
from notifier.settings import parse_settings
from notifier.testing import FakeNotifier
from notifier.testing.memory import MemoryExchanges
from tests.harness.support import fcm, note

ROOT = Path(__file__).parents[3]


PROVIDERS = "providers: {apns: {client: console}, fcm: {client: console}}\n"


def fake(rules: str, **options: Any) -> FakeNotifier:
    return FakeNotifier(parse_settings(PROVIDERS + rules), **options)


def known(made: FakeNotifier, job_id: str) -> Status:
    """The status of one that was accepted."""
    status = made.status(job_id)
    assert status is not None
    return status


def test_the_rules_hold_in_simulated_time() -> None:
    """Gaps and windows space what is sent, in order; time passes by `advance` alone."""
    made = fake("user: {windows: [3/1m], gap: 1s}")
    for n in range(5):
        made.send(note("anna", f"{n}"))
    made.send(note("bert"))
    assert [len(made.delivered(user)) for user in ("anna", "bert")] == [1, 1]
    made.advance("2s")
    assert [each.title for each in made.delivered("anna")] == ["0", "1", "2"]
    made.advance("57999ms")
    assert [each.title for each in made.waiting("anna")] == ["3", "4"]
    made.advance(timedelta(milliseconds=1))
    assert [each.title for each in made.delivered("anna")] == ["0", "1", "2", "3"]
    since = [(sent.at - made.outbox[0].at).total_seconds() for sent in made.outbox if sent.notification.user == "anna"]
    assert since == [0, 1, 2, 60]


@pytest.mark.parametrize("value", ["x" * 100_000, "X" * 100_000], ids=["of the right letters", "of wrong ones"])
def test_an_error_does_not_quote_all_of_a_long_value(value: str) -> None:
    """It goes into a log, and to whoever sent the request: the first of it is enough to know it by."""
    made = fake("users_may: {tier: [vip]}\ntiers: {vip: {gap: 1s}}")
    calls: list[Callable[[], Any]] = [
        lambda: made.send(note("ann", category=value)),
        lambda: made.send(note("ann", priority=value)),
        lambda: made.send(note("ann", app=value)),
        lambda: made.send(note("ann", "Hello", Device(value, "token"))),
        lambda: made.send(note("ann", zone=value)),
        lambda: made.acquire("ann", value),
        lambda: made.users.mute("ann", categories=[value]),
        lambda: made.users.set("ann", tier=value),
    ]
    for call in calls:
        with pytest.raises((InvalidNotificationError, InvalidPreferenceError)) as refused:
            call()
        assert len(str(refused.value)) < 250


def test_quiet_hours_are_the_users() -> None:
    """What comes by night waits for the morning of its zone."""
    made = fake('user: {quiet_hours: "21:00-08:00"}', now=datetime(2030, 1, 7, 22, tzinfo=UTC))
    status = known(made, made.send(note("anna", zone="Etc/UTC")))
    assert (status.state, status.expected_at) == ("waiting", datetime(2030, 1, 8, 8, tzinfo=UTC))
    made.advance("10h")
    assert len(made.outbox) == 1


def test_send_hours_open_by_the_week() -> None:
    """What comes on a Friday evening goes on Monday; a user's quiet hours hold too; the alarm goes at once."""
    made = fake(
        'user: {send_hours: {mon-fri: "09:00-18:00"}, windows: [2/1h]}\n'
        "categories: {default: {lane: default}, alarm: {lane: urgent, quiet_hours: ignore}}",
        now=datetime(2030, 1, 11, 18, tzinfo=UTC),
    )
    made.users.set("bert", quiet_hours={"mon-tue": "00:00-24:00", "wed": "00:00-10:00"})
    jobs = [made.send(note(user)) for user in ("anna", "anna", "bert")]
    assert [known(made, job_id).expected_at for job_id in jobs] == [
        datetime(2030, 1, 14, 9, tzinfo=UTC),
        datetime(2030, 1, 14, 9, 30, tzinfo=UTC),
        datetime(2030, 1, 16, 10, tzinfo=UTC),
    ]
    made.send(note("anna", category="alarm"))
    assert [sent.notification.category for sent in made.outbox] == ["alarm"]
    with pytest.raises(InvalidPreferenceError, match=r"quiet_hours: 08:00-19:00, .* leave no time"):
        made.users.set("bert", quiet_hours="08:00-19:00")


def test_what_is_wrong_or_too_much_is_refused() -> None:
    """The same errors as of `Notifier`, by the same checks."""
    made = fake("user: {windows: [1/1h], max_waiting: 1}")
    with pytest.raises(InvalidNotificationError, match="category"):
        made.send(note("anna", category="nope"))
    with pytest.raises(InvalidPreferenceError, match="who: must be text, is int"):
        made.users.set("anna", gap="1h", who=7)  # type: ignore[arg-type]
    made.send(note("anna"))
    made.send(note("anna"))
    with pytest.raises(OverloadedError, match="1 wait of user 'anna'"):
        made.send(note("anna"))
    assert made.send_many([note("bert"), note("carl")]) == 2
    made = fake("user: {windows: [1/1h], max_waiting: 1}\ncategories: {default: {lane: bulk, overflow: drop_oldest}}")
    made.send_many([note("anna") for _ in range(5)])
    assert len(made.waiting("anna")) == 4, "no room is made, and nothing refused"


def test_a_time_that_is_past_is_now() -> None:
    """As in Redis: what is to be sent at an earlier time is sent when it was accepted."""
    made = fake("user: {gap: 1m}")
    made.send(note("anna", send_at=made.now - timedelta(hours=1)))
    assert [sent.at for sent in made.outbox] == [made.now]


def test_ctrl_c_ends_the_first_example_without_a_traceback(
    notifier_outbox: FakeNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has started no worker yet sees it wait, and interrupts it."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    main = runpy.run_path(str(ROOT / "examples/send_one.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["send_one.py"])
    monkeypatch.setattr("time.sleep", interrupt)
    assert [main(), main()] == [0, 130], "the second one waits for the gap"
    assert len(notifier_outbox.accepted) == 2


def test_a_user_that_is_no_text_is_refused_where_it_is_asked_for() -> None:
    """An id that is a number has no deliveries: a test that asks for none would pass."""
    for ask in (fake("").delivered, fake("").waiting):
        with pytest.raises(InvalidNotificationError, match="user: must be text, is int"):
            ask(42)  # type: ignore[arg-type]


def test_a_call_computes_once_for_each_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm for one user costs a test no more than the same for many."""
    made = fake("user: {gap: 1s}")
    computed: list[str] = []
    compute = made._memory._replay
    monkeypatch.setattr(made._memory, "_replay", lambda user: (computed.append(user), compute(user)))
    made.send_many([note(user, f"{n}") for n in range(40) for user in ("anna", "bert")])
    assert sorted(computed) == ["anna", "bert"]
    made.advance("5s")
    assert [each.title for each in made.delivered("anna")] == [f"{n}" for n in range(6)]
    assert len(made.waiting("bert")) == 34


def test_what_is_accepted_together_waits_together() -> None:
    """Redis takes a hundred in one step, before a worker can send the first: so many of a user, and no more."""
    made = fake("user: {windows: [5/1m], max_waiting: 4}")
    with pytest.raises(OverloadedError) as caught:
        made.send_many([note("anna", f"{n}") for n in range(10)])
    assert [each.place for each in caught.value.refused] == [4, 5, 6, 7, 8, 9]
    assert len(made.delivered("anna")) == 4
    made.send_many([note("anna") for _ in range(4)])
    assert len(made.waiting("anna")) == 3


def test_each_end_is_told() -> None:
    """Cancelled, expired, superseded and dropped; a job id or a dedupe key that was seen is accepted once."""
    made = fake(
        "user: {gap: 10s}\ncategories: {default: {lane: default}, brief: {lane: bulk, when_blocked: drop},"
        " score: {lane: bulk, when_blocked: collapse}}"
    )
    first = made.send(note("anna", dedupe_key="k"))
    assert made.send(note("anna", dedupe_key="k")) == first
    assert made.send(note("anna"), job_id=first) == first
    waits = made.send(note("anna", dedupe_key="waits"))
    late = made.send(note("anna", expires_in=5))
    dropped = made.send(note("anna", category="brief"))
    old, new = (made.send(note("anna", category="score", collapse_id="c")) for _ in range(2))
    assert made.cancel(waits) == made.cancel(waits) == "cancelled"
    assert made.send(note("anna", dedupe_key="waits", category="brief")) != waits, "it reached nobody"
    assert (made.cancel(first), made.cancel("unknown")) == ("ended", "unknown")
    tagged = made.send(note("anna", tags=["t"], send_at=made.now + timedelta(minutes=1)))
    assert made.cancel(user="anna", tag="t", category="brief") == Cancellation()
    assert made.cancel(user="anna", tag="t") == made.cancel_many([tagged]) == Cancellation(1)
    made.advance("1h")
    states = [known(made, job_id).state for job_id in (first, late, dropped, old, new)]
    assert states == ["delivered", "expired", "dropped", "superseded", "delivered"]
    assert known(made, dropped).reason == "user gap 10s"


def test_a_job_id_is_accepted_again_once_it_is_not_kept() -> None:
    """As Redis does: for `keep_delivered`, at least a minute, or `keep_failed`; never while it waits."""
    made = fake("keep_delivered: 0s\nkeep_failed: 1h\ncategories: {chat: {lane: urgent, gap: 2h}}")

    def send(title: str, job_id: str, **more: Any) -> None:
        assert made.send(note("anna", title, **more), job_id=job_id) == job_id

    made.advance("1d")
    for title, by in (("today", "0s"), ("too soon", "59s"), ("tomorrow", "1s"), ("too soon", "0s")):
        made.advance(by)
        send(title, "daily")
    made.fail_next("failed")
    for title, by in (("fails", "0s"), ("is kept", "59m"), ("goes", "1m")):
        made.advance(by)
        send(title, "fails")
    for title in ("first", "second"):
        send(title, title, category="chat")
    made.advance("119m")
    send("still waits", "second", category="chat")
    made.advance("1m")
    titles = ["today", "tomorrow", "fails", "goes", "first", "second"]
    assert [each.title for each in made.accepted] == titles
    assert [each.title for each in made.delivered("anna")] == [each for each in titles if each != "fails"]
    assert [sent.job_id for sent in made.outbox] == ["daily", "daily", "fails", "first", "second"]


def test_what_had_a_job_id_before_takes_no_room_and_is_told_if_it_is_refused() -> None:
    """`max_waiting` counts what waits alone, and a dedupe key finds the earlier one as long as it holds."""
    made = fake("user: {windows: [1/1h], max_waiting: 1}\nkeep_delivered: 0s\ndedupe_for: 1d")
    made.send(note("anna", "first", dedupe_key="day"), job_id="daily")
    made.advance("2h")
    assert made.send(note("anna", "second"), job_id="daily") == "daily"
    assert made.send(note("anna", "waits")) != "daily"
    made.advance("2m")
    with pytest.raises(OverloadedError):
        made.send(note("anna", "no room"), job_id="daily")
    assert made.send(note("anna", "again", dedupe_key="day")) == "daily"
    made.advance("1d")
    assert made.send(note("anna", "anew", dedupe_key="day")) != "daily"


def test_threads_may_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call is done after the other, as in Redis, so the rules hold; what is looked at meanwhile is whole."""
    made, inside, most = fake("user: {gap: 1m}"), 0, 0
    accept, out = MemoryExchanges._accept, threading.Event()

    def slow(self: MemoryExchanges, *args: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        out.wait(0.001)  # time for another thread
        inside -= 1
        return accept(self, *args)

    monkeypatch.setattr(MemoryExchanges, "_accept", slow)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda n: (made.send(note("anna", f"{n}")), made.outbox, made.waiting("anna")), range(40)):
            assert len(made.delivered("anna")) == 1
    assert most == 1
    assert len(made.accepted) == 40


def test_an_overload_may_be_made_without_what_was_refused() -> None:
    """For `fail_next`."""
    made = fake("user: {}")
    made.fail_next(OverloadedError([], 1))
    with pytest.raises(OverloadedError, match=r"^overloaded$"):
        made.send(note("anna"))


def test_a_coroutine_function_is_no_on_accepted() -> None:
    """Nobody would await it. Nothing is accepted."""

    async def tell(_: object) -> None:
        """Tell nobody."""

    made = fake("user: {}")
    with pytest.raises(TypeError, match="AsyncNotifier awaits one"):
        made.send_many([note("anna")], on_accepted=tell)
    assert made.accepted == []


COLLAPSING = (
    "user: {windows: [1/10m]}\ncategories: {default: {lane: default}, score: {lane: urgent, when_blocked: collapse}}"
)


@pytest.mark.parametrize("later", [{"priority": "high"}, {"category": "score"}], ids=str)
def test_what_has_gone_stays_gone(later: dict[str, Any]) -> None:
    """One of high priority or of an urgent lane at the same moment comes behind it; so does one of its collapse id."""
    made = fake(COLLAPSING)
    made.send(note("anna", "first"))
    made.send(note("anna", "second", **later))
    made.send(note("bert", "first", category="score", collapse_id="c"))
    made.send(note("bert", "second", category="score", collapse_id="c"))
    for user in ("anna", "bert"):
        assert [each.title for each in made.delivered(user)] == ["first"]
        assert [each.title for each in made.waiting(user)] == ["second"]
    made.advance("10m")
    assert [(sent.notification.title, sent.count) for sent in made.outbox] == [("first", 1)] * 2 + [("second", 1)] * 2


def test_a_superseded_one_is_counted_and_does_not_come_back() -> None:
    """It counts in the one that took its place, also if others went meanwhile, and stays away if that is cancelled."""
    made = fake(COLLAPSING)
    jobs = [made.send(note("anna", f"{n}", category="score", collapse_id="c")) for n in range(4)]
    made.advance("1m")
    made.send(note("anna", "other"))
    other = made.send(note("anna", "4", category="score", collapse_id="c"))
    made.advance("9m")
    assert [(sent.notification.title, sent.count) for sent in made.outbox] == [("0", 1), ("4", 4)]
    last = [made.send(note("anna", f"{n}", category="score", collapse_id="c")) for n in (5, 6)]
    made.cancel(last[1])
    made.advance("1h")
    assert [(sent.notification.title, sent.count) for sent in made.outbox][2:] == [("other", 1)]
    states = [known(made, job_id).state for job_id in (*jobs, other, *last)]
    superseded = ["superseded"] * 3
    assert states == ["delivered", *superseded, "delivered", "superseded", "cancelled"]


def test_every_eighth_goes_the_other_way_whatever_is_called_meanwhile() -> None:
    """The lower lanes do not starve: their turn comes as in Redis, though something is accepted between the sends."""
    made = fake("user: {gap: 1m}\ncategories: {default: {lane: default}, news: {lane: bulk}}")
    for category, n in (("default", 12), ("news", 2)):
        for _ in range(n):
            made.send(note("anna", category, category=category))
    for _ in range(12):
        made.advance("1m")
        made.send(note("anna", "more"))
    assert [n for n, each in enumerate(made.delivered("anna")) if each.title == "news"] == [8]


def test_what_is_cancelled_takes_no_count_from_others() -> None:
    """What one that is to come was to supersede goes on to wait, with all that it stands for, if that is cancelled."""
    made = fake(COLLAPSING)
    made.send(note("anna", "0"))
    for n in (1, 2):
        made.send(note("anna", f"{n}", category="score", collapse_id="c"))
    late = made.send(note("anna", "3", category="score", collapse_id="c", send_at=made.now + timedelta(minutes=1)))
    made.cancel(late)
    made.advance("10m")
    assert [(sent.notification.title, sent.count) for sent in made.outbox] == [("0", 1), ("2", 2)]


def test_what_has_expired_is_not_superseded() -> None:
    """Also where it stands behind others: a worker's sweep has ended it before the next of its collapse id comes."""
    made = fake(COLLAPSING)
    made.send(note("anna", "0"))
    made.send(note("anna", "1", category="score"))
    old = made.send(note("anna", "2", category="score", collapse_id="c", expires_in=1))
    at = made.now + timedelta(minutes=1)
    made.send(note("anna", "3", category="score", collapse_id="c", send_at=at))
    made.advance("1h")
    assert known(made, old).state == "expired"
    assert [(sent.notification.title, sent.count) for sent in made.outbox] == [("0", 1), ("1", 1), ("3", 1)]


def test_each_end_is_told_once_and_when_it_was() -> None:
    """A group reads each end once, whatever ends in between; a cancelled one ended when it was cancelled."""
    made = fake(COLLAPSING + "\nevents: {keep: 1d}")
    first, second, third = (made.send(note("anna")) for _ in range(3))
    begun = made.now
    assert [(e.job_id, e.outcome, e.at) for e in made.events("g")] == [(first, "delivered", begun)]
    made.cancel(third)
    assert [(e.job_id, e.outcome, e.at) for e in made.events("g")] == [(third, "cancelled", begun)]
    made.send(note("bert"))
    assert [e.user for e in made.events("g")] == ["bert"]
    later = made.advance("11m")
    assert [(e.job_id, e.at) for e in made.events("g")] == [(second, later - timedelta(minutes=1))]
    assert list(made.events("g")) == []


def test_nothing_is_told_of_a_forgotten_user() -> None:
    """As in Redis, where nothing is left; what was delivered stays in the outbox, for the test to look at."""
    made = fake("user: {gap: 1h}\nevents: {keep: 1d}")
    made.fail_next("rejected")
    jobs = [made.send(note("anna", "T", fcm("anna"))) for _ in range(3)]
    made.send(note("bert"))
    assert made.forget("anna") == Cancellation(1)
    assert (made.history("anna"), list(made.feedback())) == ([], [])
    assert [each.user for each in made.events()] == ["bert"]
    assert [made.status(each) for each in jobs] == [None] * 3
    assert [each.notification.user for each in made.outbox] == ["anna", "bert"]
    last = made.send(note("anna"))
    made.advance("1h")
    assert [each.job_id for each in made.history("anna")] == [last]


def test_a_channel_has_an_id_of_its_own() -> None:
    """Also once another was deleted."""
    made = fake("")
    first, second = made.channels.create(), made.channels.create(stores=True)
    made.channels.delete(first)
    third = made.channels.create()
    assert made.channels.list() == [second, third]
    assert made.channels.read(second).stores


def test_a_clock_that_is_changed_meanwhile_moves_nothing() -> None:
    """A day is 24 hours, and a morning at eight, whichever zone `now` is given in."""
    here = ZoneInfo("Europe/Berlin")
    evening, morning = datetime(2027, 10, 30, 22, tzinfo=here), datetime(2027, 10, 31, 8, tzinfo=here)
    made = fake('zone: Europe/Berlin\nuser: {quiet_hours: "21:00-08:00"}', now=evening)
    made.send(note("anna"))
    made.advance("24h")
    assert made.outbox[0].at == morning.astimezone(UTC)
    assert made.now.astimezone(UTC) == evening.astimezone(UTC) + timedelta(hours=24)
    assert made.now.hour == 21


def test_a_time_that_is_given_as_a_span_does_not_change_with_the_clock() -> None:
    """A mute for eight hours, and a history of so many, over the night in which the clocks go forward, or back."""
    here = ZoneInfo("Europe/Berlin")
    spring = datetime(2027, 3, 27, 22, 30, tzinfo=UTC)
    made = fake("user: {gap: 1s}", now=spring.astimezone(here))
    (mute,) = made.users.mute("42", until=timedelta(hours=8)).mutes
    assert mute.until.astimezone(UTC) == spring + timedelta(hours=8)
    made = fake("user: {gap: 1s}", now=datetime(2027, 10, 31, 0, 30, tzinfo=UTC).astimezone(here))
    made.send(note("42"))
    made.advance("2h")
    assert [len(made.history("42", since=timedelta(minutes=n))) for n in (90, 121)] == [0, 1]


def test_what_a_mute_drops_ends_when_it_does() -> None:
    """Not before: its end comes behind those that were told before the mute."""
    made = fake("user: {gap: 1h}\nevents: {keep: 1d}")
    _, waits = (made.send(note("anna")) for _ in range(2))
    made.advance("100ms")
    made.send(note("bert"))
    muted = made.advance("100ms")
    made.users.mute("anna", what="drop")
    ended = list(made.events())
    assert [(each.user, each.outcome) for each in ended[-2:]] == [("bert", "delivered"), ("anna", "dropped")]
    record = made.history("anna")[0]
    assert (record.job_id, record.ended_at, ended[-1].at) == (waits, muted, muted)
    assert sum(each.seconds for each in record.delays) == 0.2


def test_what_is_cancelled_is_nothing_else() -> None:
    """Neither superseded by one that would have come, nor expired."""
    made = fake(COLLAPSING + "\nevents: {keep: 1d}")
    made.send(note("anna", category="score"))
    old = made.send(note("anna", category="score", collapse_id="c"))
    made.send(note("anna", category="score", collapse_id="c", send_at=made.now + timedelta(minutes=1)))
    late = made.send(note("anna", expires_in=5))
    assert [made.cancel(each) for each in (old, late)] == ["cancelled", "cancelled"]
    for status in (known(made, old), known(made, late)):
        assert (status.superseded_by, status.reason) == (None, None)
    assert {(each.reason, each.superseded_by) for each in made.events() if each.outcome == "cancelled"} == {("", "")}


def test_an_end_over_which_the_loop_broke_is_told_again() -> None:
    """As by Redis: to the same consumer at once, to any other once the lease has passed; what is new comes before."""
    made = fake("user: {gap: 1h}\nevents: {keep: 1d}")

    def broken(consumer: str | None) -> str:
        for ended in made.events("g", consumer, lease=timedelta(minutes=1)):
            return ended.user
        return ""

    for user in ("anna", "bert", "carl"):
        made.send(note(user))
    assert [broken("mine"), broken("mine"), broken("others"), broken(None)] == ["anna", "anna", "bert", "carl"]
    assert [broken(None), broken("mine")] == ["", "anna"]
    made.advance("1m")
    made.send(note("dora"))
    assert [ended.user for ended in made.events("g", "others")] == ["bert", "dora", "anna", "carl"]
    assert list(made.events("g", "mine", lease=timedelta())) == []
    assert [ended.user for ended in made.events("another")] == ["anna", "bert", "carl", "dora"]


def test_a_dead_token_over_which_the_loop_broke_is_told_again() -> None:
    """Each device by itself, once its lease has passed; those that were done with are not."""
    made = fake("user: {gap: 1h}")
    made.fail_next("rejected")
    made.send(note("anna", "T", fcm("anna"), fcm("bert")))
    (first, _), told = (list(made.feedback("all")), made.feedback())
    assert next(told) == first
    second = next(told)
    assert list(made.feedback()) == []
    made.advance("1m")
    assert list(made.feedback()) == [second]


def test_looser_rules_let_nothing_go_in_the_past() -> None:
    """What waited goes from the moment of the choice on, by the rules that hold then."""
    made = fake("user: {gap: 10s}")
    made.users.set("anna", gap="1h")
    for n in range(3):
        made.send(note("anna", f"{n}"))
    made.advance("30m")
    made.users.clear("anna")
    made.advance("1m")
    since = [(sent.at - made.outbox[0].at).total_seconds() for sent in made.outbox]
    assert since == [0, 1800, 1810]


def test_what_is_acquired_and_what_is_sent_stand_on_one_record() -> None:
    """Both count for both, as in Redis: what is acquired, given back or forgotten."""
    made = fake("user: {gap: 10s}\ncategories: {default: {lane: default}, chat: {lane: default, gap: 1m}}")
    made.send(note("anna"))
    made.advance("4s")
    assert made.acquire("anna") == Hold(6_000_000, "user gap 10s")
    made.advance("6s")
    assert isinstance(made.acquire("anna", "chat"), Permit)
    jobs = [made.send(note("anna", category=each)) for each in ("default", "chat")]
    expected = [known(made, each).expected_at for each in jobs]
    assert expected == [made.now + timedelta(seconds=10), made.now + timedelta(minutes=1)]
    made.advance("10s")
    assert made.acquire("anna") == Hold(10_000_000, "user gap 10s")
    permit = made.acquire("bert")
    assert isinstance(permit, Permit)
    made.send(note("bert"))
    assert (made.delivered("bert"), made.refund(permit), len(made.delivered("bert"))) == ([], True, 1)
    assert made.refund(permit) is False
    made.forget("bert")
    assert isinstance(made.acquire("bert"), Hold)
    made.forget("bert", hard=True)
    assert isinstance(made.acquire("bert"), Permit)


def test_acquire_knows_what_users_chose() -> None:
    """Of simulated time: a gap, a mute and a day of one's own end by `advance`."""
    made = fake("user: {}")
    made.users.set("anna", gap="1h", windows=["2/calendar-day"], quiet_hours="20:00-22:00")
    assert isinstance(made.acquire("anna"), Permit)
    assert made.acquire("anna") == Hold(3_600_000_000, "user gap 1h")
    made.users.mute("anna", until=made.now + timedelta(hours=2))
    assert made.acquire("anna") == Hold(7_200_000_000, "user muted")
    made.advance("2h")
    assert isinstance(made.acquire("anna"), Permit)
    made.advance("1h")
    assert made.acquire("anna") == Hold(9 * 3_600_000_000, "user 2/calendar-day until 00:00 Etc/UTC")
    made.advance("29h")
    assert made.acquire("anna") == Hold(2 * 3_600_000_000, "user quiet until 22:00 Etc/UTC")


def test_a_mute_ends_by_the_simulated_time() -> None:
    """Of a test that begins in the past, or in the future; one that is over by then is refused."""
    for now in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)):
        made = fake("", now=now)
        assert made.users.mute("42", until=now + timedelta(hours=1)).mutes[0].until == now + timedelta(hours=1)
        with pytest.raises(InvalidPreferenceError, match="is over"):
            made.users.mute("42", until=now)


def test_a_mute_holds_what_stands_first_as_a_worker_does() -> None:
    """So a category that drops what may not go drops it, and a digest gathers from when it was held."""
    digest = "{within: 2s, after: 9, title: '{count} new'}"
    made = fake(
        "categories:\n  default: {lane: default}\n  typing: {lane: urgent, when_blocked: drop}\n"
        f"  comments: {{lane: bulk, when_blocked: digest, digest: {digest}}}"
    )
    made.users.mute("anna", until=made.now + timedelta(seconds=1))
    begun, typing = made.now, known(made, made.send(note("anna", category="typing")))
    assert (typing.state, typing.reason) == ("dropped", "muted")
    for _ in range(2):
        made.send(note("anna", category="comments"))
    made.advance("5s")
    assert [(each.notification.title, each.at - begun) for each in made.outbox] == [("2 new", timedelta(seconds=2))]


def test_users_choose_for_themselves() -> None:
    """What has gone stays; what waits follows the new choice; what is muted waits for its end, or is dropped."""
    made = fake("user: {windows: [9/1h]}")
    made.send(note("anna"))
    made.users.set("anna", gap="1h")
    made.send(note("anna"))
    assert [len(made.delivered("anna")), len(made.waiting("anna"))] == [1, 1]
    made.users.clear("anna")
    assert len(made.delivered("anna")) == 2
    made.users.mute("anna", until=made.now + timedelta(hours=1))
    held, short = made.send(note("anna")), made.send(note("anna", expires_in=60))
    made.users.mute("bert", what="drop")
    dropped = made.send(note("bert"))
    made.advance("2m")
    assert [known(made, job_id).state for job_id in (held, short, dropped)] == ["waiting", "expired", "dropped"]
    made.advance("58m")
    assert len(made.delivered("anna")) == 3
    assert [entry["user"] for entry in made.users.export()] == ["anna", "bert"]


def test_any_event_loop_may_use_an_asyncio_one() -> None:
    """It has no connections: a test's own loop, and the one in which a web framework's client runs the program."""
    aio = FakeNotifier().aio

    async def story() -> None:
        await aio.send(note("anna"))
        await asyncio.to_thread(asyncio.run, aio.send(note("anna")))
        await asyncio.gather(*(aio.send(note("anna")) for _ in range(MAX_CALLS + 1)))

    asyncio.run(aio.aclose())  # as a web framework's client does at the end of a test
    for _ in range(2):
        asyncio.run(story())


async def test_the_same_for_asyncio() -> None:
    """`aio` is an AsyncNotifier over the same outbox and the same time; every method is awaited."""
    made = fake("user: {windows: [1/1m]}")
    aio = made.aio
    async with aio:
        assert isinstance(aio, AsyncNotifier)
        first = await aio.send(note("anna", "1"), timeout=2)
        assert await aio.send_many([note("anna", "2"), note("anna", "3", tags=["thread-9"])]) == 2
        assert await aio.cancel(user="anna", tag="thread-9") == Cancellation(1)
        assert [(await aio.status(first)).state for _ in range(2)] == ["delivered"] * 2  # type: ignore[union-attr]
        await aio.users.mute("anna", categories=["default"])
        assert [entry["user"] async for entry in aio.users.export()] == ["anna"]
        assert isinstance(await aio.acquire("bert"), Permit)
        permit = await aio.acquire("carl", timeout=1)
        assert isinstance(permit, Permit)
        assert await aio.refund(permit)
        made.fail_next(RedisUnusableError("Redis does not answer"))
        with pytest.raises(RedisUnusableError):
            await aio.send(note("dora"))
        with pytest.raises(InvalidNotificationError, match="category"):
            await aio.send(note("dora", category="nope"))
    assert [each.notification.title for each in made.outbox] == ["1"]
    assert [each.title for each in made.waiting("anna")] == ["2"]


def test_what_fails_is_told_and_takes_no_place() -> None:
    """An exception is raised once; what is rejected comes back as feedback, and spends nothing of the rules."""
    made = fake("user: {gap: 10s}")
    made.fail_next(RedisUnusableError("away"))
    with pytest.raises(RedisUnusableError, match="away"):
        made.send(note("anna"))
    made.fail_next("rejected", "BadToken")
    dead = made.send(note("anna", "T", fcm("anna")))
    made.send(note("anna"))
    assert (known(made, dead).state, known(made, dead).reason) == ("rejected", "BadToken")
    assert len(made.outbox) == 1
    assert [(gone.user, gone.reason, gone.job_id) for gone in made.feedback()] == [("anna", "BadToken", dead)]
    assert list(made.feedback()) == []


def test_what_is_cancelled_together_lets_none_of_it_go() -> None:
    """All that a user has is cancelled before another could go in its place, also where the user's choices go too."""
    made = fake("user: {windows: [9/1h]}")
    made.users.set("anna", gap="1h")
    first, *rest = (made.send(note("anna", f"{n}")) for n in range(4))
    assert made.cancel_many([first, *rest, rest[0]]) == Cancellation(3, too_late=(first,))
    for n in range(4, 7):
        made.send(note("anna", f"{n}"))
    assert made.forget("anna") == Cancellation(3)
    assert [each.title for each in made.delivered("anna")] == ["0"]
    assert made.users.get("anna").is_empty


def test_what_goes_at_the_same_moment_has_its_order() -> None:
    """An urgent lane goes first, then a high priority: in the outbox, in the events and in the history."""
    made = fake(
        "user: {quiet_hours: '12:00-12:10'}\ncategories: {default: {lane: default}, otp: {lane: urgent}}\n"
        "events: {keep: 1d}"
    )
    made.send(note("anna", "first"))
    made.send(note("anna", "otp", category="otp"))
    made.send(note("anna", "high", priority="high"))
    made.advance("1h")
    assert [each.title for each in made.delivered("anna")] == ["otp", "high", "first"]
    in_order = [sent.job_id for sent in made.outbox]
    assert [each.job_id for each in made.events()] == in_order
    assert [each.job_id for each in made.history("anna")] == in_order[::-1]


QUIET = "user: {quiet_hours: '12:00-12:10', gap: 2h}\n"
DROPS = "categories: {default: {lane: default, when_blocked: drop}}\n"
DAILY = "user: {windows: [1/calendar-day]}\n"


@pytest.mark.parametrize(
    ("rules", "why"),
    [(QUIET, "quiet hours"), (DAILY, "user 1/calendar-day"), ("user: {gap: 2h}\n", "user gap 2h")],
)
def test_what_drops_one_is_named_as_a_worker_names_it(rules: str, why: str) -> None:
    """By the rule, without until when; a failure that waited for it is not its reason."""
    made = fake(rules + DROPS)
    made.send(note("anna"))
    made.fail_next("rejected")
    dropped = known(made, made.send(note("anna")))
    assert dropped.record is not None
    assert (dropped.state, dropped.reason, dropped.record.reason) == ("dropped", why, why)
    assert list(made.feedback()) == []


def test_a_mute_that_drops_is_the_reason_however_long_a_rule_holds() -> None:
    """As a worker says it."""
    made = fake("user: {gap: 2h}")
    made.send(note("anna"))
    made.users.mute("anna", until=made.now + timedelta(hours=1), what="drop")
    dropped = known(made, made.send(note("anna")))
    assert (dropped.state, dropped.reason) == ("dropped", "muted")


def test_who_took_its_place_and_that_it_expired_is_told() -> None:
    """In the status, the history and the events; what a provider would have said is not."""
    made = fake(COLLAPSING + "\nevents: {keep: 1d}")
    made.send(note("anna"))
    for _ in range(2):
        made.fail_next("rejected")
    old, late = (made.send(note("anna", category="score", collapse_id=name, expires_in=60)) for name in "ab")
    new = made.send(note("anna", category="score", collapse_id="a"))
    made.advance("1h")
    told = [(each.state, each.reason, each.superseded_by) for each in (known(made, old), known(made, late))]
    assert told == [("superseded", None, new), ("expired", "expired while it waited", None)]
    assert {each.job_id: (each.reason, each.superseded_by) for each in made.events()}[old] == ("", new)
    assert {each.job_id: each.superseded_by for each in made.history("anna")}[old] == new


def test_a_new_choice_counts_what_the_rules_before_it_kept() -> None:
    """As far back as the longest interval of these: what is older is forgotten."""
    made = fake("user: {windows: [10/1m], gap: 1s}")
    made.send(note("anna"))
    made.advance("70s")
    made.users.set("anna", gap="10m")
    made.send(note("anna"))
    made.send(note("anna"))
    assert [len(made.delivered("anna")), len(made.waiting("anna"))] == [2, 1]


@pytest.mark.parametrize("now", ["2030-01-01", datetime(2030, 1, 1)])  # noqa: DTZ001 - it is the point
def test_time_begins_at_a_moment(now: Any) -> None:
    """In a time zone: else it could be compared with no time that is asked for."""
    with pytest.raises(TypeError, match="now must be a datetime with a time zone"):
        fake("user: {}", now=now)


def test_a_failure_of_another_name_is_refused() -> None:
    """A typo would let a test pass that tests nothing."""
    with pytest.raises(ValueError, match="how must be 'rejected' or 'failed' or an exception, is 'reject'"):
        fake("user: {}").fail_next("reject")  # type: ignore[arg-type]


def test_the_fixtures(
    notifier_outbox: FakeNotifier, notifier_redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`Notifier.from_config` gives the fake, with the configuration that it is given; the Redis is empty."""
    assert Notifier.from_config() is notifier_outbox
    assert AsyncNotifier.from_config() is notifier_outbox.aio
    config = tmp_path / "notifier.yaml"
    config.write_text("user: {}\ncategories: {mine: {lane: bulk}}\nproviders: {apns: {client: console}}\n")
    Notifier.from_config(config).send(note("anna", category="mine"))
    assert AsyncNotifier.from_config(config) is notifier_outbox.aio
    assert len(notifier_outbox.outbox) == 1
    assert notifier_redis.dbsize() == 0
    monkeypatch.undo()
    assert Notifier.from_config is not None


@pytest.mark.parametrize("kind", [Notifier, AsyncNotifier])
def test_a_configuration_may_be_named_in_each_way(notifier_outbox: FakeNotifier, tmp_path: Path, kind: Any) -> None:
    """As `from_config` takes it: by place, by name, or in the environment that it is given."""
    ways: list[Callable[[str], tuple[list[Any], dict[str, Any]]]] = [
        lambda file: ([file, os.environ], {}),
        lambda file: ([], {"path": file, "follow": False}),
        lambda file: ([], {"environ": {"NOTIFIER_CONFIG": file}}),
    ]
    for n, way in enumerate(ways):
        (config := tmp_path / f"{n}.yaml").write_text(f"{PROVIDERS}categories: {{mine-{n}: {{lane: bulk}}}}\n")
        args, options = way(str(config))
        assert f"mine-{n}" in kind.from_config(*args, **options).policies.categories
    with pytest.raises(TypeError):
        kind.from_config(config=config)
    assert not notifier_outbox.accepted


def test_a_named_configuration_keeps_what_the_test_prepared(notifier_outbox: FakeNotifier, tmp_path: Path) -> None:
    """Failures, choices of users and the time stay; the rules come, also for the AsyncNotifier that was made before."""
    config = tmp_path / "notifier.yaml"
    config.write_text(PROVIDERS + "categories: {mine: {lane: bulk}}\n", encoding="utf-8")
    aio, later = notifier_outbox.aio, notifier_outbox.advance("1h")
    notifier_outbox.users.mute("anna", what="drop")
    notifier_outbox.fail_next(RedisUnusableError("away"))
    made = Notifier.from_config(config)
    with pytest.raises(RedisUnusableError, match="away"):
        made.send(note("bert", category="mine"))
    made.send(note("anna", category="mine"))
    assert AsyncNotifier.from_config(config) is aio
    asyncio.run(aio.send(note("carl", category="mine")))
    assert [(sent.notification.user, sent.at) for sent in notifier_outbox.outbox] == [("carl", later)]


def test_the_example_of_the_page_runs(notifier_outbox: FakeNotifier) -> None:
    """docs/how-to/testing.md shows examples/test_push.py as it is, and its tests pass. `make lint` checks its types."""
    example = ROOT / "examples" / "test_push.py"
    page = (ROOT / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")
    assert f"```python\n{example.read_text(encoding='utf-8')}```" in page
    tests = {name: test for name, test in runpy.run_path(str(example)).items() if name.startswith("test_")}
    assert len(tests) == 5
    for test in tests.values():
        test(*([notifier_outbox] if test.__annotations__.get("notifier_outbox") else []))


@pytest.mark.parametrize("test", ["one test", "and another"])
def test_the_django_app_sends_to_the_fake(
    notifier_outbox: FakeNotifier, monkeypatch: pytest.MonkeyPatch, test: str
) -> None:
    """`notifier.django.get_notifier`, which keeps its Notifier, gives each test its own fake."""
    monkeypatch.setattr(sending, "config_path", lambda: None)
    sending.get_notifier().send(note("anna", test))
    assert [each.notification.title for each in notifier_outbox.outbox] == [test]


@pytest.mark.usefixtures("notifier_outbox")
@pytest.mark.parametrize(("what", "kind"), [(None, "NoneType"), ("x", "str")])
def test_the_django_app_refuses_at_once_what_is_no_notification(
    monkeypatch: pytest.MonkeyPatch, what: Any, kind: str
) -> None:
    """Before the transaction ends, by the error that a wrong field raises."""
    monkeypatch.setattr(sending, "config_path", lambda: None)
    with pytest.raises(InvalidNotificationError, match=f"^notification: must be a Notification, is {kind}$"):
        sending.send_on_commit(what)


def test_the_django_app_sends_what_was_given_and_checked(
    notifier_outbox: FakeNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller does with its mapping until the commit changes nothing; nor does it make the hook raise."""
    hooks: list[Callable[[], object]] = []
    monkeypatch.setattr(sending, "config_path", lambda: None)
    monkeypatch.setattr(sending.transaction, "on_commit", lambda hook, **_: hooks.append(hook))
    data: dict[str, Any] = {}
    for data["order"] in range(3):
        sending.send_on_commit(note(f"user-{data['order']}", data=data))
    data["order"] = object()
    assert not notifier_outbox.accepted
    for hook in hooks:
        hook()
    assert [each.data["order"] for each in notifier_outbox.accepted] == [0, 1, 2]


def test_what_stands_for_several_says_so() -> None:
    """`{count}` is filled in, and a digest has its own text, as the devices get it."""
    rules = """
categories:
  group: {lane: default, windows: [1/10s], when_blocked: collapse}
  news:
    lane: default
    windows: [1/10s]
    when_blocked: digest
    digest: {after: 3, within: 1h, title: "{count} new comments", body: "Open the app."}
"""
    made = fake(rules)
    for n in range(4):
        made.send(note("ann", f"{{count}} new, the last {n}", fcm("f"), category="group", collapse_id="g"))
        made.send(note("bob", f"comment {n}", fcm("f"), category="news"))
        made.advance("1s")
    made.advance("2h")
    assert [(sent.notification.title, sent.count) for sent in made.outbox if sent.notification.user == "ann"] == [
        ("1 new, the last 0", 1),
        ("3 new, the last 3", 3),
    ]
    last = [sent for sent in made.outbox if sent.notification.user == "bob"][-1]
    assert (last.notification.title, last.notification.body, last.count) == ("3 new comments", "Open the app.", 3)


def test_a_django_projects_own_configuration(tmp_path: Path) -> None:
    """`notifier_outbox` has the rules that the project's NOTIFIER_CONFIG names."""
    config = tmp_path / "shop.yaml"
    config.write_text(PROVIDERS + "user: {windows: [1/1d]}\n", encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(
        f"""
from django.conf import settings
settings.configure(NOTIFIER_CONFIG={str(config)!r})
from notifier import Device, Notification, Notifier

def test_one_a_day(notifier_outbox):
    for _ in range(2):
        Notifier.from_config().send(Notification(user="1", devices=[Device("fcm", "t" * 20)], title="x"))
    notifier_outbox.advance("1h")
    assert len(notifier_outbox.outbox) == 1
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
