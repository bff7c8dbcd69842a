"""What is said to hold a notification: the rule for which it waits, though another spaces it from the one before."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from notifier.forecast.expected import FIELDS, MAX_READ, Expected, Forecast, Record, expect_later
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
NEWS = Policies(categories={"news": Category("news")})
BOTH = {"news": Category("news"), "chat": Category("chat", "urgent")}
Fields = Mapping[str, bytes]


def at_s(seconds: int) -> bytes:
    """A time of a job's field, so many seconds after noon."""
    return str(NOON + seconds * S).encode()


def backlog(jobs: Mapping[str, Fields]) -> list[tuple[bytes, float, list[bytes | None]]]:
    """Jobs by their ids, in this order, with what is given of their fields, and where they come from."""
    told = {name: {"origin": b"bulk", **own} for name, own in jobs.items()}
    return [(name.encode(), float(n), [own.get(key) for key in FIELDS]) for n, (name, own) in enumerate(told.items())]


def expect(
    jobs: Mapping[str, Fields],
    policies: Policies = NEWS,
    *,
    routes: Sequence[Held] = (),
    everything: Sends | None = None,
    news: Sends | None = None,
    device_until_us: int = 0,
) -> dict[str, Expected]:
    """What is said at noon of these jobs of ann's in the category news. everything, news: what she was sent before."""
    sends = {None: everything or Sends(), "news": news or Sends()}
    record = Record(NOON, routes, [], {}, {"news": backlog(jobs)}, sends, limited={"news": device_until_us})
    return Forecast(policies, "ann", record).by_job


def muting(policies: Policies, **mute: Any) -> Policies:
    """The same rules, and a mute that ann has chosen."""
    return policies.under({"ann": Preferences.of({"mutes": [mute]})})


def test_what_expires_while_its_category_is_muted_does_not_go() -> None:
    """A mute ends in an hour, and one of the two expires before: no rule of the user's has a part in it."""
    jobs = {"a": {"push_deadline": at_s(59 * 60)}, "b": {"push_deadline": at_s(61 * 60)}}
    found = expect(jobs, muting(NEWS, until="2026-01-01T13:00:00+00:00"))
    assert [each.not_before for each in found.values()] == ["the user's mute; it expires before", "the user's mute"]
    assert [each.at is None for each in found.values()] == [True, False]


def test_a_mute_without_end_has_no_time() -> None:
    """As a pause without end; in Redis it ends in 2199, where quiet hours may hold: nobody waits for those."""
    night = Policies(Policy(quiet=parse_hours("22:00-08:00")), categories=BOTH, zone="Europe/Berlin", lead_us=S)
    for policies in (NEWS, night):
        assert expect({"a": {}}, muting(policies)) == {"a": Expected(None, "the user's mute")}


def test_a_mute_that_ends_in_years_is_followed_by_the_clock_of_then() -> None:
    """Quiet hours end at 08:00 in summer, too; the offsets around now are known until 2028."""
    night = Policies(Policy(quiet=parse_hours("22:00-08:00")), categories=BOTH, zone="Europe/Berlin", lead_us=S)
    found = expect({"a": {}}, muting(night, until="2028-07-01T05:30:00+00:00"))["a"]
    assert (f"{found.at}", found.held_by) == ("2028-07-01 06:00:00+00:00", "user quiet until 08:00 Europe/Berlin")


def test_the_rule_that_holds_the_longest_is_named() -> None:
    """All of a backlog wait for the day's end; that they go 20 s apart then is not what they wait for."""
    news = Category("news", policy=Policy((Window(1, interval_us=20 * S),), calendar=(CalendarWindow(2, "day"),)))
    sent = Sends.on_record([NOON - 100 * S, NOON - 50 * S], [], {})
    found = [*expect({"a": {}, "b": {}, "c": {}}, Policies(categories={"news": news}), news=sent).values()]
    assert [each.held_by.partition(" until")[0] for each in found[:2]] == ["news 2/calendar-day"] * 2
    assert [f"{each.at:%d %H:%M:%S}" for each in found] == ["02 00:00:00", "02 00:00:20", "03 00:00:00"]


def test_a_job_that_was_deleted_takes_no_send() -> None:
    """By RQ's tools: its id is still in the backlog, and the next one goes in its place."""
    minute = Policies(Policy((Window(1, interval_us=60 * S),)), categories=NEWS.categories)
    jobs: dict[str, Any] = {"gone": {"origin": None}, "a": {}}
    assert expect(jobs, minute, everything=Sends.on_record([NOON], [], {}))["a"].at == moment(NOON + 60 * S)


def test_each_of_a_category_with_a_digest_gathers_by_itself() -> None:
    """One that a worker has had goes as it may, before the digest behind it."""
    news = Category("news", when_blocked="digest", digest=Digest(5, 3600 * S, None, "{count} new"))
    policies = Policies(Policy((Window(1, interval_us=60 * S),)), categories={"news": news})
    jobs = {"back": {}, "digest": {"push_collapse": b"", "push_gather": at_s(3600)}}
    found = expect(jobs, policies, everything=Sends.on_record([NOON], [], {}))
    assert {name: f"{each.at:%H:%M:%S}" for name, each in found.items()} == {"back": "12:01:00", "digest": "13:00:00"}


