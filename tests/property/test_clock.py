"""Quiet hours and calendar windows: Redis and the plain model at every step, and the law at the provider."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from notifier.operations.preview.replay import Replay
from notifier.operations.preview.trace import Event
from notifier.rules.policies import Policies
from notifier.rules.policy import Category, Policy, Window
from notifier.rules.quiet_hours import CalendarWindow, QuietHours, free_us
from notifier.scripts.rule_table import RuleTable
from tests.property.amount import examples
from tests.property.clock_model import over_calendar, unquiet
from tests.property.model import violations
from tests.property.test_lines import carry_out, drain, enqueues, outcomes, rounds
from tests.property.test_preview import by_the_scripts
from tests.property.world import LEASE, ZONES, S, World

if TYPE_CHECKING:
    from redis import Redis

H = 3_600 * S
ZONES_OF = {"ann": "Europe/Berlin", "bob": "Australia/Lord_Howe"}


def at(*moment: int) -> int:
    """µs since the epoch of a moment in UTC."""
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * S  # type: ignore[misc, arg-type]


# Before and after the nights in which the clocks of these zones change; and one in which none does.
STARTS = (at(2024, 3, 30, 18), at(2024, 10, 26, 18), at(2024, 4, 6, 10), at(2024, 11, 3, 3), at(2024, 7, 31, 12))

quarters = st.integers(0, 95).map(lambda n: n * H // 4)
quiet = st.builds(QuietHours, quarters, quarters).filter(lambda hours: hours.from_us != hours.to_us)
calendar = st.builds(CalendarWindow, st.integers(1, 3), st.sampled_from(["day", "day", "week"]))
policies = st.builds(
    Policy,
    st.lists(st.builds(Window, st.integers(1, 4), interval_us=st.sampled_from([60 * S, H, 5 * H])), max_size=1).map(
        tuple
    ),
    st.sampled_from([0, 0, 60 * S]),
    calendar=st.lists(calendar, max_size=1).map(tuple),
    quiet=st.lists(quiet, max_size=2).map(tuple),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for everyone and for bob; categories that ignore the user's quiet hours, have their own, or bypass all."""
    categories = {
        "chat": Category("chat", policy=Policy((Window(3, interval_us=H),)), ignores_quiet=draw(st.booleans())),
        "news": Category("news", policy=draw(policies)),
        "offers": Category("offers", policy=draw(policies), bypass=draw(st.booleans())),
    }
    zone, of_users = draw(st.sampled_from(ZONES)), (draw(policies), draw(policies))
    # What leaves no time at all is refused in the configuration.
    for held in ((user.quiet, category.policy.quiet) for user in of_users for category in categories.values()):
        assume(free_us(*(hours for some in held for hours in some)) > 0)
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
    assert sum(world.ended[word] for word in ("delivered", "failed", "expired", "cancelled")) == len(world.told)
    for user, receipts in world.receipts.items():
        own, zone = rules.for_user(user), ZONES_OF.get(user, rules.zone)
        held = [(moment, name) for moment, name in receipts if not rules.category(name).bypass]
        if len(held) == len(receipts):
            assert not violations(own, [moment for moment, _ in receipts])
            assert not over_calendar(zone, own.calendar, [moment for moment, _ in receipts])
        for moment, name in held:
            category = rules.category(name)
            assert not unquiet(zone, () if category.ignores_quiet else own.quiet, [moment])
            assert not unquiet(zone, category.policy.quiet, [moment])


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


def test_a_worker_keeps_its_own_lease_before_quiet_hours() -> None:
    """A lease that was changed in the file holds from the next start: until then the old one must be over by night."""
    night = Policies(Policy(quiet=(QuietHours(0, H),)), lead_us=3 * S)
    tables = [json.loads(RuleTable(night, lead_us=lead_us).encode([])[0]) for lead_us in (None, 10 * S)]
    assert [table["clock"]["lead_us"] for table in tables] == [3 * S, 10 * S]
