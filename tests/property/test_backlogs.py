"""Backlogs and wake-ups: the Lua against what the plain model allows."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.notification import Device
from notifier.queue import backlogs, calls
from notifier.queue.calls import DeadToken, Job, Settlement, State
from notifier.queue.retention import Retention
from notifier.queue.walk import Kind
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from tests.harness.asking import InRedis
from tests.property.amount import examples
from tests.property.model import violations
from tests.property.world import KEEP, LANES, LEASE, S, World

M = 60 * S
USERS = ("ann", "bob", "cy d}:chat")
CATEGORIES = {"chat": "urgent", "news": "default", "offers": "bulk", "default": "default", "left": "bulk"}

# Redis forgets by its own clock what the rules cannot ask for by the test's: no rule is shorter than a minute.
spans = st.one_of(st.sampled_from([M, 2 * M]), st.integers(M, 4 * M))
policies = st.builds(
    Policy,
    st.lists(st.builds(Window, st.integers(1, 4), interval_us=spans), max_size=2).map(tuple),
    st.one_of(st.just(0), st.integers(M, 2 * M)),
)

never = st.just(value=False)
seldom = st.sampled_from([False, False, True])
blocked = st.sampled_from(["queue", "queue", "collapse", "drop"])


@st.composite
def rule_sets(draw: st.DrawFn, bypass: st.SearchStrategy[bool]) -> Policies:
    """Rules for everyone, other ones for bob, and some categories; 'left' is no longer configured."""
    some = draw(st.sets(st.sampled_from(["chat", "news", "offers", "default"])))
    categories = {
        name: Category(name, policy=draw(policies), bypass=draw(bypass), when_blocked=draw(blocked))
        for name in sorted(some)
    }
    return Policies(draw(policies), users={"bob": draw(policies)}, categories=categories)


moments = st.one_of(st.sampled_from([1, S, LEASE - 1, LEASE, LEASE + 1, M]), st.integers(1, 3 * M))
enqueues = st.tuples(
    st.just("enqueue"),
    st.integers(1, 6),
    st.sampled_from(["ann", "ann", *USERS]),
    st.sampled_from([*CATEGORIES.items(), *CATEGORIES.items(), ("chat", "bulk"), ("offers", "urgent")]),
    seldom,
    st.one_of(st.none(), st.none(), st.none(), moments),
    st.one_of(st.just(0), st.just(0), st.just(0), moments),
    st.sampled_from([None, None, "one", "other"]),
    st.sampled_from([(), (), ("thread-1",), ("thread-1", "thread-2")]),
)
kinds = st.builds(
    Kind,
    category=st.sampled_from([None, None, *CATEGORIES]),
    collapse_id=st.sampled_from([None, None, "one"]),
    tag=st.sampled_from([None, "thread-1", "thread-2", "thread-3"]),
)
outcomes = st.sampled_from(["delivered", "delivered", "delivered", "failed", "unknown", "later", "wait", "backlog"])
rounds = st.tuples(st.just("round"), st.sampled_from([1, 2, 3, 50]))
settles = st.tuples(st.just("settle"), st.integers(0, 9), outcomes, st.booleans(), moments)
steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    rounds,
    settles,
    settles,
    st.tuples(st.just("advance"), moments),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
    st.tuples(st.just("cancel_of"), st.sampled_from(USERS), kinds, st.sampled_from([1, 2, 250])),
)
schedules = st.lists(steps, min_size=20, max_size=60)


def carry_out(world: World, verb: str, args: list[Any]) -> None:
    if verb == "enqueue":
        copies, user, (category, lane), high, expires_in_us, send_in_us, collapse_id, tags = args
        times = {"expires_in_us": expires_in_us, "send_in_us": send_in_us}
        for _ in range(copies):
            world.enqueue(user, category, lane, high=high, collapse_id=collapse_id, tags=tags, **times)
    elif verb == "round":
        world.round(*args)
    elif verb == "advance":
        world.now += args[0]
    elif verb == "settle" and world.flights:
        settle(world, *args)
    elif verb == "cancel" and world.told:
        world.cancel(list(world.told)[args[0] % len(world.told)])
    elif verb == "cancel_of":
        world.cancel_of(*args)


def settle(world: World, index: int, outcome: str, early: bool, wait_us: int) -> None:
    flight = world.flights[index % len(world.flights)]
    left = flight.leased.left_us
    if flight.leased.dropped:
        world.settle(flight, "dropped", reached=False, word="dropped", wait_us="when_blocked")
        return
    if left is not None and left <= 0:
        world.settle(flight, "failed", reached=False, word="expired")
        return
    reached = outcome in ("delivered", "unknown")
    if reached:
        # A worker hands nothing over once its lease has ended; the answer may take any time.
        last = min(world.now, flight.until_us)
        world.received(flight, flight.since_us if early else last)
    if outcome == "delivered":
        world.settle(flight, "delivered", reached=True, word="delivered")
    elif outcome == "failed":
        gone = (DeadToken(Device("apns", "ab" * 32), "driver" if early else None, "Unregistered", wait_us),)
        world.settle(flight, "failed", reached=False, word="failed", gone=gone * (not early or wait_us % 2))
    elif outcome == "backlog":
        world.settle(flight, "backlog", reached=False)
    else:
        state: State = "wait" if outcome == "wait" else "later"
        gone = (DeadToken(Device("fcm", "registration"), None, "UNREGISTERED"),) * (wait_us % 3)
        world.settle(flight, state, reached=reached, word="retried", wait_us=wait_us, gone=gone)


def settle_all(world: World) -> None:
    """All that is in flight reaches its users; the workers that lost their lease learn it."""
    for flight in list(world.flights):
        settle(world, world.flights.index(flight), "delivered", early=False, wait_us=0)


def drain(world: World) -> None:
    """Work on until nothing waits, sleeping from one thing due to the next as an idle worker does."""
    for _ in range(40 + 6 * len(world.told)):
        if world.round() or world.flights:
            settle_all(world)
            continue
        pulled = world.pull()
        assert not world.taken_at_once
        if pulled.next_us is None:
            return
        assert pulled.next_us > world.now
        world.now = pulled.next_us
    raise AssertionError("it never came to an end")


@given(rule_sets(seldom), schedules)
@settings(max_examples=examples(150))
def test_every_schedule_ends_well(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Laws 1 to 5, at every step: Redis does what the plain model allows.

    Each job is in one place, none goes before the rules let it, none is told to wait longer than they say,
    each goes in its order, a lost lease changes nothing, each dead token is told once; and in the end every job
    has ended, once.
    """
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
    drain(world)
    world.check()
    ended = [world.ended[word] for word in ("delivered", "failed", "expired", "cancelled", "superseded", "dropped")]
    assert sum(ended) == len(world.told)


