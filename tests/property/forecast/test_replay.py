"""The replay of a preview against the scripts in Redis, driven by a worker that is never late."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.forecast.replay import DROPPED, EXPIRED, SUPERSEDED, Replay
from notifier.forecast.trace import Event
from notifier.queue import backlogs, calls
from notifier.queue.calls import Job, Leased, Settlement
from notifier.queue.retention import KEEP_NOTHING, Retention
from notifier.rules.category import LANES, Category, Digest
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Mute, Preferences
from notifier.rules.zones import zone_at
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.take import know, take
from tests.property import kinds
from tests.property.amount import examples

S = 1_000_000
U = 20 * S  # what the drawn numbers count: Redis forgets by its own clock, a rule is to last longer than an example
LEASE = 1_000 * U
SENT: Final = ("delivered", "delivered")
LANE_OF = {"chat": "urgent", "news": "default", "offers": "bulk", "default": "default"}

# Times are drawn from so few that wake-ups, arrivals, deadlines and settlements often fall upon the same µs.
spans = st.integers(1, 30).map(U.__mul__)
limits = st.one_of(st.integers(1, 4), st.integers(20, 60))
policies = kinds.policies(
    st.lists(st.builds(Window, limits, interval_us=spans, precision_us=st.sampled_from([0, 0, 0, U])), max_size=2).map(
        tuple
    ),
    st.one_of(st.just(0), st.integers(1, 12).map(U.__mul__)),
    kinds.others(U),
)
digests = st.builds(Digest, st.integers(2, 5), st.integers(1, 40).map(U.__mul__))
expiries = st.one_of(st.none(), st.none(), st.integers(1, 40).map(U.__mul__))
events = st.builds(
    Event,
    st.integers(0, 60).map(U.__mul__),
    st.sampled_from([*LANE_OF, "default", "left"]),
    st.sampled_from([False, False, False, True]),
    expiries,
    st.sampled_from([None, None, "one", "other"]),
)
# A burst is longer than what one look takes of a user.
bursts = st.tuples(events, st.integers(20, 40)).map(lambda burst: [burst[0]] * burst[1])
traces = st.builds(
    lambda some, burst: sorted([*some, *burst], key=lambda event: event.at_us),
    st.lists(events, max_size=40),
    st.one_of(st.just([]), bursts),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for everyone, and some categories in all lanes; 'left' is not configured."""
    some = draw(st.sets(st.sampled_from(sorted(LANE_OF))))
    # What bypasses may overdraw a burst: what that is worth is known when it is settled, and so no sooner in a replay.
    bypassing = draw(st.booleans())
    rules = policies.map(lambda policy: replace(policy, burst=None)) if bypassing else policies
    categories = {
        name: Category(
            name,
            LANE_OF[name],
            draw(rules),
            expires_us=draw(expiries),
            bypass=bypassing and draw(st.booleans()),
            cost=draw(st.sampled_from([1, 1, 1, 3])),
            when_blocked=(how := draw(st.sampled_from(["queue", "collapse", "digest", "drop"]))),
            digest=draw(digests) if how == "digest" else None,
        )
        for name in sorted(some)
    }
    return Policies(draw(rules), categories=categories)


def by_the_scripts(
    redis: Redis, rules: Policies, trace: list[Event], latency_us: int, chosen: Preferences | None = None
) -> list[int]:
    """When each went: enqueue, settle and pull at every µs at which something may change."""
    redis.flushdb()
    if rules.uses_local_time:
        zones = {event.zone or rules.zone for event in trace}
        redis.hset("notifier:zones", mapping={zone: zone_at(zone, trace[0].at_us).encode() for zone in zones})
    if chosen is not None:
        redis.hset("notifier:preferences", "ann", chosen.encode())
    return Scripts(redis, rules, trace, latency_us).run()


@dataclass
class Scripts:
    """A worker that is never late, and a producer."""

    redis: Redis
    rules: Policies
    trace: list[Event]
    latency_us: int
    now: int = 0
    sent: list[int] = field(default_factory=list)
    flights: list[tuple[int, int, Leased]] = field(default_factory=list)
    keep: Retention = KEEP_NOTHING

    def run(self) -> list[int]:
        """Work until all have ended."""
        self.sent, self.table = [EXPIRED] * len(self.trace), RuleTable(self.rules)
        know(self.table, {event.category for event in self.trace})
        arrivals = list(enumerate(self.trace))
        wake_up: int | None = 0
        looks = Counter[int]()
        while arrivals or self.flights or wake_up is not None:
            nexts = [event.at_us for _, event in arrivals[:1]] + [at for at, _, _ in self.flights[:1]]
            self.now = max(self.now, min(nexts + [wake_up] * (wake_up is not None)))
            looks[self.now] += 1
            assert looks[self.now] <= 10 * len(self.trace) + 10, (
                "it is looked at again and again, and nothing comes of it"
            )
            self.settle([heappop(self.flights)[2] for _ in range(sum(at <= self.now for at, _, _ in self.flights))])
            run(self.redis, backlogs.sweep(LANES, Retention(LEASE, 1, S), lease_us=LEASE, clock=str(self.now)))
            come = [job(self.rules, *arrivals.pop(0)) for _ in range(sum(e.at_us <= self.now for _, e in arrivals))]
            if come:
                enqueue = partial(calls.enqueue, come, dedupe_for_us=S, stamp="", clock=str(self.now))
                run(self.redis, enqueue(keep=self.keep))
            self.look()
            wake_ups = [self.redis.zrange(f"notifier:wakeups:{lane}", 0, 0, withscores=True) for lane in LANES]
            wake_up = min((int(entry[0][1]) for entry in wake_ups if entry), default=None)
        found = {word.decode(): int(n) for word, n in self.redis.hgetall("notifier:stats").items()}
        assert sum(found.get(word, 0) for word in ("delivered", "expired", "superseded", "dropped")) == len(self.trace)
        outcomes = [self.redis.hget(f"rq:job:{n}", "push_outcome") for n in range(len(self.trace))]
        ends = {b"superseded": SUPERSEDED, b"dropped": DROPPED}
        return [ends.get(outcome, at) for outcome, at in zip(outcomes, self.sent, strict=True)]

    def look(self) -> None:
        """What a worker takes at once."""
        worker = calls.Worker(name="w", lanes=LANES, lease_us=LEASE, keep=Retention(LEASE), clock=str(self.now))
        taken = take(self.redis, worker, calls.Room(1000), self.table)
        ended = []
        for leased in taken.leased:
            if leased.dropped or (leased.left_us is not None and leased.left_us <= 0):
                ended.append(leased)
                continue
            self.sent[int(leased.job_id)] = self.now
            heappush(self.flights, (self.now + self.latency_us, int(leased.permit.partition("x")[0]), leased))
        self.settle(ended)

    def settle(self, flights: list[Leased]) -> None:
        """What went was delivered; the others expired or were dropped."""
        done = []
        for leased in flights:
            expired = leased.left_us is not None and leased.left_us <= 0
            state, word = ("dropped", "dropped") if leased.dropped else ("failed", "expired") if expired else SENT
            of = (leased.job_id, leased.permit, leased.user, leased.category)
            done.append(Settlement(*of, (state, word) == SENT, state, word, "when_blocked" if leased.dropped else ""))
        call = calls.settle(done, self.table, calls.Worker(name="w", keep=Retention(LEASE, 1, S), clock=str(self.now)))
        if done:
            assert run(self.redis, call) == [True] * len(done)