def two_categories(
    policies: Policies, *, pauses: Sequence[Held] = (), expires_s: int | None = None, cut: str = ""
) -> dict[str, Expected]:
    """One was sent at noon; then one of news and one of chat came, which may expire."""
    own = {} if expires_s is None else {"push_deadline": at_s(expires_s)}
    sends = {None: Sends.on_record([NOON], [], {}), "news": Sends(), "chat": Sends()}
    backlogs = {name: backlog({name: own}) for name in ("news", "chat")}
    record = Record(NOON, [], pauses, {}, backlogs, sends, waiting={cut: MAX_READ + 1})
    return Forecast(policies, "ann", record).by_job


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
    policies = Policies(Policy(gap_us=120 * S), categories=BOTH)
    waiting = two_categories(muting(policies, until=f"2026-01-01T{ends}:00+00:00", categories=["chat"]))
    found = {name: (f"{e.at:%H:%M:%S}", e.not_before, e.held_by) for name, e in waiting.items() if e.at}
    assert found == {"chat": chat, "news": news}


def test_a_mute_is_told_also_beside_more_than_are_read() -> None:
    """Nobody knows when those of another category go, but what is muted does not go before the mute ends."""
    policies = muting(Policies(categories=BOTH), until="2026-01-01T13:00:00+00:00", categories=["chat"])
    waiting = two_categories(policies, cut="news")
    assert (waiting["chat"].at, waiting["chat"].not_before) == (moment(NOON + 3600 * S), "the user's mute")


@pytest.mark.parametrize(
    ("lasts_s", "expires_s", "news"),
    [
        (None, None, "paused by anna: wrong text"),
        (None, 600, "paused by anna: wrong text; it expires before"),
        (1200, 600, "paused by anna: wrong text; it expires before"),
        (300, 600, "paused by anna: wrong text"),
        (None, 60, "paused by anna: wrong text; it expires before"),
        (30, 60, "it expires before"),
    ],
)
def test_a_pause_is_told_where_what_waits_for_it_expires(lasts_s: int | None, expires_s: int | None, news: str) -> None:
    """Unless it ends in time and a rule is too late: somebody may resume it sooner."""
    ends = None if lasts_s is None else moment(NOON + lasts_s * S)
    pause = Held("category:news", "stopped", ends, 0, "paused", "wrong text", who="anna")
    policies = Policies(Policy(gap_us=120 * S), categories=BOTH)
    waiting = two_categories(policies, pauses=[pause], expires_s=expires_s)
    assert waiting["news"].not_before == news
    assert waiting["chat"].not_before == ("it expires before" if expires_s == 60 else "")


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
    policies = muting(Policies(Policy(gap_us=120 * S), categories=BOTH), **until, categories=["news"])
    waiting = two_categories(policies, expires_s=expires_s)
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
    deadline = {} if expires_s is None else {"push_deadline": at_s(expires_s)}
    found = expect({"a": {"push_targets": b"- fcm:n|d", **deadline}}, routes=[Held("fcm", "stopped", probe, 0)])["a"]
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
    found = expect({name: {"push_wait": at_s(seconds)} for name, seconds in (("a", 30), ("b", 90), ("c", 60))})
    assert [f"{each.at:%H:%M:%S} {each.not_before}" for each in found.values()] == [
        "12:00:30 it is tried again",
        "12:01:30 it is tried again",
        "12:01:30 it is tried again",
    ]


def test_it_waits_for_what_holds_it_or_those_before_it() -> None:
    """Not for what one behind it needs; of several the one that lasts the longest is named."""
    jobs = {"free": {}, "again": {"push_wait": at_s(5)}, "away": {"push_targets": b"- fcm:n|d"}, "behind": {}}
    waiting = expect(jobs, routes=[Held("fcm", "stopped", None, 0)])
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
    again = {"push_wait": at_s(3600)}
    found = expect({"a": again, "b": {**again, "push_deadline": at_s(6 * 3600)}}, policies)
    assert [each.at for each in found.values()] == [moment(NOON + 8 * 3600 * S), None]
    assert found["b"].not_before == "it expires before"


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
    job = {"push_targets": f"- fcm:{kind}|d".encode()}
    found = expect({"a": job}, policies, device_until_us=NOON + until_s * S if until_s else 0)["a"]
    assert (found.at, found.not_before) == (moment(NOON + told[0] * S), told[1])


def test_the_pace_of_all_users_is_named_where_it_soon_may_hold() -> None:
    """Nothing waits for it now; how many of other users go before is not known."""
    policies = Policies(categories={"news": Category("news", overall=Window(2, "1m"))})
    assert expect({"a": {}}, policies) == {"a": Expected(moment(NOON), "news overall")}
