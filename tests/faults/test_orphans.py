"""What was in flight with workers that died: nothing goes past it, in order and in no rule, until it is put back."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis

from notifier import Device, Notification, Notifier
from notifier.queue import calls
from notifier.queue.calls import Leased, Pulled, Settlement
from notifier.queue.in_flight import renew
from notifier.queue.retention import Retention
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from tests.faults.consistency import assert_consistent
from tests.harness.take import enter

S = 1_000_000
LEASE_US = 10 * S
LANES = ("urgent", "default", "bulk")
KEPT = Retention(10**12, 10**12, 10**12)


class Scene:
    """Redis, and workers that are no more than the calls they make, by the test's clock."""

    def __init__(self, redis: Redis, rates: str, fcm: str = "client: console") -> None:
        self.redis: Any = redis
        settings = parse_settings(f"{{{rates}, providers: {{fcm: {{{fcm}}}}}}}")
        self.notifier = Notifier(redis, settings)
        self.rules = RuleTable(settings.policies())
        seconds, micros = self.redis.time()
        self.now = (seconds - 3600) * S + micros  # so that the audit, by Redis's own clock, sees no time of the future
        self._numbers = count()

    def accept(self, user: str, category: str = "default") -> None:
        title = f"{next(self._numbers):04}"
        device = Device("fcm", title * 10)
        self.notifier.send(Notification(user=user, devices=[device], title=title, category=category), job_id=title)

    def pull(self, worker: str, most: int = 50) -> Pulled:
        caller = calls.Worker(name=worker, lanes=LANES, lease_us=LEASE_US, clock=str(self.now))
        return run(self.redis, calls.pull(caller, calls.Room(most), self.rules))

    def take_all(self, worker: str) -> list[Leased]:
        """All that may go now; it stays in flight."""
        taken: list[Leased] = []
        for _ in range(1000):
            pulled = self.pull(worker)
            taken += pulled.leased
            if not (pulled.taken or pulled.orphans or pulled.leased):
                return taken
        raise AssertionError("there was no end")

    def settle(self, worker: str, *flights: Leased, state: str = "delivered") -> list[bool]:
        settlements = [
            Settlement(f.job_id, f.permit, f.user, f.category, True, state, "" if state == "backlog" else "delivered")  # type: ignore[arg-type]
            for f in flights
        ]
        call = calls.settle(settlements, self.rules, calls.Worker(name=worker, keep=KEPT, clock=str(self.now)))
        return run(self.redis, call)

    def renew(self, worker: str, *flights: Leased, answered: str = "", lease_us: int = LEASE_US) -> list[bool]:
        pairs = [(flight, answered) for flight in flights]
        return run(self.redis, renew(pairs, lease_us=lease_us, claimant=worker, clock=str(self.now)))


def drain(scene: Scene, worker: str) -> Iterator[Leased]:
    """What this worker gets, one by one, each delivered at once; orphans are put back as they are found."""
    for _ in range(10_000):
        pulled = scene.pull(worker)
        for leased in pulled.leased:
            yield leased
            scene.now += 50
            assert scene.settle(worker, leased) == [True]
        for orphan in pulled.orphans:
            scene.now += 50
            assert scene.settle(worker, orphan, state="backlog") == [True]
        if not (pulled.taken or pulled.leased or pulled.orphans):
            if pulled.next_us is None:
                return
            scene.now = max(scene.now + 1, pulled.next_us)
    raise AssertionError("there was no end")


@pytest.mark.parametrize("rates", ["user: {}", "user: {gap: 2ms}", "user: {windows: [1000/1m]}"])
@pytest.mark.parametrize(("leases", "users"), [(50, 25), (50, 1), (400, 25), (400, 1), (400, 400)])
def test_order_survives_a_crash(redis: Redis, rates: str, leases: int, users: int) -> None:
    """Law 4: a worker dies with hundreds in flight; the others hand them over in the order of acceptance."""
    scene = Scene(redis, rates)
    for n in range(2 * leases):
        scene.accept(f"u{n % users}")
    held: list[Leased] = []
    while len(held) < leases:
        pulled = scene.pull("dead", min(50, leases - len(held)))
        if not (pulled.taken or pulled.leased):
            break  # with a gap each user has one in flight
        held += pulled.leased
    assert len(held) == min(leases, users if "gap" in rates else leases)
    scene.now += LEASE_US - 1
    early = calls.Worker(name="early", lanes=LANES, lease_us=LEASE_US, clock=str(scene.now))
    enter(redis, early, calls.Room(50))  # whoever was about to send when the leases ended
    scene.now += 1
    assert scene.pull("early").leased == []

    came = defaultdict(list)
    for leased in drain(scene, "heir"):
        came[leased.user].append(leased.job_id)
    assert sum(map(len, came.values())) == 2 * leases
    assert all(order == sorted(order) for order in came.values())
    assert_consistent(redis)


