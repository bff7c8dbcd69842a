"""Circuits and the providers' limits: the Lua against what the plain model allows."""

import json
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.queue import calls
from notifier.queue.calls import Leased, Pulled, State
from notifier.queue.circuits import circuit
from notifier.queue.retention import Retention
from notifier.rules.category import Category, PlatformLimits
from notifier.rules.evaluator import Sends
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.records import CircuitFields
from notifier.scripts.rule_table import RuleTable
from tests.property.amount import examples
from tests.property.model import violations
from tests.property.test_backlogs import moments, policies, seldom
from tests.property.world import LEASE, START, Flight, S, World

M = 60 * S
USERS = ("ann", "bob")
CATEGORIES = {"chat": "urgent", "news": "default", "alarm": "urgent"}
ROUTES = ("apns", "fcm")
WORKERS = ("w", "v")
FAR = 4_102_444_800 * S
LOWERED = 2**51  # from here on stand the background pushes that have stepped behind alerts
UNNEEDED = 600 * S  # so long a circuit stays open that nobody needs
OTHERS = S // 5  # so soon a worker that had no trouble itself may probe
RECENT, DOUBTED = 5 * S, 600 * S  # so long a success counts, and a doubt


def written(targets: list[str]) -> str:
    """Devices as `platform:kind:device`, in the form that the scripts read."""
    parts = [target.split(":") for target in targets]
    return f"{' '.join(['-', *(f'{platform}:{kind}' for platform, kind, _ in parts)])}|{' '.join(p[2] for p in parts)}"


def parsed(text: str) -> list[str]:
    """What `written` wrote."""
    kinds, _, devices = text.partition("|")
    return [f"{kind}:{device}" for kind, device in zip(kinds.split(" ")[1:], devices.split(" "), strict=True)]


def routes_of(targets: list[str]) -> set[str]:
    """By which routes these devices are reached."""
    return {target.partition(":")[0] for target in targets}


@dataclass
class Circuit:
    """A route that is down. probe_us: before this no probe goes. failing: the workers that had trouble."""

    probe_us: int
    failing: set[str]


