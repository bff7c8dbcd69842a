"""The direct way: it leaves what a visit would have left, and takes nothing that only a visit can judge."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.queue import calls, own_rules
from notifier.queue.calls import Job, Leased, Pulled, Settlement, State
from notifier.queue.retention import KEEP_NOTHING, Retention
from notifier.rules.category import LANES, Category, Digest, PlatformLimits
from notifier.rules.hours import parse_hours
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, CalendarWindow, Policy, Window
from notifier.rules.preferences import Preferences
from notifier.rules.zones import zone_or
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable, policy_json
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.take import asks, direct_way_shut, publish_own_rules, take, write_down
from workers.loop.parts import RqJob

S: Final = 1_000_000
NOW: Final = 1_700_000_000 * S
LEASE: Final = 30 * S
FIRST: Final = 10**9  # so that no permit looks like a count
KEPT: Final = Retention(S, S, S)
TARGETS: Final = "- fcm:n|somewhere"
CATEGORIES: Final = {
    "default": Category("default", policy=Policy((Window(5, interval_us=60 * S),))),
    "free": Category("free"),
    "costly": Category("costly", cost=3),
    "alarm": Category("alarm", bypass=True),
    "news": Category("news", when_blocked="digest", digest=Digest(60 * S, 10, None, "{count} new")),
    "offers": Category("offers", when_blocked="drop"),
    "score": Category("score", when_blocked="collapse"),
}
RULES: Final = RuleTable(
    Policies(
        Policy((Window(10, interval_us=60 * S),), gap_us=S // 10),
        users={"vip": Policy((Window(99, interval_us=60 * S),))},
        categories=CATEGORIES,
        limits={
            "fcm": PlatformLimits(project=Window(100, interval_us=60 * S), collapsible=Burst(2, every_us=60 * S)),
            "apns": PlatformLimits(background=Policy((Window(2, interval_us=60 * S),))),
            "webpush": PlatformLimits(device=Policy((Window(2, interval_us=60 * S),))),
        },
    )
)


@dataclass
class Worker:
    """A worker that is called by hand, on a clock of the test's."""

    redis: Redis
    name: str = "w"
    now: int = NOW
    rules: RuleTable = field(default_factory=lambda: RULES)

    def accept(self, *jobs: Job, keep: Retention = KEPT) -> None:
        """As a producer of ours does."""
        run(self.redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="now", keep=keep, clock=str(self.now)))

    def publish(self) -> None:
        """Who has other rules."""
        publish_own_rules(self.redis, self.rules)

    def pull(self, rooms: Mapping[str, int] | None = None, rates: bytes = b"") -> Pulled:
        """Look once."""
        caller = replace(self._caller(), rates=rates)
        return run(self.redis, calls.pull(caller, calls.Room(50, rooms), self.rules))

    def take(self, keep: Retention = KEEP_NOTHING, *, direct: bool = True) -> list[Leased]:
        """Look, and tell what is asked. Not direct: all are visited."""
        with nullcontext() if direct else direct_way_shut():
            return take(self.redis, self._caller(keep), calls.Room(50), self.rules).leased

    def _caller(self, keep: Retention = KEEP_NOTHING) -> calls.Worker:
        return calls.Worker(name=self.name, lanes=LANES, lease_us=LEASE, keep=keep, clock=str(self.now))

    def settle(self, leased: list[Leased], keep: Retention = KEPT) -> None:
        done = [Settlement(each.job_id, each.permit, each.user, each.category, True, "delivered") for each in leased]
        run(self.redis, calls.settle(done, self.rules, calls.Worker(name=self.name, keep=keep, clock=str(self.now))))

    def end(
        self, job: Leased | RqJob, state: State, *, reached: bool = False, keep: Retention = KEPT, **more: Any
    ) -> None:
        """Settle one that this worker has. more: word, detail, answered."""
        ended = Settlement(job.job_id, job.permit, job.user, job.category, reached, state, **more)
        call = calls.settle([ended], self.rules, calls.Worker(name=self.name, keep=keep, clock=str(self.now)))
        assert run(self.redis, call) == [True]