@given(rule_sets(never), schedules)
@settings(max_examples=examples(150))
def test_no_user_is_ever_burst(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Law 1, where it counts: what the provider received keeps every window and every gap.

    It may take each at any moment of its lease, also from a worker that dies and never tells.
    """
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
    drain(world)
    for user, receipts in world.receipts.items():
        assert not violations(rules.for_user(user), [at for at, _ in receipts])
        for category in CATEGORIES:
            policy = rules.category(category).policy
            assert not violations(policy, [at for at, name in receipts if name == category])


@given(rule_sets(never), st.lists(enqueues, min_size=5, max_size=20))
@settings(max_examples=examples(200))
def test_wake_ups_open_at_the_first_moment_the_rules_admit(
    redis: Redis, rules: Policies, arrivals: list[tuple[Any, ...]]
) -> None:
    """Law 3: once all that is due is handled, each user's wake-up is exactly where the rules admit some head."""
    world = World(redis, rules)
    for verb, *args in arrivals:
        carry_out(world, verb, args)
    for _ in range(200):
        while world.round() or world.flights:
            settle_all(world)
        due = world.due_by_the_rules()
        wake_ups = world.wake_ups()
        # A head that expires has its wake-up at its expiry, and may have been overtaken since: a look in vain, no more.
        early = {user for user in due if world.has_expiring(user)}
        assert all(wake_ups[user] <= due[user] for user in early)
        assert {user: wake_ups[user] for user in due.keys() - early} == {user: due[user] for user in due.keys() - early}
        pulled = world.pull()
        if pulled.next_us is None:
            break
        world.now = pulled.next_us
    assert sum(world.ended.values()) == len(world.told)
    assert world.seen["dispatches"] == len(world.told) - world.ended["superseded"]


def test_no_herd(redis: Redis) -> None:
    """Law 3: 200 notifications of one user in three lanes cost 200 dispatches, and no look in vain but the first."""
    world = World(redis, Policies(Policy((Window(10, interval_us=S),))))
    for i in range(200):
        world.enqueue("ann", ["chat", "news", "offers"][i % 3], ["urgent", "default", "bulk"][i % 3])
    drain(world)
    assert world.ended == {"delivered": 200}
    assert world.now == 1_700_000_000 * S + 19 * S
    assert world.seen["dispatches"] == 200
    assert world.seen["looks"] <= 3


def test_a_burst_is_dropped_at_once(redis: Redis) -> None:
    """Of more than one look takes, in a category that drops, one goes, and the others end at that very moment."""
    offers = Category("offers", "bulk", Policy(gap_us=M), when_blocked="drop")
    world = World(redis, Policies(categories={"offers": offers}))
    for _ in range(60):
        world.enqueue("ann", "offers", "bulk")
    begun = world.now
    drain(world)
    assert world.ended == {"delivered": 1, "dropped": 59}
    assert world.now == begun


def test_lower_lanes_do_not_starve(redis: Redis) -> None:
    """Every eighth send of a user in several lanes comes from the lowest, the other seven from the most urgent."""
    world = World(redis, Policies(Policy(gap_us=S)))
    world.enqueue("ann", "urgent", "urgent")
    assert world.round() == 1  # it goes as it comes, and what follows waits
    settle_all(world)
    for lane in ("urgent", "bulk"):
        for _ in range(20):
            world.enqueue("ann", lane, lane)
    assert world.round() == 0
    world.now += S
    order: list[str] = []
    while len(order) < 24:
        assert world.round() == 1
        order.append(world.flights[0].leased.category)
        settle_all(world)
        world.now += S
    assert [i for i, category in enumerate(order) if category == "bulk"] == [7, 15, 22, 23]


def test_a_worker_taken_for_dead_settles_nothing(redis: Redis) -> None:
    """Law 2: who lost the lease changes nothing, also where another worker has delivered the job since."""
    world = World(redis, Policies(Policy(gap_us=M)))
    world.enqueue("ann", "chat", "urgent")
    assert world.round() == 1
    world.now += LEASE + M
    assert world.round() == 0, "the rules count it from when it is put back"
    world.now += M
    assert world.round() == 1
    lost, holder = world.flights
    assert lost.lost
    assert world.settle(holder, "delivered", reached=True, word="delivered")
    assert not world.settle(lost, "delivered", reached=True, word="delivered")
    world.check()


def test_who_finds_no_room_keeps_the_place(redis: Redis) -> None:
    """Who found no room is looked at before all whose wake-ups fall due later, whatever their names."""
    world = World(redis, Policies(Policy(gap_us=S)))
    for user in ("bob", "zed", "ann"):
        for _ in range(2):
            world.enqueue(user, "chat", "urgent")
        assert world.round() == 1
        assert world.settle(world.flights[-1], "delivered", reached=True, word="delivered")
        world.now += 1
    world.now += S
    assert world.round(1) == 1
    world.now += 1
    assert world.round() == 2
    assert [flight.leased.user for flight in world.flights] == ["bob", "zed", "ann"]
    world.check()


def look(redis: Redis, world: World, most: int = 50) -> calls.Pulled:
    """Pull what the world's own producer did not enqueue."""
    worker = calls.Worker(lanes=LANES, lease_us=LEASE, clock=str(world.now))
    return run(redis, calls.pull(worker, calls.Room(most), world.rules))


def read(redis: Redis, world: World) -> list[str]:
    """Say of all that is to be read that it is no notification; returns who came before the first of it."""
    pulled = look(redis, world)
    assert pulled.rq_jobs == []
    run(redis, backlogs.steer([(job.job_id, "") for job in pulled.unread]))
    return [leased.user for leased in pulled.leased]


def test_what_is_no_notification_goes_its_own_way(redis: Redis) -> None:
    """A job whose meta names no user is leased to the caller, and goes back to the head of its queue."""
    world = World(redis, Policies())
    for job_id, meta in (("other", b"{}"), ("null", b'{"user": "ann", "category": null}')):
        job = Job(job_id, "default", b"", meta)
        call = calls.enqueue([job], dedupe_for_us=S, stamp="", clock=str(world.now))
        assert run(redis, call) == [job_id]
    read(redis, world)
    assert look(redis, world, most=1).rq_jobs == [("other", "1")]
    settlement = Settlement("other", "1", "", "", reached=False, state="queue")
    back = calls.settle(
        [settlement], world.rules, calls.Worker(name="w", keep=Retention(KEEP, KEEP, KEEP), clock=str(world.now))
    )
    assert run(redis, back) == [True]
    assert look(redis, world).rq_jobs == [("other", "2"), ("null", "3")]


def test_one_dedupe_key_is_one_notification(redis: Redis) -> None:
    """Two jobs with one dedupe key are one; the same call again is the same job."""
    world, meta = World(redis, Policies()), b'{"user": "ann", "category": "default"}'
    jobs = [Job(job_id, "default", b"", meta, dedupe="{ann}:k") for job_id in ("a", "b", "a")]
    call = calls.enqueue(jobs, dedupe_for_us=M, stamp="", clock=str(world.now))
    assert run(redis, call) == ["a", "a", "a"]
    assert look(redis, world).taken == 1


def test_what_is_given_back_lets_what_waits_go_at_once(redis: Redis) -> None:
    """Law 3: nothing is left to wait for, in the category's rules neither."""
    chat = Category("chat", "urgent", Policy((Window(1, interval_us=M),)))
    world = World(redis, Policies(Policy(gap_us=M), categories={"chat": chat}))
    for _ in range(2):
        world.enqueue("ann", "chat", "urgent")
    assert world.round() == 1
    settle_all(world)
    assert world.round() == 0
    assert InRedis(redis, clock=str(world.now)).give_all_back("ann", "chat") == 1
    world.sends.clear()
    assert world.round() == 1


def test_meta_that_is_no_text_is_no_notification(redis: Redis) -> None:
    """JSON is UTF-8: what cannot be read as that goes RQ's way, and no reply of ours breaks on it."""
    world = World(redis, Policies())
    good = ["André", "Zoë", "日本", "한국", "😀", "\U0010ffff", "\ud7ff\ue000"]
    bad = [b"Andr\xe9", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\xc3\xa9\x82\xac", b"a\x80"]
    metas = [json.dumps({"user": user, "category": "default"}, ensure_ascii=False).encode() for user in good]
    metas += [b'{"user": "%s", "category": "default"}' % user for user in bad]
    metas += [b'{"user": "ann", "category": "default", "zone": "%s"}' % zone for zone in bad]
    jobs = [Job(f"job{n}", "default", b"", meta) for n, meta in enumerate(metas)]
    call = calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(world.now))
    assert run(redis, call) == [job.id for job in jobs]
    users = read(redis, world)
    pulled = look(redis, world)
    assert sorted([*users, *(leased.user for leased in pulled.leased)]) == sorted(good)
    assert [job_id for job_id, _ in pulled.rq_jobs] == [f"job{n}" for n in range(len(good), len(metas))]