@dataclass
class Routed(World):
    """A world whose jobs have devices: what was sent to each as the limits judge it, and what each received.

    circuits: of the routes that are open. mended: the routes that ever closed again. projects: when something went by
    FCM, for each device.
    """

    devices: dict[str, Sends] = field(default_factory=dict)
    full: dict[str, int] = field(default_factory=dict)
    taken: dict[str, list[int]] = field(default_factory=dict)
    circuits: dict[str, Circuit] = field(default_factory=dict)
    mended: set[str] = field(default_factory=set)
    reached: dict[tuple[str, str], int] = field(default_factory=dict)
    doubted: dict[tuple[str, str], int] = field(default_factory=dict)
    projects: list[int] = field(default_factory=list)
    stride: ClassVar[int] = 7919

    def change(self, worker: str, route: str, seen: str) -> str:
        """Tell what a worker saw of a route, without jitter."""
        probe = {"kind": "unreachable", "first_us": S, "max_us": 10 * S}
        call = circuit(CircuitFields(str(self.now), worker, route, seen, **probe))
        said = run(self.redis, call)
        assert said == {"up": self._up, "down": self._down, "retry": self._retry}[seen](worker, route)
        return said

    def _up(self, worker: str, route: str) -> str:
        self.doubted.pop((route, worker), None)
        self.reached[route, worker] = self.now
        if route not in self.circuits:
            return ""
        for other in self.circuits.pop(route).failing - {worker}:
            self.doubted[route, other] = self.now
        self.mended.add(route)
        return "closed"

    def _down(self, worker: str, route: str) -> str:
        self.reached.pop((route, worker), None)
        if route in self.circuits:
            self.circuits[route].failing.add(worker)
            return ""
        others = [at for (of, other), at in self.reached.items() if (of, other != worker) == (route, True)]
        if self.doubted.get((route, worker), 0) > self.now - DOUBTED and max(others, default=0) > self.now - RECENT:
            return "alone"
        self.circuits[route] = Circuit(self.now + OTHERS, {worker})
        return "opened"

    def _retry(self, _worker: str, route: str) -> str:
        if route in self.circuits:
            self.circuits[route].probe_us = self.now
        return ""

    def pull(self, most: int = 50, worker: str = "w") -> Pulled:
        """See `World`; and the worker is told which circuits are open."""
        pulled = super().pull(most, worker)
        if pulled.shut is None:  # more has lapsed than this worker had room for: it is to come again at once
            assert (pulled.leased, pulled.taken, pulled.next_us) == ([], 0, pulled.now_us)
        else:
            for route in self.circuits.keys() - pulled.shut:
                assert self.circuits.pop(route).probe_us + UNNEEDED <= self.now
                assert not self.redis.exists(f"notifier:waiting_for_route:{route}")
            assert pulled.shut == set(self.circuits)
        return pulled

    def _put_back(self, orphan: Leased) -> None:
        """See `World`; what its devices were counted for is later, too."""
        flight = next(f for f in self.flights if f.leased.permit == orphan.permit and not f.lost)
        open_to = self.asked(flight)
        super()._put_back(orphan)
        for _, target in open_to:
            device = target.rpartition(":")[2]
            if device in self.devices:
                self.devices[device].move(orphan.permit, self.now)
            if ":c:" in target and device in self.full:
                self.full[device] += self.now - flight.until_us + (0 if self.counted_all(flight) else LEASE)

    def step_aside(self, job_id: str) -> None:
        """What other routes took waits for the rest of its own, or for its end."""
        told = self.told[job_id]
        assert told.answered
        assert "j" + job_id in self.waiting_for_routes()
        told.due_us = FAR if told.deadline_us is None else told.deadline_us

    def waiting_for_routes(self) -> set[str]:
        """Who waits for something that is held, as the scripts name them."""
        names: Any = self.redis.smembers("notifier:routes")
        members: list[Any] = [self.redis.zrange(b"notifier:waiting_for_route:" + name, 0, -1) for name in names]
        return {member.decode() for of_name in members for member in of_name}

    def _due(self, user: str, category: str, head: str) -> int:
        """See `World`; the devices must be free as well."""
        told = self.told[head]
        at = max(super()._due(user, category, head), self._free(user, category, head))
        of_backlog = [f for f in self.flights if (f.leased.user, f.leased.category) == (user, category)]
        if any(flight.leased.shut and not flight.lost for flight in of_backlog):
            at = max(
                at, self.now + LEASE
            )  # it may stand behind the rest of what is in flight, whose settling opens the wake-up
        return at if told.deadline_us is None else max(self.now, min(at, told.deadline_us))

    def _free(self, user: str, category: str, job_id: str) -> int:
        """The first µs at which all the devices may be sent to that have not answered.

        Or all but background pushes, and it steps behind the alerts, which need not wait for those. Or those of an
        older one that has stepped behind it, which comes back to its place.
        """
        done = json.loads(self.told[job_id].answered or b"{}")
        targets = [target for n, target in enumerate(parsed(self.targets[job_id])) if str(n) not in done]
        free = {target: self._device(target, user, category) for target in targets}
        for_alerts = max([at for target, at in free.items() if ":b:" not in target], default=0)
        backlog = f"notifier:backlog:{{{user}}}:{category}"
        place = self.redis.zscore(backlog, job_id) or 0
        if for_alerts <= self.now or place >= LOWERED:
            return max(free.values(), default=0)
        stepped: Any = self.redis.zrangebyscore(backlog, LOWERED, "inf", 0, 1, withscores=True)
        older = [other.decode() for other, at in stepped if at - 2 * LOWERED < place]
        return min([for_alerts, *(self._free(user, category, other) for other in older)])

    def going(self, flight: Flight) -> list[str]:
        """The devices that a flight goes to: those that have not answered, by routes that are not shut."""
        return [target for _, target in self.asked(flight) if target.partition(":")[0] not in flight.leased.shut]

    def counted_all(self, flight: Flight) -> bool:
        """Whether it is known at its end of which devices a flight was counted: of all that have not answered."""
        return len(self.going(flight)) == len(self.asked(flight))

    def asked(self, flight: Flight) -> list[tuple[str, str]]:
        """The devices that have not answered for good, and their places."""
        done = json.loads(flight.leased.answered) if flight.leased.answered else {}
        targets = enumerate(parsed(self.targets[flight.leased.job_id]))
        return [(str(n), target) for n, target in targets if str(n) not in done]

    def _policy(self, target: str, user: str, category: str) -> Policy:
        limits = self.policies.limits_of(target.partition(":")[0])
        if not limits.device.is_empty:
            return limits.of_device(self.policies.for_user(user))[self._category(category).bypass]
        return limits.background if ":b:" in target else Policy()

    def _device(self, target: str, user: str, category: str) -> int:
        """The first µs at which one more may go to a device, if what is in flight to it is settled now."""
        platform, _, device = target.split(":")
        burst = self.policies.limits_of(platform).collapsible
        policy = self._policy(target, user, category)
        at, rule = self.devices[device].opens(policy) if device in self.devices else (0, None)
        if isinstance(rule, Window):
            at = min(at, self.now + rule.interval_us)
        if ":c:" in target and burst is not None and device in self.full:
            full_us = self.full[device] - (burst.limit - 1) * burst.every_us
            at = max(at, min(full_us, self.now + burst.every_us))
        return at

    def check_wait(self, user: str, category: str, job_id: str, at_us: int) -> None:
        """Law 3: as long as the rules say; once they admit it, as long as the devices do.

        While routes are held it is not said which devices are meant.
        """
        if self.earliest(user, category, job_id) > self.now:
            super().check_wait(user, category, job_id, at_us)
        elif not self.redis.exists("notifier:routes"):
            assert at_us == self._free(user, category, job_id)

    def may_pass(self, job_id: str, other: str) -> bool:
        """An alert may pass background pushes, which wait for their device; so may what has expired: it is not sent."""
        deadline_us = self.told[job_id].deadline_us
        has_expired = deadline_us is not None and deadline_us <= self.now
        return "apns:b" in self.targets[other] and (has_expired or "apns:b" not in self.targets[job_id])

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        super()._dispatched(flight, waiting)
        leased = flight.leased
        if leased.left_us is not None and leased.left_us <= 0:
            return
        burst = self.policies.limits_of("fcm").collapsible
        assert not leased.shut or self.going(flight)
        assert leased.shut <= {*self.circuits, *self.mended}
        self._check_circuits(flight)
        self._check_project(flight)
        self._check_order(flight)
        for target in self.going(flight):
            assert self._device(target, leased.user, leased.category) <= self.now
        for target in self.going(flight):
            device = target.rpartition(":")[2]
            if not self._policy(target, leased.user, leased.category).is_empty:
                sends = self.devices.setdefault(device, Sends())
                sends.add(Policy(gap_us=1), leased.permit, flight.until_us, self.now, longest_us=FAR)
            if ":c:" in target and burst is not None:
                self.full[device] = max(self.full.get(device, 0), self.now) + burst.every_us + LEASE

    def _check_order(self, flight: Flight) -> None:
        """Law 4, for each route: nothing goes by it while an older one of its backlog still has to go by it."""
        leased = flight.leased
        told, by = self.told[leased.job_id], routes_of(self.going(flight))
        flying = {other.leased.job_id: routes_of(self.going(other)) for other in self.flights}
        for job_id, other in self.told.items():
            alike = (other.user, other.category, other.lane) == (told.user, told.category, told.lane)
            may_pass = self.may_pass(leased.job_id, job_id)
            # What goes at once does so before what was accepted after it leaves the queue, even with a high priority.
            may_pass = may_pass or (leased.since_us is None and other.number > told.number)
            if not alike or not other.at_once or other.place >= told.place or may_pass:
                continue
            done = json.loads(other.answered or b"{}")
            asked = routes_of([target for n, target in enumerate(parsed(self.targets[job_id])) if str(n) not in done])
            waits = self.states[job_id] in {"backlog", "later"} and other.entered
            assert not (by & asked and waits)
            assert not (by & (asked - flying.get(job_id, asked)) and self.states[job_id] == "leased")

    def _check_circuits(self, flight: Flight) -> None:
        """By a route whose circuit is open goes nothing but a probe, one at a time."""
        for route in routes_of(self.going(flight)) & set(self.circuits):
            assert self.circuits[route].probe_us <= self.now
            self.circuits[route].probe_us = self.now + S

    def _check_project(self, flight: Flight) -> None:
        """In each interval no more go by FCM than its project admits; more than it ever admits go alone."""
        limit = self.policies.limits_of("fcm").project
        n = sum(target.startswith("fcm") for target in self.going(flight))
        if limit is not None and n:
            before = sum(at > self.now - limit.interval_us for at in self.projects)
            assert before + min(n, limit.limit) <= limit.limit
            self.projects += [self.now] * n

    def close(self, flight: Flight, state: State, *, reached: bool, word: str = "", answered: str = "") -> None:
        """Settle, and with it what the devices were counted for."""
        open_to = self.asked(flight)
        if not self.settle(flight, state, reached=reached, word=word, answered=answered) or word == "expired":
            return
        burst = self.policies.limits_of("fcm").collapsible
        for _, target in open_to:
            device = target.rpartition(":")[2]
            if device in self.devices:
                if reached:
                    self.devices[device].move(flight.leased.permit, self.now)
                else:
                    self.devices[device].remove(flight.leased.permit)
            if self.counted_all(flight) and burst is not None and ":c:" in target and device in self.full:
                self.full[device] -= max(0, flight.until_us - self.now) + (0 if reached else burst.every_us)

    def received(self, flight: Flight, at_us: int) -> None:
        """The providers took it at this moment."""
        super().received(flight, at_us)
        for target in self.going(flight):
            self.taken.setdefault(target, []).append(at_us)

    def check_waiting_for_routes(self) -> None:
        """Who has a backlog has a wake-up in that lane or waits for a route; nobody waits for a route that is open."""
        names: Any = self.redis.smembers("notifier:routes")
        assert {name.decode() for name in names} <= {*self.circuits, *self.mended, "fcm|full"}
        if b"fcm|full" in names:
            self._check_full()
        waiting = self.waiting_for_routes()
        keys: Any = self.redis.keys("notifier:waiting_for_route:*")
        assert {key.removeprefix(b"notifier:waiting_for_route:") for key in keys} <= names
        for user in USERS:
            fields: Any = self.redis.hgetall(f"notifier:backlogs:{{{user}}}")
            for category, lane in ((c.decode(), lane.decode()) for c, lane in fields.items()):
                if not category.startswith("#") and self.redis.exists(f"notifier:backlog:{{{user}}}:{category}"):
                    wake_up = self.redis.zscore(f"notifier:wakeups:{lane}", user)
                    assert wake_up is not None or f"u{lane} {user}" in waiting

    def _check_full(self) -> None:
        """A project is full for a sixtieth longer than exact at the most, as it is counted in buckets so wide."""
        limit = self.policies.limits_of("fcm").project
        assert limit is not None
        until = int(self.redis.hget("notifier:route:fcm|full", "until") or 0)
        assert until <= max(self.projects) + limit.interval_us + -(-limit.interval_us // 60)
        assert sum(at >= until - 2 * limit.interval_us for at in self.projects) + 2 > limit.limit


def windows(least: int, most: int) -> st.SearchStrategy[Policy]:
    window = st.builds(Window, st.integers(least, most), interval_us=st.integers(M, 4 * M))
    return st.builds(Policy, st.lists(window, max_size=2).map(tuple))


limits = st.fixed_dictionaries(
    {
        "fcm": st.builds(
            PlatformLimits,
            device=windows(1, 5),
            collapsible=st.one_of(st.none(), st.builds(Burst, st.integers(1, 3), every_us=st.integers(M, 3 * M))),
            project=st.one_of(st.none(), st.builds(Window, st.integers(2, 8), interval_us=st.just(M))),
        ),
        "apns": st.builds(PlatformLimits, background=windows(1, 3)),
    }
)


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for ann, others for bob, each loose or narrow; one category bypasses them."""
    loose = st.one_of(st.just(Policy()), policies)
    categories = {
        "chat": Category("chat", policy=draw(loose)),
        "alarm": Category("alarm", policy=draw(loose), bypass=draw(seldom)),
    }
    return Policies(draw(loose), users={"bob": draw(loose)}, categories=categories, limits=draw(limits))


spans = st.one_of(st.sampled_from([S // 4, S, 2 * S, 10 * S]), moments)
enqueues = st.tuples(
    st.just("enqueue"),
    st.integers(1, 6),
    st.sampled_from(USERS),
    st.sampled_from(sorted(CATEGORIES.items())),
    st.sampled_from(
        ["apns:n", "apns:b", "fcm:n", "fcm:c", "apns:n fcm:n", "apns:n fcm:c", "fcm:n fcm:n", "fcm:c apns:b"]
    ),
    seldom,
    seldom,
    st.one_of(st.none(), st.none(), moments),
)
rounds = st.tuples(st.just("round"), st.sampled_from([1, 2, 3, 50]), st.sampled_from(WORKERS))
hows = st.sampled_from(["up", "up", "half", "unsent", "dead"])
settles = st.tuples(st.just("settle"), st.integers(0, 9), hows, st.booleans())
sights = st.sampled_from(["down", "down", "up", "retry"])
changes = st.tuples(st.just("change"), st.sampled_from(WORKERS), st.sampled_from(ROUTES), sights)
steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    rounds,
    settles,
    settles,
    changes,
    st.tuples(st.just("advance"), spans),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
)
schedules = st.lists(steps, min_size=20, max_size=60)


def carry_out(world: Routed, verb: str, args: list[Any]) -> None:
    if verb == "enqueue":
        copies, user, (category, lane), to, high, plain, expires_in_us = args
        devices = to.split(" ")
        names = [f"{device}:{user}-{device[0]}{n}" for n, device in enumerate(devices)]
        targets = written(names)
        for _ in range(copies):
            world.enqueue(user, category, lane, high=high, expires_in_us=expires_in_us, targets=targets, plain=plain)
    elif verb == "round":
        world.pull(*args)
    elif verb == "advance":
        world.now += args[0]
    elif verb == "settle" and world.flights:
        settle(world, *args)
    elif verb == "change":
        world.change(*args)
    elif verb == "cancel" and world.told:
        world.cancel(list(world.told)[args[0] % len(world.told)])


def settle(world: Routed, index: int, how: str, early: bool) -> None:
    flight = world.flights[index % len(world.flights)]
    left = flight.leased.left_us
    if left is not None and left <= 0:
        world.close(flight, "failed", reached=False, word="expired")
        return
    if how == "unsent":
        world.close(flight, "backlog", reached=False)
        return
    if how == "dead":
        return  # its worker is: the lease gives it back
    last = min(world.now, flight.until_us)
    world.received(flight, flight.since_us if early else last)
    going = world.going(flight)
    rest = [target for _, target in world.asked(flight) if target not in going]
    if rest or (how == "half" and len(going) > 1):
        done = json.loads(flight.leased.answered) if flight.leased.answered else {}
        took = {n: "delivered" for n, target in world.asked(flight) if target in going[: 1 if how == "half" else None]}
        world.close(flight, "backlog", reached=True, answered=json.dumps(done | took))
        return
    world.close(flight, "delivered", reached=True, word="delivered")


def mend_and_drain(world: Routed) -> None:
    """Everything is up again: work on until nothing waits, sleeping from one thing due to the next."""
    for _ in range(100 + 12 * len(world.told)):
        for route in ROUTES:
            world.change("w", route, "up")
        if world.round() or world.flights:
            while world.flights:
                settle(world, 0, "up", early=False)
            continue
        world.check_waiting_for_routes()
        pulled = world.pull()
        if world.taken_at_once:
            continue
        if pulled.next_us is None:
            world.now += 2 * M  # a project that is full again is noticed by whoever looks next
            world.pull()
            return
        world.now = max(world.now, pulled.next_us)
    raise AssertionError("it never came to an end")


@given(rule_sets(), schedules)
@example(  # the last of the urgent comes from its queue when its user has been looked at
    rules=Policies(limits={"fcm": PlatformLimits(device=Policy((Window(4, interval_us=3 * M),)))}),
    schedule=[
        ("enqueue", 6, "ann", ("news", "default"), "apns:n fcm:n", False, False, None),
        ("round", 50, "w"),
        ("enqueue", 4, "ann", ("news", "default"), "apns:n fcm:n", True, True, None),
        ("cancel", 67),
        ("change", "v", "fcm", "down"),
        ("round", 2, "w"),
    ],
)
@settings(max_examples=examples(200))
def test_whatever_is_held_nothing_is_lost(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Laws 1 to 5 with circuits that open and close, probes that die, devices and projects that are full.

    At every step each job is in one place, each user who waits has a wake-up or waits for a route, and what
    goes may go by the devices' limits; in the end every job has ended, once.
    """
    world = Routed(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
        world.check_waiting_for_routes()
    mend_and_drain(world)
    world.check()
    assert sum(world.ended[word] for word in ("delivered", "expired", "cancelled")) == len(world.told)
    assert redis.smembers("notifier:routes") == set()


@given(rule_sets(), schedules)
@settings(max_examples=examples(150))
def test_no_device_gets_more_than_its_provider_admits(
    redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]
) -> None:
    """A device's limits hold where they count, at the provider, also for what bypasses the user's rules.

    Each may be taken at any moment of its lease, also from a worker that dies and never tells.
    """
    world = Routed(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
    mend_and_drain(world)
    of_device: dict[str, list[int]] = {}
    for target, times in world.taken.items():
        platform, kind, device = target.split(":")
        if (platform, kind) == ("apns", "b"):
            assert not violations(rules.limits_of("apns").background, times)
        if platform == "fcm":
            of_device.setdefault(device, []).extend(times)
        burst = rules.limits_of("fcm").collapsible
        if kind == "c" and burst is not None:
            for (i, first), (j, last) in combinations(enumerate(sorted(times)), 2):
                assert j - i + 1 <= burst.limit + (last - first) // burst.every_us
    for times in of_device.values():
        assert not violations(rules.limits_of("fcm").device, times)


def test_a_clock_that_is_set_back_holds_no_project_for_the_step(redis: Redis) -> None:
    """What went by the clock of an hour ahead went just now: it counts for a minute, once, in one bucket."""
    limits = {"fcm": PlatformLimits(project=Window(2, interval_us=M))}
    world = Routed(redis, Policies(Policy(), limits=limits))
    for user in USERS:
        world.enqueue(user, "chat", "urgent", targets="- fcm:n|" + user)
    world.round()
    for flight in list(world.flights):
        world.close(flight, "delivered", reached=True, word="delivered")
    stepped = world.now = START - 3600 * S
    world.enqueue("eve", "chat", "urgent", targets="- fcm:n|eve")
    assert world.pull().next_us == stepped + M + S
    assert redis.hgetall("notifier:project:fcm") == {str(stepped).encode(): b"2"}
    world.projects.clear()  # the model knows no clock that is set back
    world.now = stepped + M + S
    assert world.round() == 1


def test_a_send_of_another_category_changes_how_long_a_shared_device_is_full(redis: Redis) -> None:
    """Law 3: in the same look, one goes to the device for which the head of the other category waits."""
    limits = {"fcm": PlatformLimits(device=Policy((Window(3, interval_us=60 * M),)))}
    world = Routed(redis, Policies(categories={name: Category(name) for name in CATEGORIES}, limits=limits))

    def send(category: str, *devices: str) -> None:
        world.enqueue("bob", category, CATEGORIES[category], targets=written([f"fcm:n:{name}" for name in devices]))

    def look() -> int:
        gone = world.round()
        while world.flights:
            settle(world, 0, "up", early=False)
        world.now += S
        return gone

    send("chat", "two")
    send("chat", "two")
    assert look() == 2
    send("news", "one")
    assert look() == 1
    send("alarm", "one", "two")
    send("alarm", "one", "two")
    send("news", "one")
    assert look() == 2  # `World.check_wait` holds that the second alarm waits for both devices


def test_alerts_wait_for_no_background_push_when_the_other_devices_before_them_have_room(redis: Redis) -> None:
    """Law 3: a head for two devices steps aside as soon as its background push alone has no room."""
    limits = {
        "fcm": PlatformLimits(device=Policy((Window(1, interval_us=M),))),
        "apns": PlatformLimits(background=Policy((Window(1, interval_us=60 * M),))),
    }
    world = Routed(redis, Policies(limits=limits))
    for devices in (["fcm:n:one", "apns:b:two"], ["fcm:n:one", "apns:b:two"], ["apns:n:two"]):
        world.enqueue("ann", "chat", "urgent", targets=written(devices))
    assert world.round() == 1
    settle(world, 0, "up", early=False)
    assert world.pull().next_us == START + M
    world.now += M
    assert world.round() == 1


def test_a_background_push_waits_for_no_other_device_behind_an_alert(redis: Redis) -> None:
    """Law 3: it has stepped behind an alert, which waits for its own device: it goes first once its own has room."""
    limits = {
        "fcm": PlatformLimits(device=Policy((Window(1, interval_us=60 * M),))),
        "apns": PlatformLimits(background=Policy((Window(1, interval_us=M),))),
    }
    world = Routed(redis, Policies(limits=limits))
    for device in ("apns:b:one", "fcm:n:two", "apns:b:one", "fcm:n:two"):
        world.enqueue("ann", "chat", "urgent", targets=written([device]))
    for goes, due_us in ((2, START + M), (1, START + 60 * M), (1, None)):
        assert world.round() == goes
        while world.flights:
            settle(world, 0, "up", early=False)
        assert world.pull().next_us == due_us
        world.now = due_us or world.now
    world.check()


ONE_A_MINUTE = {
    "fcm:n:one": {"fcm": PlatformLimits(device=Policy((Window(1, interval_us=M),)))},
    "fcm:c:one": {"fcm": PlatformLimits(collapsible=Burst(1, every_us=M))},
    "apns:b:one": {"apns": PlatformLimits(background=Policy((Window(1, interval_us=M),)))},
}


@pytest.mark.parametrize("target", ONE_A_MINUTE)
def test_a_settlement_sets_the_wait_for_a_device(redis: Redis, target: str) -> None:
    """Law 3: where the user's rules open before the device does, nobody looks in vain between two sends."""
    world = Routed(redis, Policies(Policy(gap_us=2 * S), limits=ONE_A_MINUTE[target]))
    for _ in range(5):
        world.enqueue("ann", "chat", "urgent", targets=written([target]))
    while due_us := world.pull().next_us:
        while world.flights:
            settle(world, 0, "up", early=False)
            due_us = world.now
        world.check()
        world.now = due_us
    assert world.ended["delivered"] == 5
    assert world.now == START + 4 * M
    # A visit lets all background pushes step behind alerts.
    assert world.seen["looks"] == (":b:" in target)


@pytest.mark.parametrize("target", ONE_A_MINUTE)
def test_who_shares_a_device_does_not_wait_for_a_lease_of_another(redis: Redis, target: str) -> None:
    """Law 3: two users of one phone; what is in flight to it may be settled at once, and only its own user is told."""
    world = Routed(redis, Policies(limits=ONE_A_MINUTE[target]))
    for user in USERS:
        world.enqueue(user, "chat", "urgent", targets=written([target]))
    assert world.round() == 1
    settle(world, 0, "up", early=False)
    world.now += M
    assert world.round() == 1


@pytest.mark.parametrize("held", ["device", "route"])
def test_workers_of_different_lanes_do_not_wake_each_other_in_vain(redis: Redis, held: str) -> None:
    """Law 3: who may not look at a head leaves it to others when it is looked at: it knows nothing of its device."""
    limits = {"fcm": PlatformLimits(device=Policy((Window(1, interval_us=60 * M),)))}
    rules = RuleTable(Policies(limits=limits, categories={lane: Category(lane, lane) for lane in ("urgent", "bulk")}))

    def look(lane: str) -> Pulled:
        worker = calls.Worker(name=lane, lanes=(lane,), lease_us=LEASE, keep=Retention(M), clock=str(START))
        return run(redis, calls.pull(worker, calls.Room(9), rules))

    jobs = [
        calls.Job(name, lane, b"", json.dumps({"user": "ann", "category": lane}).encode(), targets="- fcm:n|one")
        for name, lane in (("a", "urgent"), ("b", "urgent"), ("c", "bulk"))
    ]
    run(redis, calls.enqueue(jobs, dedupe_for_us=0, stamp="", max_waiting=None, keep=Retention(M), clock=str(START)))
    if held == "route":
        run(redis, circuit(CircuitFields(str(START), "me", "fcm", "pause", "", "0")))
    for sent in look("urgent").leased:
        ended = calls.Settlement(sent.job_id, sent.permit, "ann", "urgent", True, "delivered", "delivered")
        run(redis, calls.settle([ended], rules, calls.Worker(name="urgent", keep=Retention(M), clock=str(START))))
    looks = [look(lane) for lane in ("urgent", "bulk") * 4]
    assert redis.zcard("notifier:backlog:{ann}:bulk") == 1
    assert [pulled.idle for pulled in looks[-4:]] == [0] * 4
    why = {"device": {b"d": b"2"}, "route": {b"hfcm=me": b"3"}}[held]
    assert redis.hgetall("notifier:waits") == why, "nor do they say that it is due"


@pytest.mark.parametrize("how", ["collapse", "high"])
def test_who_comes_to_a_free_device_does_not_wait_for_another(redis: Redis, how: str) -> None:
    """Law 3: a newcomer that becomes the head of a backlog goes at once, if the head before it waits for its device."""
    limits = {"apns": PlatformLimits(background=Policy((Window(1, interval_us=60 * M),)))}
    world = Routed(redis, Policies(categories={"chat": Category("chat", when_blocked="collapse")}, limits=limits))
    for _ in range(2):
        world.enqueue("ann", "chat", "urgent", targets=written(["apns:b:one"]), collapse_id="c")
        world.round()
        world.now += S
    assert len(world.flights) == 1
    other = {"high": True} if how == "high" else {"collapse_id": "c"}
    world.enqueue("ann", "chat", "urgent", targets=written(["apns:b:two"]), **other)
    assert world.round() == 1
    world.enqueue("ann", "chat", "urgent", targets=written(["apns:b:one"]), collapse_id="c")
    world.round()
    looks = world.seen["looks"]
    world.enqueue("ann", "chat", "urgent", targets=written(["apns:b:one"]), collapse_id="c")
    assert world.round() == 0
    assert world.seen["looks"] == looks, "one for the same device was looked at in vain"
    world.check()


@pytest.mark.parametrize("how", ["cancelled", "dropped"])
def test_who_stood_behind_one_that_leaves_does_not_wait_for_its_device(redis: Redis, how: str) -> None:
    """Law 3: the head of a backlog that is cancelled, or dropped to make room, takes along what it waited for."""
    limits = {"apns": PlatformLimits(background=Policy((Window(1, interval_us=60 * M),)))}
    rules = Policies(categories={"chat": Category("chat", overflow="drop_oldest")}, limits=limits)
    world = Routed(redis, rules, max_waiting=(9, 2))
    ids = []
    for device in ("one", "one", "two"):
        ids.append(world.enqueue("ann", "chat", "urgent", targets=written([f"apns:b:{device}"])))
        world.round()
    assert len(world.flights) == 1
    assert world.round() == 0
    if how == "cancelled":
        assert world.cancel(ids[1]) == "cancelled"
    else:
        world.enqueue("ann", "chat", "urgent", targets=written(["apns:b:three"]))
        assert world.states[ids[1]] == "dropped"
    world.round()
    assert ids[2] in [flight.leased.job_id for flight in world.flights]
    world.check()


def test_a_circuit_for_which_nobody_waits_any_more_is_forgotten(redis: Redis) -> None:
    """It holds all work up a little: a route that nobody has needed for ten minutes is as it was before its trouble."""
    world = Routed(redis, Policies())
    world.change("w", "fcm", "down")
    job_id = world.enqueue("ann", "chat", "urgent", targets="- fcm:n|one")
    world.pull()
    assert world.cancel(job_id) == "cancelled"
    for _ in range(3):
        assert world.pull().shut == {"fcm"}
        world.now += UNNEEDED - 1
    world.now += S
    assert world.pull().shut == frozenset()
    assert not redis.keys("notifier:*route*")


outages = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.integers(1, 4),
            st.just("ann"),
            st.just(("chat", "urgent")),
            st.sampled_from(["apns:n fcm:n", "apns:n fcm:n", "apns:n", "fcm:n"]),
            seldom,
            st.just(False),
            st.one_of(st.none(), st.none(), st.just(20 * S)),
        ),
        st.tuples(st.just("round"), st.sampled_from([1, 2, 50]), st.just("w")),
        settles,
        st.tuples(st.just("change"), st.just("w"), st.just("apns"), sights),
        st.tuples(st.just("advance"), st.just(S)),
    ),
    min_size=8,
    max_size=40,
)


@given(outages)
@settings(max_examples=examples(300), phases=[Phase.generate])
def test_order_outlasts_an_outage_at_each_route(redis: Redis, schedule: list[tuple[Any, ...]]) -> None:
    """Law 4: one user with devices at two providers, of which one comes and goes; see `Routed._check_order`."""
    world = Routed(redis, Policies(Policy()))
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
        world.check_waiting_for_routes()
    mend_and_drain(world)
    assert not redis.keys("notifier:rests:*")
    assert sum(world.ended[word] for word in ("delivered", "expired", "cancelled")) == len(world.told)