def test_a_user_with_an_orphan_is_closed(redis: Redis) -> None:
    """Laws 1 and 4: nothing of the user's goes while an orphan may still be read, but for what bypasses elsewhere."""
    bypassing = "alarm: {lane: default, bypass: true}, siren: {lane: default, bypass: true}"
    scene = Scene(redis, f"user: {{gap: 1s}}, categories: {{default: {{lane: default}}, {bypassing}}}")
    scene.accept("ann", "alarm")
    (alarm,) = scene.take_all("dead")
    scene.now += LEASE_US
    for category in ("default", "alarm", "siren"):
        scene.accept("ann", category)
    scene.accept("bob")
    pulled = scene.pull("heir")
    (orphan,) = pulled.orphans
    assert (orphan.job_id, orphan.permit, orphan.crashes) == (alarm.job_id, alarm.permit, 1)
    went = pulled.leased
    assert {(leased.user, leased.category) for leased in went} == {("ann", "siren"), ("bob", "default")}
    assert all(scene.settle("heir", *went))
    for _ in range(5):  # however long that takes: its holder renews it, and Redis forgets nothing of it meanwhile
        scene.now += LEASE_US // 2
        assert scene.renew("heir", orphan) == [True]
        assert scene.take_all("other") == []
    assert_consistent(redis)
    assert scene.settle("heir", orphan, state="backlog") == [True]
    settled = scene.now
    went = scene.take_all("other")
    assert [leased.job_id for leased in went] == [alarm.job_id, "0002"], "law 4: the older one first"
    scene.now = settled + S - 1
    assert scene.take_all("other") == []


def test_rules_count_an_orphan_from_its_proof_on(redis: Redis) -> None:
    """Law 1: where all workers were gone for longer than any rule, the user's rules count from the proof."""
    scene = Scene(redis, "user: {gap: 1s}")
    scene.accept("ann")
    (held,) = scene.take_all("dead")
    scene.accept("ann")
    scene.now += 100 * LEASE_US
    redis.delete("notifier:sent:{ann}")  # as Redis does by itself when no rule can ask for it any more
    (orphan,) = scene.pull("heir").orphans
    assert orphan.job_id == held.job_id
    assert scene.take_all("heir") == []
    scene.now += 3 * S
    assert scene.settle("heir", orphan, state="backlog") == [True]
    scene.now += S - 1
    assert scene.take_all("heir") == []
    scene.now += 1
    assert [leased.job_id for leased in scene.take_all("heir")] == [held.job_id]


def test_an_orphan_whose_holder_dies_has_another(redis: Redis) -> None:
    """It goes from one to the next, blamed for no further death; what is deleted meanwhile closes nobody for ever."""
    scene = Scene(redis, "user: {gap: 1s}")
    scene.accept("ann")
    scene.accept("ann")
    scene.take_all("dead")
    for heir in ("one", "two", "three"):
        scene.now += LEASE_US
        (orphan,) = scene.pull(heir).orphans
        assert orphan.crashes == 1
    redis.delete(f"rq:job:{orphan.job_id}")
    scene.now += LEASE_US
    assert scene.pull("four").orphans == []
    scene.now += 60 * S
    assert len(scene.take_all("four")) == 1


def test_what_is_given_up_is_found_at_once(redis: Redis) -> None:
    """A worker that ends leaves what is unproven to the next, at once; it is no crash, and stays in flight."""
    scene = Scene(redis, "user: {gap: 1s}")
    scene.accept("ann")
    scene.accept("ann")
    (held,) = scene.take_all("leaving")
    assert scene.renew("leaving", held, lease_us=0) == [True]
    assert scene.notifier.cancel(held.job_id) == "sending"
    (orphan,) = scene.pull("heir").orphans
    assert (orphan.job_id, orphan.crashes) == (held.job_id, 0)
    assert scene.take_all("heir") == []
    assert scene.settle("leaving", held) == [True], "who was not dead may still say what became of it"
    assert scene.settle("heir", orphan, state="backlog") == [False]


def test_what_nobody_answered_for_stays_in_flight(redis: Redis) -> None:
    """Law 1: a renewed lease keeps its permit ahead, in each rule that counts it, however long it takes."""
    categories = "{default: {lane: default}, chat: {lane: default, windows: [1/3s]}}"
    scene = Scene(redis, f"user: {{windows: [2/3s]}}, categories: {categories}")
    scene.accept("ann", "chat")
    scene.accept("ann", "chat")
    scene.accept("ann")
    scene.accept("ann")
    flights = scene.take_all("w")
    assert len(flights) == 2
    chat = next(leased for leased in flights if leased.category == "chat")
    other = next(leased for leased in flights if leased is not chat)
    assert scene.settle("w", other) == [True]
    for _ in range(20):
        scene.now += LEASE_US // 3
        assert scene.renew("w", chat) == [True]
        for leased in scene.take_all("w"):  # the window has room for one beside it
            assert leased.category == "default"
            assert scene.settle("w", leased) == [True]
    ttl = redis.pttl("notifier:sent:{ann}:chat")
    assert ttl > (LEASE_US + 3 * S) // 1000 - 5_000
    assert scene.settle("w", chat) == [True]
    scene.now += 3 * S - 1
    assert scene.take_all("w") == []
    scene.now += 1
    assert [leased.category for leased in scene.take_all("w")] == ["chat"]


def test_of_what_is_given_up_devices_that_answered_are_free(redis: Redis) -> None:
    """Whatever becomes of the rest, what one device answered took place by now: no send to it is under way."""
    scene = Scene(redis, "user: {gap: 1s}", "client: console, limits: {device: [1/1m]}")
    devices = [Device("fcm", f"{name * 20}") for name in ("a", "b")]
    scene.notifier.send(Notification("ann", devices, title="hello"), job_id="both")
    (held,) = scene.take_all("leaving")
    before = {key for key in redis.keys("notifier:device:*") if redis.zscore(key, held.permit)}
    assert len(before) == 2
    scene.now += S
    assert scene.renew("leaving", held, answered='{"0": "delivered"}', lease_us=0) == [True]
    (orphan,) = scene.pull("heir").orphans
    assert scene.settle("heir", orphan, state="backlog") == [True]
    assert [redis.zscore(key, held.permit) for key in before] == [scene.now, scene.now]
