"""The history: one record of each end, what held it back to the microsecond, and nothing where nobody wants it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from notifier.queue import backlogs, calls
from notifier.queue.backlogs import Cancelled
from notifier.queue.calls import Job, Leased, Measured, Room, Settlement, Worker
from notifier.queue.circuits import circuit
from notifier.queue.history import Handed, Record, Reply, decode_records, history_keys, name_those_before
from notifier.queue.retention import Retention
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import LANES, Category, Digest, PlatformLimits
from notifier.rules.hours import Hours
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy, Window
from notifier.scripts import loader
from notifier.scripts.keys import declared, in_script
from notifier.scripts.loader import run
from notifier.scripts.records import CircuitFields
from notifier.scripts.rule_table import RuleTable
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.take import take

S: Final = 1_000_000
HOUR: Final = 3600 * S
NOON: Final = 1_700_049_600 * S  # a Wednesday, 12:00 in UTC
LEASE: Final = 10 * S
KEPT: Final = Retention(HOUR, HOUR, HOUR, history_us=72 * HOUR, max_records=20)
NO_HISTORY: Final = KEPT._replace(history_us=0)
TARGETS: Final = "- apns:n|somewhere"
OK: Final = Reply("apns", 200, 0.045, "delivered")
CATEGORIES: Final = {
    "default": Category("default"),
    "chat": Category("chat", policy=Policy((Window(1, interval_us=5 * S),))),
    "offers": Category("offers", when_blocked="drop"),
    "news": Category("news", when_blocked="digest", digest=Digest(60 * S, 10, None, "{count} new")),
}


def policies(user: Policy, **more: Any) -> Policies:
    """The rules of everyone."""
    return Policies(user, categories=CATEGORIES, lead_us=LEASE, **more)


@dataclass
class Hand:
    """A producer and a worker, called by hand on a clock of the test's."""

    redis: Redis
    user: Policy = field(default_factory=lambda: Policy((Window(1, interval_us=10 * S),)))
    keep: Retention = KEPT
    now: int = NOON
    more: dict[str, Any] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(999)))

    def __post_init__(self) -> None:
        self.rules = RuleTable(policies(self.user, **self.more), version="r7")

    def accept(self, category: str = "default", user: str = "ann", **fields: Any) -> str:
        """Accept one; returns its id."""
        job_id = f"job-{next(self.numbers)}"
        meta = {"user": user, "category": category, **fields.pop("meta", {})}
        data = json.dumps(["notifier.deliver", None, [], {"title": "a secret"}]).encode()
        job = Job(job_id, "default", data, json.dumps(meta).encode(), targets=fields.pop("targets", TARGETS), **fields)
        run(self.redis, calls.enqueue([job], dedupe_for_us=S, stamp="now", keep=self.keep, **self._clock))
        return job_id

    @property
    def _clock(self) -> dict[str, str]:
        return {"clock": str(self.now)}

    @property
    def hand(self) -> Worker:
        """The worker whose calls these are."""
        return Worker(name="hand", lanes=LANES, lease_us=LEASE, keep=self.keep, clock=str(self.now))

    def take(self, after_us: int = 0) -> list[Leased]:
        """Look, so much later; what this worker may send then."""
        self.now += after_us
        return take(self.redis, self.hand, Room(50), self.rules).leased

    def settle(self, leased: Leased, after_us: int = 0, state: Any = "delivered", **more: Any) -> None:
        """Settle one so much after it was handed over."""
        self.now += after_us
        word = more.pop("word", state if state in {"delivered", "failed", "dropped"} else "retried")
        reply = more.pop("reply", OK)
        done = Settlement(
            *(leased.job_id, leased.permit, leased.user, leased.category, state == "delivered", state, word),
            handed=None if reply is None else Handed(100.0 - after_us / S, [reply]),
            **more,
        )
        call = calls.settle([done], self.rules, self.hand, Measured([""], now_s=100.0))
        assert run(self.redis, call) == [True]

    def cancel(self, job_id: str) -> list[Cancelled]:
        """Cancel one."""
        return run(self.redis, backlogs.cancel([job_id], self.keep, **self._clock))

    def records(self, user: str = "ann") -> list[Record]:
        """All records of a user, the oldest first."""
        raw: list[bytes] = [entry for key in history_keys(user) for entry in self.redis.lrange(key, 0, -1)]
        assert not any(secret in entry for entry in raw for secret in (b"somewhere", b"a secret"))
        return sorted(decode_records(user, raw), key=lambda record: record.ended_at)


