"""What users choose for themselves, changed at any moment, in Redis and in the plain model side by side."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.queue.calls import Leased
from notifier.queue.preferences import prefer
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Mute, Preferences
from notifier.scripts.loader import run
from tests.property.amount import examples
from tests.property.test_backlogs import CATEGORIES, USERS, M, carry_out, drain, enqueues, rounds, settle_all, settles
from tests.property.test_changed_rates import HORIZON, rule_sets, violations
from tests.property.world import START, Flight, S, World


def moment(us: int) -> datetime:
    """A moment of the test's clock."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


mutes = st.builds(
    lambda ahead, categories, what: Mute(moment(START + ahead), categories and tuple(categories), what),
    st.integers(0, 12 * M),
    st.none() | st.lists(st.sampled_from([*CATEGORIES]), min_size=1, max_size=2),
    st.sampled_from(["hold", "hold", "drop"]),
)
# As in the test of changed rates, each has a window of the longest horizon: Redis keeps what the rules can ask for.
choices = st.builds(
    Preferences,
    tier=st.sampled_from([None, None, "few", "not allowed"]),
    windows=st.none()
    | st.builds(
        lambda longest, limit: (Window(longest, interval_us=HORIZON), Window(limit, interval_us=M)),
        st.integers(1, 8),
        st.integers(1, 4),
    ),
    gap_us=st.sampled_from([None, 0, M, 2 * M]),
    mutes=st.lists(mutes, max_size=2).map(tuple),
)


@dataclass
class Choosing(World):
    """A world whose users choose. sent: what was admitted, in order, and under which policy of its user."""

    chosen: dict[str, Preferences] = field(default_factory=dict)
    sent: list[tuple[Flight, Policy]] = field(default_factory=list)
    received_us: dict[str, int] = field(default_factory=dict)

    def policy_of(self, user: str) -> Policy:
        """What holds for a user now."""
        return self.policies.chosen(user, self.chosen.get(user, Preferences())).policy

    def choose(self, user: str, preferences: Preferences) -> None:
        """Let a user choose; it holds at once."""
        before = self.chosen.get(user, Preferences()).encode()
        assert run(self.redis, prefer(user, before, preferences.encode(), clock=str(self.now))) is None
        self.chosen[user] = preferences

    def meet_another_worker(self) -> None:
        """What choices come to was forgotten: nobody followed these rules for a day."""
        self.redis.delete(f"notifier:chosen:{self.rules.chosen_version}")

    def muted(self, user: str, category: str) -> list[Mute]:
        """The mutes that hold back a category now."""
        mutes = self.chosen.get(user, Preferences()).mutes
        return [m for m in mutes if m.until_us > self.now and (m.categories is None or category in m.categories)]

    def _rules(self, user: str, category: str) -> Rules:
        return Rules(self.policy_of(user), self._category(category))

    def earliest(self, user: str, category: str, job_id: str) -> int:
        """And not while the user mutes it."""
        if self._category(category).bypass:
            return 0
        until = max((mute.until_us for mute in self.muted(user, category)), default=0)
        return max(super().earliest(user, category, job_id), until)

    def _due(self, user: str, category: str, head: str) -> int:
        drops = not self._category(category).bypass and any(m.what == "drop" for m in self.muted(user, category))
        return self.now if drops else super()._due(user, category, head)

    def check_dropped(self, leased: Leased) -> None:
        assert leased.dropped == "muted"
        assert any(mute.what == "drop" for mute in self.muted(leased.user, leased.category))

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        super()._dispatched(flight, waiting)
        if not flight.leased.dropped:
            self.sent.append((flight, self.policy_of(flight.leased.user)))

    def received(self, flight: Flight, at_us: int) -> None:
        super().received(flight, at_us)
        self.received_us[flight.leased.permit] = at_us


steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    rounds,
    settles,
    st.tuples(st.just("advance"), st.integers(1, 2 * M)),
    st.tuples(st.just("choose"), st.sampled_from(USERS), choices),
    st.tuples(st.just("choose"), st.sampled_from(["ann", "ann", "bob"]), st.just(Preferences())),
    st.tuples(st.just("another worker")),
)


def with_choices(rules: Policies) -> Policies:
    """The same rules, of which users may choose."""
    few = Policy((Window(1, interval_us=HORIZON),))
    return Policies(rules.everyone, {"few": few, "not allowed": few}, rules.users, rules.categories, users_may=["few"])


@given(rule_sets(), st.lists(steps, min_size=20, max_size=50))
@settings(max_examples=examples(60))
def test_each_send_keeps_what_its_user_chose(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Law 1 for the choice in force at each send, where the provider received it; and laws 2 to 5 and 7 at each step.

    Redis and model agree, also on how long each must wait, whichever worker asks and whatever it knew before: what
    waits follows a change at once, nothing is lost, doubled or overtaken.
    """
    world = Choosing(redis, with_choices(rules))
    for verb, *args in schedule:
        if verb == "choose":
            world.choose(*args)
        elif verb == "another worker":
            world.meet_another_worker()
        carry_out(world, verb, args)
        world.check()
    drain(world)
    world.check()
    ended = ("delivered", "failed", "expired", "cancelled", "dropped")
    assert sum(world.ended[word] for word in ended) == len(world.told)
    before: dict[tuple[str, str], list[int]] = {}
    for flight, policy in world.sent:
        leased, at_us = flight.leased, world.received_us.get(flight.leased.permit)
        if at_us is None:
            continue
        own = world.policies.category(leased.category).policy
        for scope, in_force in (("", policy), (leased.category, own)):
            earlier = before.setdefault((leased.user, scope), [])
            assert not violations(at_us, in_force, earlier)
            earlier.append(at_us)


def test_who_has_no_preferences_costs_nothing_more(redis: Redis) -> None:
    """With 1,000 of others in Redis, none of theirs are read, and what goes the direct way still does."""
    world = Choosing(redis, with_choices(Policies(Policy(gap_us=M))))
    for n in range(1_000):
        redis.hset("notifier:preferences", f"other-{n}", Preferences(gap_us=M).encode())
    world.enqueue("ann", "default", "default")
    world.round()
    assert world.taken_at_once == 1
    assert not redis.exists(f"notifier:chosen:{world.rules.chosen_version}")


def test_unmuted_is_sent_at_once(redis: Redis) -> None:
    """Law 7: what a mute held goes the moment it is taken back; what is muted to be dropped ends at once."""
    world = Choosing(redis, with_choices(Policies()))
    held, dropped = Mute(moment(START + 90 * M)), Mute(moment(START + 90 * M), ("news",), "drop")
    world.choose("ann", Preferences(mutes=(held, dropped)))
    for category, lane in (("chat", "urgent"), ("news", "default"), ("chat", "urgent")):
        world.enqueue("ann", category, lane)
    assert world.round() == 1
    settle_all(world)
    assert world.ended == {"dropped": 1}
    world.now += S
    world.choose("ann", Preferences())
    assert world.round() == 2
    settle_all(world)
    assert world.ended == {"dropped": 1, "delivered": 2}


def test_another_change_meanwhile_is_not_lost(redis: Redis) -> None:
    """Two who change the same user's choice at once: the second is told what stands there, and has changed nothing."""
    first, second = Preferences(gap_us=M).encode(), Preferences(gap_us=S).encode()
    assert run(redis, prefer("ann", "", first)) is None
    assert run(redis, prefer("ann", "", first)) is None, "the same call again"
    assert run(redis, prefer("ann", "", second)) == first
    assert redis.hget("notifier:preferences", "ann") == first.encode()
    assert redis.xlen("notifier:actions:users") == 1
