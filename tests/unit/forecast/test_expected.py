"""What is said to hold a notification: the rule for which it waits, though another spaces it from the one before."""

from __future__ import annotations

from notifier.forecast.expected import FIELDS, Forecast, Record
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import Category, Digest
from notifier.rules.evaluator import Sends
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Preferences

S = 1_000_000
NOON = 1_767_268_800 * S  # 2026-01-01 12:00 UTC


def test_what_expires_while_its_category_is_muted_does_not_go() -> None:
    """A mute ends in an hour, and one of the two expires before: no rule of the user's has a part in it."""
    mute = {"mutes": [{"until": "2026-01-01T13:00:00+00:00"}]}
    policies = Policies(categories={"news": Category("news")}).under({"ann": Preferences.of(mute)})
    fields = dict.fromkeys(FIELDS)
    ends = [str(NOON + minutes * 60 * S).encode() for minutes in (59, 61)]
    backlog = [(name, float(n), [*(fields | {FIELDS[0]: ends[n]}).values()]) for n, name in enumerate((b"a", b"b"))]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends(), "news": Sends()})
    forecast = Forecast(policies, "ann", record)
    assert [forecast.by_job[name].not_before for name in "ab"] == ["it expires before", "the user's mute"]
    assert [forecast.by_job[name].at is None for name in "ab"] == [True, False]


def test_the_rule_that_holds_the_longest_is_named() -> None:
    """All of a backlog wait for the day's end; that they go 20 s apart then is not what they wait for."""
    news = Category("news", policy=Policy((Window(1, interval_us=20 * S),), calendar=(CalendarWindow(2, "day"),)))
    policies = Policies(categories={"news": news})
    sent = Sends.on_record([NOON - 100 * S, NOON - 50 * S], [], {})
    backlog = [(name, float(n), [None] * len(FIELDS)) for n, name in enumerate((b"a", b"b", b"c"))]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends(), "news": sent})
    forecast = Forecast(policies, "ann", record)
    found = [forecast.by_job[name] for name in "abc"]
    assert [each.held_by.partition(" until")[0] for each in found[:2]] == ["news 2/calendar-day"] * 2
    assert [f"{each.at:%d %H:%M:%S}" for each in found] == ["02 00:00:00", "02 00:00:20", "03 00:00:00"]


def test_each_of_a_category_with_a_digest_gathers_by_itself() -> None:
    """One that a worker has had goes as it may, before the digest behind it; one that comes now joins that."""
    news = Category("news", when_blocked="digest", digest=Digest(5, 3600 * S, None, "{count} new"))
    policies = Policies(Policy((Window(1, interval_us=60 * S),)), categories={"news": news})
    gathers = {"push_collapse": b"", "push_gather": str(NOON + 3600 * S).encode()}
    fields = dict.fromkeys(FIELDS)
    backlog = [(b"back", 1.0, [*fields.values()]), (b"digest", 2.0, [*(fields | gathers).values()])]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends.on_record([NOON], [], {}), "news": Sends()})
    forecast = Forecast(policies, "ann", record, accepted_now="news")
    found = (forecast.by_job["back"], forecast.by_job["digest"], forecast.accepted_now)
    assert [f"{each.at:%H:%M:%S}" for each in found if each] == ["12:01:00", "13:00:00", "13:00:00"]
