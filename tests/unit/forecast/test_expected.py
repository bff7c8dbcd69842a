"""What is said to hold a notification: the rule for which it waits, though another spaces it from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from notifier.forecast.expected import FIELDS, Expected, Forecast, Record, expect_later
from notifier.queue.circuits import FAR_US, Held
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import Category, Digest, PlatformLimits
from notifier.rules.evaluator import Sends
from notifier.rules.hours import parse_hours
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy, Window
from notifier.rules.preferences import Preferences
from notifier.units import moment

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
    told = ["the user's mute; it expires before", "the user's mute"]
    assert [forecast.by_job[name].not_before for name in "ab"] == told
    assert [forecast.by_job[name].at is None for name in "ab"] == [True, False]


def test_a_mute_without_end_has_no_time() -> None:
    """As a pause without end; in Redis it ends in 2199."""
    policies = Policies(categories={"news": Category("news")}).under({"ann": Preferences.of({"mutes": [{}]})})
    record = Record(NOON, [], [], {}, {"news": [(b"a", 1.0, [None] * len(FIELDS))]}, {None: Sends(), "news": Sends()})
    assert Forecast(policies, "ann", record).by_job["a"] == Expected(None, "the user's mute")


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
    """One that a worker has had goes as it may, before the digest behind it."""
    news = Category("news", when_blocked="digest", digest=Digest(5, 3600 * S, None, "{count} new"))
    policies = Policies(Policy((Window(1, interval_us=60 * S),)), categories={"news": news})
    gathers = {"push_collapse": b"", "push_gather": str(NOON + 3600 * S).encode()}
    fields = dict.fromkeys(FIELDS)
    backlog = [(b"back", 1.0, [*fields.values()]), (b"digest", 2.0, [*(fields | gathers).values()])]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends.on_record([NOON], [], {}), "news": Sends()})
    forecast = Forecast(policies, "ann", record)
    found = (forecast.by_job["back"], forecast.by_job["digest"])
    assert [f"{each.at:%H:%M:%S}" for each in found] == ["12:01:00", "13:00:00"]


def two_categories(
    policies: Policies, *, pauses: Sequence[Held] = (), expires_in: int | None = None, cut: str = ""
) -> Forecast:
    """One was sent at noon; then one of news and one of chat came, which may expire."""
    fields = dict.fromkeys(FIELDS)
    if expires_in is not None:
        fields["push_deadline"] = str(NOON + expires_in).encode()
    backlogs = {
        name: [(name.encode(), float(n), [*fields.values()])] for n, name in enumerate(("news", "chat"), start=1)
    }
    sends = {None: Sends.on_record([NOON], [], {}), "news": Sends(), "chat": Sends()}
    record = Record(NOON, [], pauses, {}, backlogs, sends, frozenset({cut}))
    return Forecast(policies, "ann", record)


@pytest.mark.parametrize(
    ("ends", "chat", "news"),
    [
        ("12:01", ("12:02:00", "", "user gap 2m"), ("12:04:00", "", "user gap 2m")),
        ("12:03", ("12:04:00", "", "user gap 2m"), ("12:02:00", "", "user gap 2m")),
        ("12:05", ("12:05:00", "the user's mute", ""), ("12:02:00", "", "user gap 2m")),
        ("12:59", ("12:59:00", "the user's mute", ""), ("12:02:00", "", "user gap 2m")),
    ],
)
def test_what_a_mute_holds_keeps_the_gap_to_the_others(
    ends: str, chat: tuple[str, str, str], news: tuple[str, str, str]
) -> None:
    """Law 1: two of one user are never expected at one moment; a mute is blamed only where it holds the longest."""
    categories = {"news": Category("news"), "chat": Category("chat", "urgent")}
    mute = {"mutes": [{"until": f"2026-01-01T{ends}:00+00:00", "categories": ["chat"]}]}
    policies = Policies(Policy(gap_us=120 * S), categories=categories).under({"ann": Preferences.of(mute)})
    waiting = two_categories(policies).by_job
    found = {name: (f"{e.at:%H:%M:%S}", e.not_before, e.held_by) for name, e in waiting.items() if e.at}
    assert found == {"chat": chat, "news": news}


def test_a_mute_is_told_also_beside_more_than_are_read() -> None:
    """Nobody knows when those of another category go, but what is muted does not go before the mute ends."""
    mute = {"mutes": [{"until": "2026-01-01T13:00:00+00:00", "categories": ["chat"]}]}
    categories = {"news": Category("news"), "chat": Category("chat")}
    waiting = two_categories(Policies(categories=categories).under({"ann": Preferences.of(mute)}), cut="news").by_job
    assert (waiting["chat"].at, waiting["chat"].not_before) == (moment(NOON + 3600 * S), "the user's mute")


@pytest.mark.parametrize(
    ("lasts_s", "expires_in", "news"),
    [
        (None, None, "paused by anna: wrong text"),
        (None, 600 * S, "paused by anna: wrong text; it expires before"),
        (1200, 600 * S, "paused by anna: wrong text; it expires before"),
        (300, 600 * S, "paused by anna: wrong text"),
        (None, 60 * S, "paused by anna: wrong text; it expires before"),
        (30, 60 * S, "it expires before"),
    ],
)
def test_a_pause_is_told_where_what_waits_for_it_expires(
    lasts_s: int | None, expires_in: int | None, news: str
) -> None:
    """Unless it ends in time and a rule is too late: somebody may resume it sooner."""
    ends = None if lasts_s is None else moment(NOON + lasts_s * S)
    pause = Held("category:news", "stopped", ends, 0, "paused", "wrong text", who="anna")
    categories = {"news": Category("news"), "chat": Category("chat")}
    policies = Policies(Policy(gap_us=120 * S), categories=categories)
    waiting = two_categories(policies, pauses=[pause], expires_in=expires_in).by_job
    assert waiting["news"].not_before == news
    assert waiting["chat"].not_before == ("it expires before" if expires_in == 60 * S else "")


@pytest.mark.parametrize(
    ("lasts_s", "expires_s", "told"),
    [
        (None, None, "the user's mute"),
        (None, 3600, "the user's mute; it expires before"),
        (30, 60, "it expires before"),
        (90, 60, "it expires before"),
        (180, 60, "the user's mute; it expires before"),
    ],
)
def test_a_mute_is_told_where_what_it_holds_expires(lasts_s: int | None, expires_s: int | None, told: str) -> None:
    """Unless a rule is too late, which holds longer than the mute."""
    until = {} if lasts_s is None else {"until": f"2026-01-01T12:{lasts_s // 60:02}:{lasts_s % 60:02}+00:00"}
    policies = Policies(Policy(gap_us=120 * S), categories={"news": Category("news"), "chat": Category("chat")})
    policies = policies.under({"ann": Preferences.of({"mutes": [{**until, "categories": ["news"]}]})})
    waiting = two_categories(policies, expires_in=expires_s and expires_s * S).by_job
    assert waiting["news"].not_before == told


@pytest.mark.parametrize(
    ("probe_s", "expires_s", "told"),
    [
        (31, 86_400, "when fcm works again; next probe 12:00:31 UTC"),
        (31, 32, "when fcm works again; next probe 12:00:31 UTC"),
        (31, 30, "when fcm works again; next probe 12:00:31 UTC; it expires before"),
        (31, None, "when fcm works again; next probe 12:00:31 UTC"),
        (None, 30, "when fcm works again"),
    ],
)
def test_what_waits_for_a_stopped_route_expires_only_before_a_probe(
    probe_s: int | None, expires_s: int | None, told: str
) -> None:
    """When the route works again nobody knows: the next probe may find that it does."""
    probe = None if probe_s is None else moment(NOON + probe_s * S)
    deadline = {} if expires_s is None else {"push_deadline": str(NOON + expires_s * S).encode()}
    fields = dict.fromkeys(FIELDS) | {"push_targets": b"- fcm:n|d", **deadline}
    backlogs = {"news": [(b"a", 1.0, [*fields.values()])]}
    record = Record(NOON, [Held("fcm", "stopped", probe, 0)], [], {}, backlogs, {None: Sends(), "news": Sends()})
    found = Forecast(Policies(categories={"news": Category("news")}), "ann", record).by_job["a"]
    assert (found.at, found.not_before) == (None, told)


STOPPED = Held("fcm", "stopped", moment(NOON + 31 * S), 0)
FULL = Held("fcm", "slow", moment(NOON + S), 0, "full")
PAUSED = Held("fcm", "stopped", None, 0, "paused", who="anna")


@pytest.mark.parametrize(
    ("routes", "expires_s", "at_s", "told"),
    [
        ([STOPPED], 32, None, "when fcm works again; next probe 12:00:31 UTC"),
        ([STOPPED], None, None, "when fcm works again; next probe 12:00:31 UTC"),
        ([STOPPED, FULL], 30, None, "when fcm works again; next probe 12:00:31 UTC; it expires before"),
        ([FULL], 30, 1, "fcm is slow: our count of its quota is at the limit"),
        ([PAUSED], None, None, "fcm is stopped: paused by anna"),
        ([replace(STOPPED, route="fcm/driver")], 30, None, "fcm stopped"),
    ],
)
def test_the_rest_of_one_goes_when_its_route_works_and_not_when_it_expires(
    routes: list[Held], expires_s: int | None, at_s: int | None, told: str
) -> None:
    """Told as of one in a backlog, though `later` has its expiry as its time."""
    score = FAR_US if expires_s is None else NOON + expires_s * S
    found = expect_later(score, (b'{"category": "news"}', b"0 b 9 pfcm", None, None, None), routes)
    assert (found.at, found.not_before) == (None if at_s is None else moment(NOON + at_s * S), told)


def test_none_goes_earlier_than_those_before_it() -> None:
    """Not before the last of them is tried again, of which each waits for a time of its own."""
    waits = [dict.fromkeys(FIELDS) | {"push_wait": str(NOON + s * S).encode()} for s in (30, 90, 60)]
    backlog = [(name, float(n), [*waits[n].values()]) for n, name in enumerate((b"a", b"b", b"c"))]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends(), "news": Sends()})
    forecast = Forecast(Policies(categories={"news": Category("news")}), "ann", record)
    assert [f"{each.at:%H:%M:%S} {each.not_before}" for each in forecast.by_job.values()] == [
        "12:00:30 it is tried again",
        "12:01:30 it is tried again",
        "12:01:30 it is tried again",
    ]


def test_it_waits_for_what_holds_it_or_those_before_it() -> None:
    """Not for what one behind it needs; of several the one that lasts the longest is named."""
    fields = dict.fromkeys(FIELDS)
    fcm = {"push_targets": b"- fcm:n|d"}
    own = {"free": {}, "again": {"push_wait": str(NOON + 5 * S).encode()}, "away": fcm, "behind": {}}
    backlog = [(name.encode(), float(n), [*(fields | own[name]).values()]) for n, name in enumerate(own)]
    record = Record(
        NOON, [Held("fcm", "stopped", None, 0)], [], {}, {"news": backlog}, {None: Sends(), "news": Sends()}
    )
    waiting = Forecast(Policies(categories={"news": Category("news")}), "ann", record).by_job
    assert {name: (each.at, each.not_before) for name, each in waiting.items()} == {
        "free": (moment(NOON), ""),
        "again": (moment(NOON + 5 * S), "it is tried again"),
        "away": (None, "when fcm works again"),
        "behind": (None, "when fcm works again"),
    }


def test_what_may_go_in_quiet_hours_at_the_soonest_goes_when_they_end() -> None:
    """The pace of all users, a retry, a pause or a device may hold it until then: the clock is asked once more."""
    hours = Policy(quiet=parse_hours("12:30-20:00"))
    policies = Policies(hours, categories={"news": Category("news")}, lead_us=30 * S)
    ends = (None, str(NOON + 6 * 3600 * S).encode())
    fields = dict.fromkeys(FIELDS) | {"push_wait": str(NOON + 3600 * S).encode()}
    backlog = [(name, float(n), [*(fields | {FIELDS[0]: ends[n]}).values()]) for n, name in enumerate((b"a", b"b"))]
    record = Record(NOON, [], [], {}, {"news": backlog}, {None: Sends(), "news": Sends()})
    forecast = Forecast(policies, "ann", record)
    assert [forecast.by_job[name].at for name in "ab"] == [moment(NOON + 8 * 3600 * S), None]
    assert forecast.by_job["b"].not_before == "it expires before"


@pytest.mark.parametrize(
    ("kind", "until_s", "told"),
    [
        ("n", 0, (0, "")),
        ("n", 60, (60, "a limit of its device")),
        ("b", 0, (0, "a limit of its device")),
        ("c", 0, (0, "a limit of its device")),
    ],
)
def test_a_limit_of_its_device_is_named_where_it_holds_or_soon_may(
    kind: str, until_s: int, told: tuple[int, str]
) -> None:
    """Until when, a worker has found; of background pushes and collapsible messages few may go to one device."""
    few = PlatformLimits(background=Policy((Window(3, "1h"),)), collapsible=Burst(20, every_us=180 * S))
    policies = Policies(categories={"news": Category("news")}, limits={"fcm": few})
    fields = dict.fromkeys(FIELDS) | {"push_targets": f"- fcm:{kind}|d".encode()}
    backlogs, sends = {"news": [(b"a", 1.0, [*fields.values()])]}, {None: Sends(), "news": Sends()}
    record = Record(NOON, [], [], {}, backlogs, sends, limited={"news": NOON + until_s * S if until_s else 0})
    found = Forecast(policies, "ann", record).by_job["a"]
    assert (found.at, found.not_before) == (moment(NOON + told[0] * S), told[1])
