"""The replay of a preview against the limiter's twin in memory, which others hold equal to the scripts in Redis."""

from __future__ import annotations

import json
from dataclasses import replace
from heapq import heappop, heappush

from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifier.limiter import MemoryLimiter, MemoryLines
from notifier.limiter.lines import Job, Leased, Settlement
from notifier.policies import Policies
from notifier.policy import LANES, Burst, Category, Digest, Policy, Window
from notifier.preview.replay import DROPPED, EXPIRED, SUPERSEDED, Replay
from notifier.preview.trace import Event

LEASE = 1_000_000
LANE_OF = {"chat": "urgent", "news": "default", "offers": "bulk", "default": "default"}

# Times are drawn from so few that gates, arrivals, deadlines and settlements often fall upon the same µs.
spans = st.integers(1, 30)
limits = st.one_of(st.integers(1, 4), st.integers(20, 60))
policies = st.builds(
    Policy,
    st.lists(st.builds(Window, limits, spans, st.sampled_from([0, 0, 0, 1])), max_size=2).map(tuple),
    st.one_of(st.just(0), st.integers(1, 12)),
    st.sampled_from([None, None, None, Burst(1, 9), Burst(3, 7), Burst(20, 2)]),
)
digests = st.builds(Digest, st.integers(2, 5), st.integers(1, 40))
expiries = st.one_of(st.none(), st.none(), st.integers(1, 40))
events = st.builds(
    Event,
    st.integers(0, 60),
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


def by_the_twin(rules: Policies, trace: list[Event], latency_us: int) -> list[int]:
    """When each went, by the twin: enqueue, settle, pull and admit at every µs at which something may change."""
    now = 0
    twin = MemoryLines(rules, MemoryLimiter(lambda: now))
    sent = [EXPIRED] * len(trace)
    arrivals = list(enumerate(trace))
    flights: list[tuple[int, int, Leased]] = []
    gate: int | None = 0
    while arrivals or flights or gate is not None:
        nexts = [event.at_us for _, event in arrivals[:1]] + [at for at, _, _ in flights[:1]]
        now = max(now, min(nexts + [gate] * (gate is not None)))
        while flights and flights[0][0] <= now:
            settle(twin, heappop(flights)[2], reached=True)
        while arrivals and arrivals[0][1].at_us <= now:
            twin.enqueue([job(rules, *arrivals.pop(0))])
        pulled = twin.pull(most=1000, lease_us=LEASE, lanes=LANES, keep_failed_us=LEASE)
        for leased in twin.admit(pulled.users, most=1000, lease_us=LEASE, lanes=LANES).leased:
            if leased.dropped or (leased.left_us is not None and leased.left_us <= 0):
                settle(twin, leased, reached=False)
                continue
            sent[int(leased.job_id)] = now
            heappush(flights, (now + latency_us, int(leased.permit), leased))
        gates = [entry[0] for lane in LANES if (entry := twin._gates.of_lane(lane).first()) is not None]
        gate = min(gates, default=None)
    assert sum(twin.totals[word] for word in ("delivered", "expired", "superseded", "dropped")) == len(trace)
    ends = {"superseded": SUPERSEDED, "dropped": DROPPED}
    return [ends.get(twin.state(str(n)) or "", at) for n, at in enumerate(sent)]


def settle(twin: MemoryLines, leased: Leased, *, reached: bool) -> None:
    word = "delivered" if reached else "dropped" if leased.dropped else "expired"
    state = "delivered" if reached else "dropped" if leased.dropped else "failed"
    done = Settlement(leased.job_id, leased.permit, leased.user, leased.category, reached, state, word)
    assert twin.settle([done], keep_failed_us=LEASE, keep_delivered_us=1, keep_feedback_us=1) == [True]


def job(rules: Policies, index: int, event: Event) -> Job:
    meta = {"user": "ann", "category": event.category, **({"priority": "high"} if event.high else {})}
    if event.collapse_id is not None:
        meta["collapse_id"] = event.collapse_id
    if event.zone is not None:
        meta["zone"] = event.zone
    category = rules.category(event.category)
    expires_us = category.expires_us if event.expires_in_us is None else event.expires_in_us
    return Job(str(index), category.lane, b"", json.dumps(meta).encode(), expires_us)


# One look takes 25 of a line, and leaves of thirty places one to who came second, in another line.
@settings(max_examples=400)
@example(
    rules=Policies(Policy((Window(30, 20),)), categories={"news": Category("news")}),
    trace=[Event(0, "news"), Event(0), *[Event(0, "news")] * 40],
    latency_us=0,
)
@given(rules=rule_sets(), trace=traces, latency_us=st.one_of(st.just(0), st.integers(1, 15)))
def test_the_replay_is_the_limiter(rules: Policies, trace: list[Event], latency_us: int) -> None:
    """Each goes in the same µs as by the limiter itself, or expires where it expires there."""
    replay = Replay(rules, "ann", trace, latency_us)
    replay.run()
    assert replay.sent == by_the_twin(rules, trace, latency_us)


@settings(max_examples=100)
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
