"""Expected times against what the scripts then do, by random rules and backlogs, when nothing else arrives."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import event as seen
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier import Notifier
from notifier.forecast.expected import Expected, find_forecast
from notifier.forecast.replay import DROPPED, EXPIRED
from notifier.forecast.trace import Event
from notifier.queue import backlogs, calls
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.rules.hours import Hours
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Mute, Preferences
from notifier.rules.zones import zone_at
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from notifier.store.exchange import exchange
from tests.harness.support import CONSOLE, note
from tests.property.amount import examples
from tests.property.forecast.test_replay import S, Scripts, U, mutes, rule_sets, traces

TOLERATED_US, SHARE = 100_000, 0.02


@dataclass
class Asked(Scripts):
    """Asks for the forecast once all have been accepted and the time has come; and takes up other rules then."""

    ask_us: int = 0
    then: Policies | None = None
    asked_us: int = 0
    found: dict[str, Expected] = field(default_factory=dict)

    def look(self) -> None:
        super().look()
        accepted = int(self.redis.hget("notifier:stats", "accepted") or 0)
        if self.found or accepted < len(self.trace) or self.now < self.ask_us:
            return
        if self.then is not None:  # as workers do that take up changed rates: all is looked at again
            self.rules, self.table, self.then = self.then, RuleTable(self.then), None
            if self.rules.uses_local_time:
                self.redis.hset("notifier:zones", self.rules.zone, zone_at(self.rules.zone, self.now).encode())
            for lane in ("urgent", "default", "bulk"):
                run(self.redis, backlogs.retime(lane, "0", max_users=1000, clock=str(self.now)))
            super().look()
        self.asked_us = self.now
        self.found = exchange(
            self.redis, find_forecast(self.rules, "ann", latency_us=self.latency_us, clock=str(self.now))
        ).by_job


def hold_true(asked: Asked, sent: list[int]) -> int:
    """Every expected time against what came; how many there were."""
    for job_id, expected in asked.found.items():
        went = sent[int(job_id)]
        if expected.at is None:
            assert went in {EXPIRED, DROPPED}, (job_id, expected, went)
            continue
        assert went >= 0, (job_id, expected, went)
        error = abs(expected.at.timestamp() * 1e6 - went)
        assert error <= max(TOLERATED_US, SHARE * (went - asked.asked_us)), (job_id, expected, went, asked.asked_us)
    return len(asked.found)


@settings(max_examples=examples(120))
@given(
    rules=rule_sets(),
    then=st.one_of(st.none(), rule_sets()),
    trace=traces,
    ask_us=st.integers(1, 80).map(U.__mul__),  # a replay that begins at 0 begins with nothing
    latency_us=st.sampled_from([0, 5_000, 50_000]),
    muted=st.lists(mutes, max_size=2),
)
def test_expected_times_come_true(  # noqa: PLR0917 - what an example consists of
    redis: Redis,
    rules: Policies,
    then: Policies | None,
    trace: list[Event],
    ask_us: int,
    latency_us: int,
    muted: list[Mute],
) -> None:
    """Each goes within max(100 ms, 2 %) of its expected time, also under rules that were changed just before."""
    redis.flushdb()
    if muted:
        redis.hset("notifier:preferences", "ann", Preferences(mutes=tuple(muted)).encode())
    asked = Asked(redis, rules, trace, latency_us, ask_us=ask_us, then=then)
    sent = asked.run()
    seen(f"waiting: {min(hold_true(asked, sent), 30) // 10}0")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_rule_by_the_clock_that_is_added_paces_none_that_never_waited_for_it(redis: Redis, keeps: bool) -> None:
    """Law 3: what waited before it was there goes as it may, and is told so, whether a history is kept or not."""
    redis.flushdb()
    window = (Window(3, "10m"),)
    begins = (100 * 24 + 10) * 3_600 * S
    asks = begins + 60 * S
    then = Policies(Policy(window, quiet=(Hours(20 * 3_600 * S, 21 * 3_600 * S),)), zone="UTC")
    before = Policies(Policy(window, gap_us=3_600 * S), zone="UTC")
    keep = Retention(history_us=3_600 * S if keeps else 0)
    asked = Asked(redis, before, [*[Event(begins)] * 4, Event(asks)], 0, keep=keep, ask_us=asks, then=then)
    sent = asked.run()
    assert hold_true(asked, sent) == 2
    assert sent == [begins, asks, asks, begins + 600 * S, asks + 600 * S]


def test_sends_of_before_the_clock_was_set_back_hold_as_long_as_they_do(redis: Redis) -> None:
    """In flight is what a lease explains, and for 90 s what RQ may run: it is settled soon. What is later is over."""
    redis.flushdb()
    begins, rules = 1_700_000_000 * S, Policies(Policy(gap_us=60 * S))
    redis.hset("notifier:backlogs:{ann}", "default", "default")
    redis.zadd("notifier:backlog:{ann}:default", {"waits": 1})
    redis.hset("rq:job:waits", "origin", "default")
    for lease_s, ahead_s, expected_s in ((9, 3_600, 3_660), (9, 90, 60), (300, 300, 60)):
        redis.zadd("notifier:leases", {"one": begins + lease_s * S})
        redis.zadd("notifier:sent:{ann}", {"1": begins + ahead_s * S})
        found = exchange(redis, find_forecast(rules, "ann", clock=str(begins)))
        assert found.by_job["waits"].at == datetime.fromtimestamp(begins / S + expected_s, tz=UTC)


def test_a_device_is_waited_for_in_a_backlog_whose_head_came_from_another_lane(redis: Redis) -> None:
    """The backlog moved to the more urgent lane with what came behind its head."""
    redis.flushdb()
    begins = 1_700_000_000 * S
    redis.hset("notifier:backlogs:{ann}", mapping={"default": "urgent", "#w:default": "d"})
    redis.zadd("notifier:backlog:{ann}:default", {"waits": 1})
    redis.hset("rq:job:waits", mapping={"origin": "bulk", "push_targets": "- fcm:n|one"})
    redis.zadd("rq:scheduled:bulk", {"waits": begins / S + 60})
    found = exchange(redis, find_forecast(Policies(), "ann", clock=str(begins)))
    assert found.by_job["waits"].at == datetime.fromtimestamp(begins / S + 60, tz=UTC)


def test_a_thousand_wait(redis: Redis) -> None:
    """Of a line of 1,100, the first thousand have an expected time, and each is right to the µs."""
    redis.flushdb()
    rules = Policies(Policy((Window(50, "20s"), Window(300, "5m")), gap_us=S // 10))
    asked = Asked(redis, rules, [Event(0)] * 1_100, 0, ask_us=S)
    sent = asked.run()
    assert hold_true(asked, sent) == 1_000
    assert all(e.at == datetime.fromtimestamp(sent[int(j)] / 1e6, tz=UTC) for j, e in asked.found.items())


def test_behind_those_that_are_not_read_nothing_is_expected(redis: Redis) -> None:
    """What goes before them is known; of the others it is said that nobody knows."""
    redis.flushdb()
    categories = {key: {"lane": "default"} for key in ("default", "chat")}
    given = {"user": {"gap": "1s"}, "categories": categories, "providers": CONSOLE, "worker": {"lease": "10s"}}
    settings = parse_settings(json.dumps(given))
    many = [f"many-{n}" for n in range(1_100)]
    with Notifier(redis, settings) as notifier:
        notifier.send(note("ada"), job_id="gone")
        notifier.send(note("ada", category="chat"), job_id="early")
        notifier.send_many((note("ada") for _ in many), job_ids=many)
        notifier.send(note("ada", category="chat"), job_id="late")
    worker = calls.Worker(lanes=LANES, lease_us=1_000_000)
    run(redis, calls.pull(worker, calls.Room(2_000), RuleTable(settings.policies())))
    forecast = exchange(redis, find_forecast(settings.policies(), "ada"))
    for job_id in ("early", *many[:999]):
        assert forecast.by_job[job_id].at is not None
    assert [forecast.by_job.get(job_id) for job_id in (*many[1_000:], "late")] == [None] * 101
