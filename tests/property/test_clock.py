"""Quiet hours and calendar windows: Redis and the plain model at every step, and the law at the provider."""

import json
from datetime import UTC, datetime
from itertools import product
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.forecast.replay import Replay
from notifier.forecast.trace import Event
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import Category, Digest
from notifier.rules.hours import EVERY_DAY, Hours, closed_minutes, longest_open_us
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Mute, Preferences
from notifier.rules.zones import zone_at
from notifier.scripts.rule_table import RuleTable
from tests.property.amount import examples
from tests.property.clock_model import over_calendar, unquiet
from tests.property.forecast.test_replay import Scripts, by_the_scripts
from tests.property.model import violations
from tests.property.test_backlogs import carry_out, drain, enqueues, outcomes, rounds, settle_all
from tests.property.world import LEASE, ZONES, S, World

H = 3_600 * S
ZONES_OF = {"ann": "Europe/Berlin", "bob": "Australia/Lord_Howe"}
ENDS = ("delivered", "failed", "expired", "cancelled", "superseded")


def at(*moment: int) -> int:
    """µs since the epoch of a moment in UTC."""
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * S  # type: ignore[misc, arg-type]


# Before and after the nights in which the clocks of these zones change; and one in which none does.
STARTS = (at(2024, 3, 30, 18), at(2024, 10, 26, 18), at(2024, 4, 6, 10), at(2024, 11, 3, 3), at(2024, 7, 31, 12))

quarters = st.integers(0, 95).map(lambda n: n * H // 4)
days = st.sampled_from([EVERY_DAY, EVERY_DAY, tuple(range(5)), (5, 6), (6,), (4, 5, 6, 0)])
hours = st.builds(Hours, quarters, quarters, days).filter(lambda hours: hours.from_us != hours.to_us)
whole_days = st.sampled_from([Hours(0, 24 * H, (5, 6)), Hours(0, 24 * H, (0,)), Hours(20 * H, 24 * H, (6,))])
quiet = st.lists(hours | whole_days, max_size=2).map(tuple)
# One sends by the clock of an office, and now and then in an hour of one day alone.
send = st.just(()) | st.tuples(hours) | st.tuples(hours, hours)
calendar = st.builds(CalendarWindow, st.integers(1, 3), st.sampled_from(["day", "day", "week"]))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Some windows, a gap, calendar windows, quiet hours and send hours that leave time."""
    quiet_hours, send_hours = draw(quiet), draw(send)
    assume(longest_open_us(closed_minutes(quiet_hours, send_hours)))
    windows = st.builds(Window, st.integers(1, 4), interval_us=st.sampled_from([60 * S, H, 5 * H]))
    return Policy(
        tuple(draw(st.lists(windows, max_size=1))),
        draw(st.sampled_from([0, 0, 60 * S])),
        calendar=tuple(draw(st.lists(calendar, max_size=1))),
        quiet=quiet_hours,
        send=send_hours,
    )


news = st.builds(Category, st.just("news"), policy=policies()) | st.builds(
    Category,
    st.just("news"),
    policy=policies(),
    when_blocked=st.just("digest"),
    digest=st.builds(Digest, st.integers(2, 5), st.integers(60 * S, 9 * H), st.none(), st.just("{count}")),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for everyone and for bob; categories that ignore the user's quiet hours, have their own, or bypass all."""
    categories = {
        "chat": Category("chat", policy=Policy((Window(3, interval_us=H),)), ignores_quiet=draw(st.booleans())),
        "news": draw(news),
        "offers": Category("offers", policy=draw(policies()), bypass=draw(st.booleans())),
    }
    zone, of_users = draw(st.sampled_from(ZONES)), (draw(policies()), draw(policies()))
    # What leaves no time at all is refused in the configuration.
    for user, category in product(of_users, categories.values()):
        assume(longest_open_us(user.closed_minutes | category.policy.closed_minutes))
    return Policies(of_users[0], users={"bob": of_users[1]}, categories=categories, zone=zone, lead_us=LEASE)


moments = st.one_of(st.sampled_from([1, LEASE, H]), st.integers(1, 9 * H))
steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    st.tuples(st.just("settle"), st.integers(0, 9), outcomes, st.booleans(), st.integers(1, 5 * H)),
    st.tuples(st.just("advance"), moments),
)


@given(rule_sets(), st.sampled_from(STARTS), st.lists(steps, min_size=10, max_size=25))
@settings(max_examples=examples(40))
def test_who_waits_for_the_clock_goes_when_it_says(
    redis: Redis, rules: Policies, now: int, schedule: list[tuple[Any, ...]]
) -> None:
    """Laws 1 to 4 by the clock on the wall: no head goes before it may, none is told to wait longer, all end.

    And at the provider nothing is received in quiet hours, nor more in a day or week than there may be.
    """
    world = World(redis, rules, now, zones=ZONES_OF)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
    drain(world)  # which may take weeks, in which what was delivered is forgotten
    assert sum(world.ended[word] for word in ENDS) == len(world.told)
    for user, receipts in world.receipts.items():
        own, zone = rules.for_user(user), ZONES_OF.get(user, rules.zone)
        held = [(moment, name) for moment, name in receipts if not rules.category(name).bypass]
        if len(held) == len(receipts):
            assert not violations(own, [moment for moment, _ in receipts])
            assert not over_calendar(zone, own.calendar, [moment for moment, _ in receipts])
        for moment, name in held:
            category = rules.category(name)
            assert category.ignores_quiet or not unquiet(zone, own, [moment])
            assert not unquiet(zone, category.policy, [moment])