def test_nothing_is_taken_by_rates_that_have_been_replaced(redis: Redis) -> None:
    """Law 1: who looked at the published rates before is to look first, also where that is long ago."""
    worker = Worker(redis)
    worker.publish()
    worker.accept(job())
    redis.hset("notifier:rates", mapping={"version": "v2", "at": NOW + 1})
    assert worker.pull().rates is None, "these begin later"
    redis.hset("notifier:rates", "at", NOW - 1)
    worker.accept(job("two", "bert"))
    refused = worker.pull()
    assert (refused.rates, refused.leased, refused.shut) == (b"v2", [], None)
    assert [each.job_id for each in worker.pull(rates=b"v2").leased] == ["two"]
    redis.delete("notifier:rates")
    worker.accept(job("three", "cleo"))
    assert worker.pull(rates=b"v2").rates == b"", "they were withdrawn"


@pytest.fixture
def worker(redis: Redis) -> Worker:
    made = Worker(redis)
    made.publish()
    redis.set("notifier:seq", FIRST)
    return made


def job(name: str = "one", user: str = "ann", category: str = "free", **meta: Any) -> Job:
    written = json.dumps({"user": user, "category": category, **meta}).encode()
    return Job(name, "default", b"data", written, targets=TARGETS, category=category)


def of_kind(kind: str, count: int) -> list[Job]:
    """So many of several users to one device."""
    return [replace(job(f"{n}", f"u{n}"), targets=f"- {kind}|somewhere") for n in range(count)]


def chose(redis: Redis) -> None:
    """Eve has a rule that she chose herself."""
    redis.hset("notifier:preferences", "eve", Preferences(gap_us=3 * S).encode())


def contents(redis: Redis, leased: list[Leased]) -> dict[str, Any]:
    """All that stands in Redis, with names in place of the numbers that are given out one after the other."""
    names = {each.permit.encode(): f"permit of {each.job_id}" for each in leased}
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": redis.hgetall,
        b"zset": lambda key: dict(redis.zrange(key, 0, -1, withscores=True)),
        b"set": redis.smembers,
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"string": redis.get,
    }

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if said := value.get(b"push_counted"):
                counted = json.loads(said)
                value |= {b"push_counted": counted | {"permit": names[counted["permit"].encode()]}}
            return {plain(name): plain(of) for name, of in value.items() if name != b"push_order"}
        if isinstance(value, bytes):
            whole, _, part = value.rpartition(b":")
            base, hashed, n = value.partition(b"#")
            if part in names:
                return f"{whole.decode()}:{names[part]}"
            return f"{names[base]}{(hashed + n).decode()}" if base in names else value
        return value

    keys = set(redis.scan_iter()) - {b"notifier:seq"}
    return {key.decode(): plain(read[redis.type(key)](key)) for key in keys}


def both_ways(
    worker: Worker, prepare: Callable[[], object], keep: Retention = KEEP_NOTHING, *, saves_looks: bool = False
) -> tuple[list[Leased], list[Leased]]:
    """What goes by the one way and by the other, without permits; they leave the same in Redis, key for key.

    saves_looks: where nothing may go, the direct way saves visits that find nothing, which are counted.
    """
    taken, found = [], []
    for direct in (True, False):
        worker.redis.flushdb()
        worker.publish()
        worker.now = NOW
        worker.redis.set("notifier:seq", FIRST)
        prepare()
        leased = worker.take(keep, direct=direct)
        taken.append([each._replace(permit="") for each in leased])
        if saves_looks:
            worker.redis.hdel("notifier:stats", "looked")
        found.append(contents(worker.redis, leased))
    assert found[0] == found[1]
    return taken[0], taken[1]


ALIKE: Final = {
    "one": [job()],
    "under rules of its category": [job(category="default")],
    "that counts as three": [job(category="costly")],
    "past the rules": [job(category="alarm")],
    "with an expiry": [replace(job(), expires_in_us=60 * S)],
    "with a high priority": [job(priority="high")],
    "of two users": [job(), job("two", "bob", "default")],
    "of one user, in two categories past the gap": [job(category="alarm"), job("two", category="alarm")],
    "with a zone": [job(zone="Asia/Tokyo")],
    "that collapses": [job(category="score", collapse_id="a")],
    "of a kind that Google counts": of_kind("fcm:c", 1),
    "in the background": of_kind("apns:b", 2),
    "to a device that is counted": of_kind("webpush:n", 2),
    "to several devices": [replace(job(category="costly"), targets="- fcm:c apns:b webpush:n|a b c")],
    "of one with other rules": [job(user="vip")],
    "of one with other rules, to a device that is counted": [replace(job(user="vip"), targets="- webpush:n|somewhere")],
    "that collapse each by itself": [
        job(category="score", collapse_id="a"),
        job("two", "bob", "score", collapse_id="a"),
    ],
}