def held(record: Record) -> dict[str, float]:
    """What held it back, in seconds."""
    return record.totals()


@pytest.fixture
def hand(redis: Redis) -> Hand:
    return Hand(redis)


@pytest.fixture
def other_redis(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(redis_server.url.rpartition("/")[0] + "/1") as client:
        client.flushdb()
        yield client


def test_a_message_that_never_waits(hand: Hand) -> None:
    """Its record says when it was accepted, handed over and answered, by whom it was settled and by which rates."""
    job_id = hand.accept()
    (leased,) = hand.take(20_000)
    hand.settle(leased, 45_000)
    (record,) = hand.records()
    assert (record.job_id, record.category, record.outcome) == (job_id, "default", "delivered")
    assert (record.worker, record.rates, record.replies) == ("hand", "r7", (OK,))
    assert held(record) == {"the queue": 0.02}
    assert record.held_s == 0.02
    assert str(record) == "accepted 12:00:00.0, held 20 ms by the queue, sent 12:00:00.0, apns 200 after 45 ms"


def test_one_that_went_on_another_day_says_on_which() -> None:
    """By the clock that is told, each moment with its date: by the other one it is a day as well."""
    accepted = datetime(2027, 3, 27, 23, 30, tzinfo=UTC)
    ended = accepted + timedelta(hours=7)
    record = Record("job", "ann", "chat", "delivered", ended, accepted, handed_at=(ended,))
    assert record.describe() == "accepted 2027-03-27 23:30:00.0, sent 2027-03-28 06:30:00.0"
    assert record.describe(ZoneInfo("Europe/Berlin")) == "accepted 00:30:00.0, sent 08:30:00.0"


def test_what_is_rounded_to_the_next_day_has_its_date() -> None:
    """Else what ended a moment before midnight would have ended almost a day before it was accepted."""
    accepted = datetime(2027, 3, 27, 23, 59, 58, tzinfo=UTC)
    record = Record("job", "ann", "chat", "expired", accepted + timedelta(seconds=1.97), accepted)
    assert record.describe() == "accepted 2027-03-27 23:59:58.0, expired 2027-03-28 00:00:00.0"


def test_it_costs_one_command_and_two_for_the_first(hand: Hand) -> None:
    """A message that never waits pays one command, and what is not written is not asked for: none costs none."""

    def commands(keep: Retention, user: str) -> int:
        hand.keep = keep
        hand.accept(user=user)
        hand.redis.config_resetstat()
        (leased,) = hand.take()
        hand.settle(leased)
        stats = hand.redis.info("commandstats")
        resets = stats.get("cmdstat_config|resetstat") or stats["cmdstat_config"]  # Redis 7, and 6.2
        return sum(stat["calls"] for stat in stats.values()) - resets["calls"]

    commands(KEPT, "the first, to whom Redis is given the scripts")
    assert commands(KEPT, "ann") == commands(NO_HISTORY, "bob") + 2
    hand.now += 60 * S
    assert commands(KEPT, "ann") == commands(NO_HISTORY, "bob") + 1
    assert not hand.records("bob")


def test_rules_and_backlog(hand: Hand) -> None:
    """Each of three messages is held by the backlog until it is the first, and by the rule from then on."""
    for _ in range(3):
        hand.accept()
    for after_us in (0, 10 * S, 10 * S):
        (leased,) = hand.take(after_us)
        hand.settle(leased, 100_000)
    first, second, third = hand.records()
    assert held(first) == {}
    assert held(second) == {"user 1/10s": 10.1 - 0.1 + 0.1}
    assert held(third) == {"the backlog before it": pytest.approx(10.1), "user 1/10s": pytest.approx(10.1)}


def test_time_without_a_worker_is_none_of_a_rules(hand: Hand) -> None:
    """From the moment when the rule lets it go, it waits for a worker; so do those behind it."""
    hand.accept()
    second, third = (hand.accept("chat") for _ in range(2))
    (leased,) = hand.take()
    hand.settle(leased)
    for after_us in (40 * S, 10 * S):
        (leased,) = hand.take(after_us)
        hand.settle(leased)
    found = {record.job_id: held(record) for record in name_those_before(hand.records())}
    assert found[second] == {"user 1/10s": 10.0, "the queue": 30.0}
    before = {"those before it (user 1/10s)": 10.0, "those before it (the queue)": 30.0}
    assert found[third] == before | {"user 1/10s": 10.0}


def test_the_rule_is_named_that_decides(hand: Hand) -> None:
    """A category's window, a gap, a burst, a window of the calendar and quiet hours are told apart."""
    shapes: list[tuple[Policy, str, int, str]] = [
        (Policy((Window(1, interval_us=2 * S),)), "chat", 5 * S, "chat 1/5s"),
        (Policy(gap_us=3 * S), "default", 3 * S, "user gap 3s"),
        (Policy(burst=Burst(1, every_us=4 * S)), "default", 4 * S, "user burst 1 then 1/4s"),
        (Policy(calendar=(CalendarWindow(1, "day"),)), "default", 12 * HOUR, "user 1/calendar-day"),
    ]
    for n, (policy, category, after_us, what) in enumerate(shapes):
        hand.redis.flushall()
        own = Hand(hand.redis, user=policy, now=NOON + n)
        own.accept(category)
        own.accept(category)
        (leased,) = own.take()
        own.settle(leased, reply=None)
        (leased,) = own.take(after_us)
        own.settle(leased)
        assert held(own.records()[-1]) == {what: after_us / S}


def test_quiet_hours(redis: Redis) -> None:
    """What waits for the end of quiet hours says so."""
    hand = Hand(redis, user=Policy(quiet=(Hours(11 * HOUR, 13 * HOUR),)))
    hand.accept()
    assert hand.take() == []
    (leased,) = hand.take(HOUR)
    hand.settle(leased)
    assert held(hand.records()[0]) == {"quiet hours": 3600.0}


def test_a_device_a_digest_and_a_time_of_its_own(redis: Redis) -> None:
    """So do a limit of a device, a digest that gathers, and send_at."""
    limits = {"apns": PlatformLimits(background=Policy((Window(1, interval_us=20 * S),)))}
    hand = Hand(redis, user=Policy((Window(9, interval_us=S),)), more={"limits": limits})
    for _ in range(2):
        hand.accept(targets="- apns:b|one")
    (leased,) = hand.take()
    hand.settle(leased)
    (leased,) = hand.take(20 * S)
    hand.settle(leased)
    assert held(hand.records()[-1]) == {"a limit of its device": 20.0}
    hand.accept(send_at_us=hand.now + 7 * S)
    hand.take()
    (leased,) = hand.take(7 * S)
    hand.settle(leased)
    assert held(hand.records()[-1]) == {"its own time, send_at": 7.0}


def test_a_plain_job_waits_behind_others_too(hand: Hand) -> None:
    """A job of RQ alone is known from when it was taken from the queue; what stands before it is told of it as well."""
    meta = json.dumps({"user": "ann", "category": "default"})
    data = json.dumps(["notifier.deliver", None, [], {}])
    for job_id in ("one", "two", "three"):
        fields = {"status": "queued", "origin": "default", "data": data, "meta": meta}
        hand.redis.hset(f"rq:job:{job_id}", mapping=fields)
        hand.redis.rpush("rq:queue:default", job_id)
    for after_s in (0, 10, 10):
        (leased,) = hand.take(after_s * S)
        hand.settle(leased)
    records = name_those_before(hand.records())
    assert [held(record) for record in records] == [
        {},
        {"user 1/10s": 10.0},
        {"those before it (user 1/10s)": 10.0, "user 1/10s": 10.0},
    ]


def test_a_retry_and_a_closed_route(hand: Hand) -> None:
    """A retry says how long it waited, and each answer is there; a closed circuit is named."""
    hand.accept()
    (leased,) = hand.take()
    busy = Reply("apns", 503, 0.012, "retry", "Shutdown")
    hand.settle(leased, 12_000, "later", detail=2 * S, reply=busy)
    (leased,) = hand.take(2 * S)
    hand.settle(leased, 45_000)
    (record,) = hand.records()
    assert held(record) == {"a retry": 2.0}
    assert record.replies == (busy, OK)
    assert len(record.handed_at) == 2
    hand.now += 60 * S
    down = CircuitFields(str(hand.now), "other", "apns", "down", "refused", kind="unreachable", first_us=S, max_us=S)
    run(hand.redis, circuit(down))
    hand.accept()
    assert hand.take() == []
    (leased,) = hand.take(S)
    hand.settle(leased)
    assert held(hand.records()[-1]) == {"apns stopped": 1.0}


def test_every_end_leaves_one_record(hand: Hand) -> None:
    """Cancelled, superseded, dropped, expired and failed: each once, with what held it back until then."""
    hand.accept()
    (leased,) = hand.take()
    hand.settle(leased)
    cancelled = hand.accept()
    hand.take()
    hand.now += 3 * S
    assert hand.cancel(cancelled) == ["cancelled"]
    dropped = hand.accept("offers")
    (leased,) = hand.take()
    hand.settle(leased, state="dropped", detail=leased.dropped, reply=None)
    expired = hand.accept(expires_in_us=2 * S)
    hand.take()
    (leased,) = hand.take(2 * S)
    hand.settle(leased, state="failed", word="expired", reply=None)
    old = hand.accept("news")
    hand.take()
    new = hand.accept("news")
    hand.take(S)
    found = {record.job_id: record for record in hand.records()}
    assert {job_id: record.outcome for job_id, record in found.items() if record.outcome != "delivered"} == {
        cancelled: "cancelled",
        dropped: "dropped",
        expired: "expired",
        old: "superseded",
    }
    assert len(hand.records()) == 5
    assert held(found[cancelled]) == {"user 1/10s": 3.0}
    assert held(found[expired]) == {"user 1/10s": 2.0}
    assert found[dropped].reason == "user 1/10s"
    assert found[old].superseded_by == new


def test_a_worker_that_dies(hand: Hand) -> None:
    """The time for which a dead worker had it does not count as held back by a rule."""
    hand.accept()
    assert len(hand.take()) == 1
    hand.take(LEASE + 1)
    hand.take()
    _, *held = hand.redis.hget("rq:job:job-0", "push_history").split()
    assert held[:2] in ([b"0", b"f"], [b"1", b"f"])


def test_the_time_with_a_worker_that_did_not_finish_it_is_told(hand: Hand) -> None:
    """It was held back until another worker had it; for how long that one took until its provider answered is not."""
    for _ in range(2):
        hand.accept()
    hand.settle(*hand.take())
    hand.take(10 * S)
    (orphan,) = take(hand.redis, replace(hand.hand, clock=str(hand.now + LEASE)), Room(50), hand.rules).orphans
    hand.settle(orphan, LEASE, state="backlog", reply=None)
    hand.settle(*hand.take(), after_us=45_000)
    _, sent = hand.records()
    assert held(sent) == {"user 1/10s": 10.0, "a worker that did not finish it": 10.0}
    assert sent.held_s == 20.0
    assert str(sent) == (
        "accepted 12:00:00.0, held 10.0 s by user 1/10s, 10.0 s by a worker that did not finish it, "
        "sent 12:00:20.0, apns 200 after 45 ms"
    )


def test_those_behind_one_that_a_worker_did_not_finish_say_so() -> None:
    """As of any other thing that held the first of them."""
    helds = "0 f 10000000 b 10000001 f", "0 b 10000000 u1/10"
    texts = [f"{NOON + n * 11 * S}\n{NOON} {helds[n - 1]}\ndelivered\nchat\n\nw\nr\n\njob-{n}" for n in (1, 2)]
    _, behind = name_those_before(list(decode_records("ann", [text.encode() for text in texts])))
    assert held(behind) == {"those before it (a worker that did not finish it)": 10.0, "user 1/0.01ms": 12.0}


def test_one_that_was_accepted_before_histories_were_kept_has_a_record() -> None:
    """It does not say since when the notification waited, nor when it was handed over."""
    (told,) = decode_records("ann", [f"{NOON}\n\ndelivered\nchat\n45000 apns,200,45\nw\nr\n\njob".encode()])
    assert (told.accepted_at, told.handed_at, str(told)) == (None, (), "delivered 12:00:00.0")


def test_so_many_and_no_longer(hand: Hand) -> None:
    """A user has at most so many records, and they go at the latest after twice the time."""
    for _ in range(60):
        hand.accept()
        (leased,) = hand.take()
        hand.settle(leased)
        hand.now += 11 * S
    assert 20 <= len(hand.records()) < 28
    assert [record.job_id for record in hand.records()][-1] == "job-59"
    real_us = int(hand.redis.time()[0]) * S
    hand.redis.flushall()
    hand = Hand(hand.redis, now=real_us)
    hand.accept(user="bob")
    (leased,) = hand.take()
    hand.settle(leased)
    (left_ms,) = [left for key in history_keys("bob") if (left := hand.redis.pttl(key)) > 0]
    assert 72 * HOUR < left_ms * 1000 + 2 * S <= 144 * HOUR + 2 * S


WHYS: Final = st.lists(
    st.tuples(st.integers(0, 10**7), st.sampled_from(["b", "q", "u1/10", "d", "papns"])), max_size=40
)


@pytest.fixture(scope="module")
def adder(redis_server: EmbeddedRedis) -> Any:
    """*history.add* by itself, as a script."""
    text = "--! needs history\nreturn history.add(ARGV[1], tonumber(ARGV[2]), ARGV[3])\n"
    source = in_script(loader.assemble("adder", text))
    return Redis.from_url(redis_server.url).register_script(source)


@given(WHYS)
def test_however_often_it_changes(adder: Any, changes: list[tuple[int, str]]) -> None:
    """What is noted stays short, and however much of it was folded, each reason has the time that it had."""
    now, noted, wanted = NOON, str(NOON).encode(), dict[str, int]()
    for after_us, why in changes:
        noted = adder(keys=declared(), args=[noted, str(now), why])
        wanted[why] = wanted.get(why, 0) + after_us
        now += after_us
    assert len(noted) < 1_000
    accepted, *words = noted.decode().split()
    assert accepted == str(NOON)
    starts = [*map(int, words[::2]), now - NOON]
    found = dict[str, int]()
    for why, since, until in zip(words[1::2], starts, starts[1:], strict=False):
        found[why] = found.get(why, 0) + until - since
    assert found == wanted


def test_what_is_folded_blames_no_worker(adder: Any) -> None:
    """Of many tries together nobody knows what followed each: that all had an answer may not be taken for a death."""
    noted, now = str(NOON).encode(), NOON
    for after_us, why in [(20_000, "f=apns,,9,unreachable,refused"), (9_000, "papns"), (S, "f")] * 40:
        now += after_us
        noted = adder(keys=declared(), args=[noted, str(now), why])
    record = f"{now}\n{noted.decode()}\ndelivered\nchat\n\nw\nr\n\njob".encode()
    (told,) = decode_records("ann", [record])
    assert held(told) == {"the queue": 0.02, "apns stopped": 40.0}
    assert sum(delay.seconds for delay in told.delays) == pytest.approx(40 * 1.029)


@pytest.mark.parametrize("found", ["", " ", "x" * 600, " " * 600, f"{NOON} " + "x" * 600])
def test_whatever_stands_there_is_no_error_of_the_script(adder: Any, found: str) -> None:
    """Anybody may write into a job's hash: the script goes on, and what holds the job is noted behind it."""
    assert adder(keys=declared(), args=[found, str(NOON + S), "q"]).endswith(b" q")


def test_a_full_redis_lets_one_be_cancelled(hand: Hand) -> None:
    """The record does not stand in the way of what frees memory: one that is queued can be cancelled, and is told."""
    job_id = hand.accept()
    waiting = hand.accept("chat")
    assert hand.cancel("nobody") == ["unknown"]  # so that the script is in Redis
    hand.redis.config_set("maxmemory", 1)
    try:
        assert [hand.cancel(each) for each in (job_id, waiting)] == [["cancelled"], ["cancelled"]]
    finally:
        hand.redis.config_set("maxmemory", 0)
    assert [(record.job_id, record.outcome) for record in hand.records()] == [
        (job_id, "cancelled"),
        (waiting, "cancelled"),
    ]


@given(st.lists(st.lists(st.tuples(st.integers(1, 50), st.sampled_from("bbq")), max_size=6), max_size=6))
def test_naming_those_before_changes_no_time(backlogs: list[list[tuple[int, str]]]) -> None:
    """However records overlap, each is held as long as before, without a break, and its own reasons stay."""
    before = []
    for n, waits in enumerate(backlogs):
        at, noted = NOON + n, f"{NOON + n}"
        for after, why in waits:
            noted += f" {at - NOON - n} {why}"
            at += after
        before.append(f"{at}\n{noted}\ndelivered\nchat\n\nw\nr\n\njob-{n}".encode())
    records = list(decode_records("ann", before))
    for old, new in zip(records, name_those_before(records), strict=True):
        assert new.held_s == pytest.approx(old.held_s)
        assert [each.what for each in new.delays if each.why == "quiet_hours"] == [
            each.what for each in old.delays if each.why == "quiet_hours"
        ]
        for one, after in pairwise(new.delays):
            assert after.since == one.since + timedelta(seconds=one.seconds)