def job(rules: Policies, index: int, event: Event) -> Job:
    meta = {"user": "ann", "category": event.category, **({"priority": "high"} if event.high else {})}
    if event.collapse_id is not None:
        meta["collapse_id"] = event.collapse_id
    if event.zone is not None:
        meta["zone"] = event.zone
    category = rules.category(event.category)
    expires_us = category.expires_us if event.expires_in_us is None else event.expires_in_us
    return Job(str(index), category.lane, b"", json.dumps(meta).encode(), expires_us)


# One look takes 25 of a backlog, and leaves of thirty places one to who came second, in another backlog.
@settings(max_examples=examples(150))
@example(
    rules=Policies(Policy((Window(30, interval_us=20 * U),)), categories={"news": Category("news")}),
    trace=[Event(0, "news"), Event(0), *[Event(0, "news")] * 40],
    latency_us=0,
)
# What has expired behind others gives its place to none of its collapse id, and is not counted by one.
@example(
    rules=Policies(Policy((), 30 * U), categories={"news": Category("news", when_blocked="collapse")}),
    trace=[
        *[Event(0, "news")] * 2,
        Event(U, "news", expires_in_us=U, collapse_id="one"),
        Event(3 * U, "news", collapse_id="one"),
    ],
    latency_us=0,
)
# Each send may bring another backlog of the same lane to the front: here a high priority's.
@example(
    rules=Policies(Policy((Window(3, interval_us=180 * U),)), categories={"news": Category("news")}),
    trace=[*[Event(0)] * 2, *[Event(0, "news")] * 3, Event(30 * U, "news", high=True), Event(30 * U, high=True)],
    latency_us=0,
)
@given(rules=rule_sets(), trace=traces, latency_us=st.one_of(st.just(0), st.integers(1, 15).map(U.__mul__)))
def test_the_replay_is_the_limiter(redis: Redis, rules: Policies, trace: list[Event], latency_us: int) -> None:
    """Each goes in the same µs as by the limiter itself, or expires where it expires there."""
    replay = Replay(rules, "ann", trace, latency_us)
    replay.run()
    assert replay.sent == by_the_scripts(redis, rules, trace, latency_us)


mutes = st.builds(
    Mute,
    st.integers(1, 90).map(lambda n: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n * U)),
    st.sampled_from([None, ("default",), tuple(LANE_OF)[:1], tuple(LANE_OF)]),
    st.sampled_from(["hold", "hold", "drop"]),
)


@settings(max_examples=examples(60))
@given(rules=rule_sets(), trace=traces, muted=st.lists(mutes, min_size=1, max_size=3))
def test_mutes_hold_and_drop_as_the_limiter_does(
    redis: Redis, rules: Policies, trace: list[Event], muted: list[Mute]
) -> None:
    """What a user has muted goes at the end of it, or is dropped, in the same µs as by the limiter."""
    chosen = Preferences(mutes=tuple(muted))
    replay = Replay(rules.under({"ann": chosen}), "ann", trace)
    replay.run()
    assert replay.sent == by_the_scripts(redis, rules, trace, 0, chosen)


@settings(max_examples=examples(100))
@given(rules=rule_sets(), trace=traces)
def test_what_decides_is_a_rule_in_force(rules: Policies, trace: list[Event]) -> None:
    """An explanation changes nothing, and names a rule of the user or of the category for what waited at its head."""
    replay, explained = Replay(rules, "ann", trace), Replay(rules, "ann", trace, explained=True)
    replay.run()
    explained.run()
    assert explained.sent == replay.sent
    for event, sent, decided in zip(trace, explained.sent, explained.decided, strict=True):
        assert not (decided and sent == event.at_us)
        if decided:
            category = rules.category(event.category)
            of_both = {"user": rules.for_user("ann"), category.name: category.policy}
            named = {f"{scope} {part}" for scope, policy in of_both.items() for part in str(policy).split(", ")}
            assert decided in named