@pytest.mark.parametrize("case", ALIKE)
def test_it_leaves_what_the_long_way_leaves(worker: Worker, case: str) -> None:
    """The same leases, permits, claims, registries and counts, key for key."""
    at_once, by_visits = both_ways(worker, lambda: worker.accept(*ALIKE[case]))
    assert [each.job_id for each in at_once] == [each.id for each in ALIKE[case]]
    assert at_once == [each._replace(since_us=None) for each in by_visits], "a visit knows since when they were due"


@pytest.mark.parametrize(("own", "goes", "opens"), [((3, 9 * S), 3, 9 * S), ((99, 9 * S), 5, 60 * S)])
def test_what_rules_of_ones_own_hold_back(worker: Worker, own: tuple[int, int], goes: int, opens: int) -> None:
    """As many go at once as these rules and those of the category let go; the next waits for the later of both."""
    users = {"vip": Policy((Window(own[0], interval_us=own[1]),)), "bob": Policy((Window(1, interval_us=7 * S),))}
    worker.rules = RuleTable(Policies(Policy(gap_us=S), users=users, categories=CATEGORIES))
    worker.publish()
    worker.accept(*(job(f"{user}{n}", user, "default") for n in range(7) for user in ("vip", "ann", "bob")))
    pulled = worker.pull()
    gone = [each.job_id for each in pulled.leased]
    assert gone[:3] == ["vip0", "ann0", "bob0"]
    assert gone[3:] == [f"vip{n}" for n in range(1, goes)]
    assert not asks(pulled)
    wake_ups = dict(worker.redis.zrange("notifier:wakeups:default", 0, -1, withscores=True))
    assert wake_ups == {b"vip": NOW + LEASE + opens, b"ann": NOW + LEASE + S, b"bob": NOW + LEASE + 7 * S}


BY_THE_CLOCK: Final = {
    "when no quiet hours are": Policy(quiet=parse_hours("23:00-07:00"), windows=(Window(9, interval_us=60 * S),)),
    "in quiet hours": Policy(quiet=parse_hours("22:00-07:00"), windows=(Window(9, interval_us=60 * S),)),
    "in a calendar window": Policy(calendar=(CalendarWindow(3, "day"),)),
    "in a full calendar window": Policy(calendar=(CalendarWindow(1, "day"),)),
    "where nobody has such rules": Policy((Window(9, interval_us=60 * S),)),
}