events = st.builds(
    Event,
    st.integers(0, 40).map(lambda hours: STARTS[1] + hours * H // 2),
    st.sampled_from(["chat", "news", "offers", "default"]),
    st.sampled_from([False, False, True]),
    st.one_of(st.none(), st.integers(1, 9 * H)),
    zone=st.sampled_from([None, "America/New_York"]),
)


@given(rule_sets(), st.lists(events, min_size=3, max_size=15))
@settings(max_examples=examples(60))
def test_the_replay_goes_by_the_same_clock(redis: Redis, rules: Policies, trace: list[Event]) -> None:
    """A preview waits as the limiter does, also where the notifications of a user have several zones."""
    trace = sorted(trace, key=lambda event: event.at_us)
    replay = Replay(rules, "ann", trace)
    replay.run()
    assert replay.sent == by_the_scripts(redis, rules, trace, 0)
    shifted = [event._replace(at_us=event.at_us - STARTS[1]) for event in trace]
    later = Replay(rules, "ann", shifted, begins_us=STARTS[1], explained=True)
    later.run()
    assert [at if at < 0 else at + STARTS[1] for at in later.sent] == replay.sent


def test_a_wait_that_ends_beyond_the_table_of_its_zone_ends_on_time(redis: Redis) -> None:
    """The table in Redis is of the year before and ends in winter time; the mute ends in quiet hours in summer time."""
    night = Policies(Policy(quiet=(Hours(22 * H, 8 * H),)), zone="Europe/Berlin", lead_us=LEASE)
    chosen = Preferences(mutes=(Mute(datetime(2025, 5, 1, 5, 30, tzinfo=UTC)),))
    redis.hset("notifier:zones", "Europe/Berlin", zone_at("Europe/Berlin", at(2023, 6, 1)).encode())
    redis.hset("notifier:preferences", "ann", chosen.encode())
    assert Scripts(redis, night, [Event(at(2024, 11, 10), "default")], 0).run() == [at(2025, 5, 1, 6)]


def test_a_digest_that_is_complete_in_quiet_hours_is_looked_at_when_they_are_over(redis: Redis) -> None:
    """Law 3: nobody looks at it in vain when it has gathered long enough, in the night."""
    digest = Digest(9, 2 * H, None, "{count}")
    chat = Category("chat", policy=Policy(gap_us=60 * S), when_blocked="digest", digest=digest)
    night = Policies(Policy(quiet=(Hours(22 * H, 8 * H),)), categories={"chat": chat}, lead_us=LEASE)
    world = World(redis, night, at(2024, 7, 31, 21))
    for _ in range(3):
        world.enqueue("ann", "chat", "urgent")
        world.round()
    settle_all(world)
    assert world.pull().next_us == at(2024, 8, 1, 8)
    world.check()


def test_quiet_hours_hold_where_no_lead_is_named(redis: Redis) -> None:
    """By rules that were made in Python; at their first moment as well, and in the forecast alike."""
    night = Policies(Policy(quiet=(Hours(22 * H, 8 * H),)))
    trace = [Event(at(2024, 7, 31, 22), "default")]
    assert by_the_scripts(redis, night, trace, 0) == Replay(night, "ann", trace).run().sent == [at(2024, 8, 1, 8)]


def test_who_is_muted_without_end_waits_for_no_hours(redis: Redis) -> None:
    """In Redis the mute ends in 2199, at night: until then it is told of the mute alone."""
    night = Policies(Policy(quiet=(Hours(22 * H, 8 * H),)), lead_us=LEASE)
    redis.hset("notifier:preferences", "ann", Preferences(mutes=(Mute(),)).encode())
    told = set()

    class Telling(Scripts):
        def look(self) -> None:
            super().look()
            if STARTS[0] <= self.now < Mute().until_us:
                told.add((self.now, self.redis.hget("notifier:backlogs:{ann}", "#w:default")))

    Telling(redis, night, [Event(STARTS[0], "default")], 0).run()
    assert told == {(STARTS[0], b"m")}


def test_a_worker_keeps_its_own_lease_before_quiet_hours() -> None:
    """A lease that was changed in the file holds from the next start: until then the old one must be over by night."""
    night = Policies(Policy(quiet=(Hours(0, H),)), lead_us=3 * S)
    tables = [json.loads(RuleTable(night, lead_us=lead_us).text) for lead_us in (None, 10 * S)]
    assert [table["clock"]["lead_us"] for table in tables] == [3 * S, 10 * S]