@pytest.mark.parametrize("zone", ["", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("case", BY_THE_CLOCK)
def test_by_the_clock_it_leaves_what_the_long_way_leaves(worker: Worker, case: str, zone: str) -> None:
    """What comes at once, and what waits till its zone's clock lets it go: by both ways at the same moments."""
    policy = BY_THE_CLOCK[case]
    worker.rules = RuleTable(Policies(policy, users={"vip": Policy()}, zone="Europe/London", categories=CATEGORIES))
    of_zone = {"zone": zone} if zone else {}
    keep = KEPT._replace(history_us=600 * S, max_records=9)

    def prepare() -> None:
        for name in ("Europe/London", "Asia/Tokyo", "America/New_York"):
            worker.redis.hset("notifier:zones", name, zone_or(name, "UTC", NOW).encode())
        worker.accept(job(**of_zone), job("bobs", "bob", "default", **of_zone), keep=keep)

    def later() -> None:
        prepare()
        worker.settle(worker.take(keep), keep)
        worker.accept(job("two", **of_zone), keep=keep)
        worker.settle(worker.take(keep), keep)
        worker.now += 10 * 3_600 * S

    for step in (prepare, later):
        at_once, by_visits = both_ways(worker, step, keep, saves_looks=case == "in quiet hours")
        assert [each.job_id for each in at_once] == [each.job_id for each in by_visits]
        assert step is later or all(each.since_us is None for each in at_once)


def of_a_plain_producer(worker: Worker) -> None:
    worker.accept(replace(job(), targets=""))


def expired(worker: Worker) -> None:
    worker.accept(replace(job(), expires_in_us=1))
    worker.now += S


def of_one_who_waits(worker: Worker) -> None:
    worker.accept(job("sent"), job("before"))
    assert len(worker.take()) == 1
    worker.now += S
    worker.accept(job())


def of_a_backlog_that_another_worker_sends(worker: Worker) -> None:
    worker.accept(job("before", category="alarm"))
    assert Worker(worker.redis, "other").pull().leased
    worker.accept(job(category="alarm"))


def of_one_who_chose(worker: Worker) -> None:
    chose(worker.redis)
    worker.accept(job(user="eve"))


def two_of_one_who_chose(worker: Worker) -> None:
    chose(worker.redis)
    worker.accept(job(user="eve"), job("two", "eve"))


def under_an_open_circuit(worker: Worker) -> None:
    worker.redis.sadd("notifier:routes", "fcm")
    worker.redis.hset("notifier:route:fcm", mapping={"state": "open", "until": NOW + S, "interval": S})
    worker.accept(job())


def over_the_projects_limit(worker: Worker) -> None:
    worker.redis.hset("notifier:project:fcm", str(NOW - NOW % S), 100)
    worker.accept(job())


def sent_two(worker: Worker, kind: str) -> None:
    worker.redis.zadd("notifier:device:somewhere", {"1": NOW, "2": NOW})
    worker.accept(*of_kind(kind, 1))


LONG: Final = {
    "without our fields": of_a_plain_producer,
    "that has expired": expired,
    "of one who waits": of_one_who_waits,
    "of a backlog that another worker sends": of_a_backlog_that_another_worker_sends,
    "of one who chose rules": of_one_who_chose,
    "of one who chose rules, and behind it another": two_of_one_who_chose,
    "under an open circuit": under_an_open_circuit,
    "over the project's limit": over_the_projects_limit,
    "of whom another one takes the place": lambda worker: worker.accept(
        job(category="score", collapse_id="a"), job("two", category="score", collapse_id="a")
    ),
    "before one of a high priority": lambda worker: worker.accept(job(), job("two", priority="high")),
    "of a digest": lambda worker: worker.accept(job(category="news")),
    "of a kind that Google counts no more of": lambda worker: (
        worker.redis.set("notifier:device:somewhere:c", NOW + 600 * S),
        worker.accept(*of_kind("fcm:c", 1)),
    ),
    "in the background to one that takes no more": lambda worker: sent_two(worker, "apns:b"),
    "to a device that takes no more": lambda worker: sent_two(worker, "webpush:n"),
    "that RQ gives a time to live": lambda worker: (worker.accept(job()), worker.redis.hset("rq:job:one", "ttl", 9)),
    "that was requeued": lambda worker: (
        worker.accept(job()),
        worker.redis.hset("rq:job:one", "push_outcome", "failed"),
    ),
}


@pytest.mark.parametrize("case", LONG)
def test_what_is_to_be_weighed_goes_by_a_visit(worker: Worker, case: str) -> None:
    """Nothing of it goes the direct way, whatever else the worker takes; it leaves what a visit leaves."""
    either, by_visits = both_ways(worker, lambda: LONG[case](worker))
    assert either == by_visits
    assert all(each.since_us is not None for each in either)


def test_without_room_by_its_route_it_waits(worker: Worker) -> None:
    """Of three there is room for two; who comes after is told how much is left."""
    worker.accept(*(job(f"{n}", f"u{n}") for n in range(3)))
    pulled = worker.pull(rooms={"fcm": 2})
    assert [each.job_id for each in pulled.leased] == ["0", "1"]
    assert pulled.rooms == {"fcm": 0}
    assert [each.job_id for each in worker.take()] == ["2"]


def test_who_begins_to_wait_has_a_wake_up_at_once(worker: Worker) -> None:
    """One goes, and the next heads a backlog whose wake-up opens when the rules let it go: nobody looks in vain."""
    worker.accept(job(), job("two"), job("three"))
    pulled = worker.pull()
    assert [each.job_id for each in pulled.leased] == ["one"]
    assert pulled.idle == 0
    opens = NOW + LEASE + S // 10
    assert worker.redis.zscore("notifier:wakeups:default", "ann") == opens
    assert pulled.next_us == NOW + LEASE
    assert worker.redis.zscore("rq:scheduled:default", "two") == opens / S


def test_who_takes_the_heads_place_is_looked_at_when_it_expires(worker: Worker) -> None:
    """A newcomer that replaces the head expires in time, though the rules let nothing go before that."""
    worker.rules = RuleTable(Policies(Policy((Window(1, interval_us=60 * S),)), categories=CATEGORIES))
    worker.accept(job("goes"))
    worker.settle(worker.take())
    head = job("head", category="score", collapse_id="a")
    worker.accept(head)
    assert worker.take() == []
    assert worker.redis.zscore("notifier:wakeups:default", "ann") == NOW + 60 * S
    worker.accept(replace(head, id="newest", expires_in_us=20 * S))
    assert worker.take() == []
    assert worker.redis.zrange("notifier:backlog:{ann}:score", 0, -1) == [b"newest"]
    assert worker.redis.zscore("notifier:wakeups:default", "ann") == NOW + 20 * S


def test_what_drops_stands_in_no_backlog(worker: Worker) -> None:
    """A category that lets nothing wait: the second is dropped."""
    worker.accept(job(category="offers"), job("two", category="offers"))
    assert [(each.job_id, each.dropped) for each in worker.take()] == [("one", ""), ("two", "user gap 100ms")]


@pytest.mark.parametrize(("due", "goes"), [(0, 50), (5, 45), (12, 38), (13, 0)])
def test_who_is_due_keeps_the_room(redis: Redis, due: int, goes: int) -> None:
    """What has just come takes the direct way where the due leave room; where these are many, none of it does."""
    worker = Worker(redis)
    worker.accept(*(job(f"d{n}", f"d{n}") for n in range(due)))
    worker.pull()
    assert worker.redis.zcount("notifier:wakeups:default", "-inf", worker.now) == due
    worker.publish()
    worker.now += LEASE
    worker.accept(*(job(f"{n}", f"u{n}") for n in range(60)))
    leased = worker.pull().leased
    assert {f"d{n}" for n in range(due)} <= {each.user for each in leased}
    assert sum(each.since_us is None for each in leased) == goes
    assert len(leased) == 50


def test_many_due_at_once_send_nobody_else_through_the_backlogs(redis: Redis) -> None:
    """Those who are due go, and what comes behind them takes the direct way again, from a queue that stays long."""
    worker = Worker(redis)
    worker.accept(*(job(f"d{n}", f"d{n}") for n in range(50)))
    worker.pull()  # Redis does not know yet who has rules of their own, so all of them are to be told of
    worker.publish()
    worker.now += LEASE
    worker.accept(*of_kind("apns:n", 500))
    leased: list[Leased] = []
    while some := worker.pull().leased:
        leased += some
    assert len(leased) == 550
    assert sum(each.since_us is None for each in leased) >= 450


def test_who_is_to_be_told_of_keeps_the_room_of_a_user(worker: Worker) -> None:
    """One who chose rules keeps room in the urgent lane beside 40 plain ones of another, who may all go."""
    chose(worker.redis)
    worker.accept(*(job(f"{n}-{user}", f"u{user}") for user in range(40) for n in range(2)))
    while leased := worker.take():
        worker.settle(leased)
    worker.accept(replace(job("own", "eve"), lane="urgent"))
    worker.now += LEASE
    users = [each.user for each in worker.take()]
    assert users.index("eve") == 25
    assert len(set(users)) == 41


def test_own_rules_are_published_where_they_are_missing(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Until they are nobody's go; then each user's go by that user's own."""
    worker = Worker(redis)
    worker.accept(job())
    for _ in range(2):
        pulled = worker.pull()
        assert (pulled.unpublished, pulled.leased) == (True, [])

    async def publish(name: str) -> None:
        client = AsyncRedis.from_url(redis_server.url)
        await own_rules.publish(client, worker.rules, name)
        await client.aclose()

    asyncio.run(publish(worker.name))
    redis.hset(f"notifier:own_rules:{worker.rules.own_rules}", "tom", "0")
    asyncio.run(publish("another"))
    assert redis.hexists(f"notifier:own_rules:{worker.rules.own_rules}", "tom"), "one writes for all"
    assert [each.job_id for each in worker.pull().leased] == ["one"]
    worker.accept(job("two", "bob"), job("three", "bob"), job("four", "vip"), job("five", "vip"))
    pulled = worker.pull()
    assert not asks(pulled)
    assert [each.job_id for each in pulled.leased] == ["two", "four", "five"], "a gap of all, and none of the vip's"
    assert not redis.keys("notifier:own_rules:draft:*")


async def test_a_worker_may_publish_the_own_rules_of_two_versions_at_once(
    redis_server: EmbeddedRedis, redis: Redis
) -> None:
    """It may be told that those it follows are missing while it takes up others: each has its own users' alone."""
    users = [f"u{n}" for n in range(3_000)]
    old, new = (
        RuleTable(Policies(Policy(), users={user: Policy(gap_us=gap_us) for user in users}), version=str(gap_us))
        for gap_us in (S, 2 * S)
    )
    client = AsyncRedis.from_url(redis_server.url)
    await asyncio.gather(*(own_rules.publish(client, rules, "w") for rules in (old, new)))
    await client.aclose()
    for rules in (old, new):
        written = redis.hgetall(f"notifier:own_rules:{rules.own_rules}")
        assert written == {name.encode(): value.encode() for name, value in rules.own_fields()}


def test_what_a_user_chose_is_written_down_once(worker: Worker) -> None:
    """The first of a choice is asked for; from then on what its users send goes the direct way, by the choice."""
    text = Preferences(gap_us=3 * S).encode()
    for user in ("eve", "eva", "vip"):
        worker.redis.hset("notifier:preferences", user, text)
    worker.accept(job("one", "eve"))
    pulled = worker.pull()
    assert (pulled.leased, pulled.chosen) == ([], [("eve", text)])
    write_down(worker.redis, worker.rules, pulled)
    assert worker.pull().leased
    worker.accept(job("two", "eva"), job("three", "eva"), job("four", "vip"))
    pulled = worker.pull()
    assert [(each.job_id, each.since_us) for each in pulled.leased] == [("two", None)]
    assert pulled.chosen == [("vip", text)], "who has rules of their own chose beside those"
    assert worker.redis.zscore("notifier:wakeups:default", "eva") == NOW + LEASE + 3 * S
    write_down(worker.redis, worker.rules, pulled)
    worker.redis.hset("notifier:preferences", "eva", Preferences(gap_us=S).encode())
    worker.accept(job("five", "eva", "alarm"))
    assert [user for user, _ in worker.pull().chosen] == ["eva"], "another choice"


def test_own_rules_last_while_somebody_goes_by_them(worker: Worker) -> None:
    """They go a day after the last call that asked for them."""
    key = f"notifier:own_rules:{worker.rules.own_rules}"
    worker.redis.expire(key, 60)
    worker.accept(job())
    assert worker.pull().leased
    assert worker.redis.ttl(key) > 86_300


def test_what_decides_a_choice_has_a_part_in_its_name() -> None:
    """Whether anybody else goes by the clock, and what of two policies the scripts see no difference in."""
    by_clock = Category("cal", policy=Policy(calendar=(CalendarWindow(3, "day"),)))
    assert RuleTable(Policies()).chosen_version != RuleTable(Policies(categories={"cal": by_clock})).chosen_version
    evening = Policy(quiet=parse_hours("20:00-24:00")), Policy(send=parse_hours("00:00-20:00"))
    assert policy_json(evening[0]) == policy_json(evening[1])
    fields = dict(RuleTable(Policies(users=dict(zip("ab", evening, strict=True)))).own_fields())
    assert fields[":a"] != fields[":b"]
    assert len({RuleTable(Policies(users={"a": policy})).own_rules for policy in evening}) == 2


@pytest.mark.parametrize("lacks", ["chosen", "own_rules"])
def test_what_is_settled_late_counts_although_the_rules_are_unknown(worker: Worker, lacks: str) -> None:
    """Its lease is over, its sends are dropped, and nobody has said yet what its user chose: it was sent now."""
    worker.rules = RuleTable(Policies(users={"vip": Policy(gap_us=40 * S)}, categories=CATEGORIES))
    worker.publish()
    worker.accept(job("one", "vip"))
    leased = worker.pull().leased
    assert leased
    worker.now += LEASE + 11 * S
    worker.redis.delete("notifier:sent:{vip}")
    if lacks == "chosen":
        worker.redis.hset("notifier:preferences", "vip", Preferences(zone="Asia/Tokyo").encode())
    else:
        worker.redis.delete(f"notifier:own_rules:{worker.rules.own_rules}")
    worker.settle(leased)
    worker.accept(job("two", "vip"))
    assert worker.take() == []
    assert worker.redis.zscore("notifier:wakeups:default", "vip") == worker.now + 40 * S


def test_what_stays_in_the_queues_is_told(worker: Worker) -> None:
    """So somebody else is called to it."""
    worker.accept(*of_kind("apns:n", 60))
    pulled = worker.pull()
    assert (pulled.taken, pulled.queued) == (50, 10)
    assert worker.pull().queued == 0


@pytest.mark.parametrize("name", ["0", ":0", "\n0", "é", "a:0"])
def test_whatever_a_user_is_called(worker: Worker, name: str) -> None:
    """No name is taken for the number of rules, with own rules or without."""
    users = {"vip": Policy(gap_us=2 * S), f"{name}x": Policy(gap_us=3 * S)}
    worker.rules = RuleTable(Policies(Policy(gap_us=S), users=users, categories=CATEGORIES))
    worker.publish()
    names = [f"{name}x", f"x{name}", name]
    worker.accept(*(job(f"{user}-{n}", user) for user in names for n in range(2)))
    assert [each.user for each in worker.pull().leased] == names
    wake_ups = dict(worker.redis.zrange("notifier:wakeups:default", 0, -1, withscores=True))
    gaps = {user: int(wake_ups[user.encode()]) - NOW - LEASE for user in names}
    assert gaps == {user: 3 * S if user == f"{name}x" else S for user in names}


def test_own_rules_that_change_have_another_name() -> None:
    """Also where they change for the same users: two workers with different files do not share them."""
    names = {
        RuleTable(Policies(users=users)).own_rules
        for users in ({"vip": Policy(gap_us=1)}, {"vip": Policy(gap_us=2)}, {"bob": Policy(gap_us=1)}, {})
    }
    assert len(names) == 4
    again = RuleTable(Policies(users={"vip": Policy(gap_us=1)}, categories=CATEGORIES))
    assert again.own_rules in names


@pytest.mark.parametrize("lane", ["default", "bulk"])
def test_what_stands_in_the_queues_twice_goes_once(worker: Worker, lane: str) -> None:
    """Whoever enqueues a job a second time, before it went, has it sent once."""
    worker.accept(job())
    worker.redis.rpush(f"rq:queue:{lane}", "one")
    leased = worker.take()
    assert [each.job_id for each in leased] == ["one"]
    assert worker.redis.hget("rq:job:one", "push_permit") == leased[0].permit.encode()
    worker.settle(leased)
    worker.now += S
    assert worker.take() == []


def test_what_waits_for_its_time_does_not_go_when_it_is_queued_again(worker: Worker) -> None:
    """By RQ's own scheduler, on a machine whose clock is ahead."""
    worker.accept(replace(job(), send_at_us=NOW + 3600 * S))
    worker.redis.hset("rq:job:one", "status", "queued")
    worker.redis.rpush("rq:queue:default", "one")
    assert worker.take() == []
    worker.now += 3601 * S
    assert [each.job_id for each in worker.take()] == ["one"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_push_that_waited_for_its_device_and_came_back_is_not_passed(worker: Worker, first: int) -> None:
    """Law 4: by one in the background that came while it was in flight, whichever of the two is given back first."""
    pushes = [replace(job(f"{n}", category="alarm"), targets="- apns:b|somewhere") for n in range(4)]
    worker.accept(*pushes[:2])
    worker.settle(worker.take())
    worker.accept(pushes[2], job("alert", category="alarm"))
    alert = worker.take()
    assert [each.job_id for each in alert] == ["alert"], "the other has stepped behind it"
    worker.settle(alert)
    worker.now += 61 * S
    taken = worker.take()
    worker.accept(pushes[3])
    taken += worker.take()
    assert [each.job_id for each in taken] == ["2", "3"]
    for each in (taken[first], taken[1 - first]):
        worker.end(each, "backlog")
    assert [each.job_id for each in worker.take()] == ["2", "3"]
