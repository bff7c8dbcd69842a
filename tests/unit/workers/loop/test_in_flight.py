"""What was leased begins behind the calls to Redis that are made then, in order, and is counted meanwhile."""

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

import workers.loop.in_flight
from notifier.notification import Device
from notifier.queue.calls import Leased, Measured, Settlement, Worker
from notifier.queue.history import Handed, Reply
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.scripts.loader import Call, Script
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from workers.configuration.wiring import build_tuning
from workers.loop.in_flight import TURNS, Flights
from workers.loop.parts import Parts
from workers.loop.turns import Turns
from workers.sending.capacity import Capacity
from workers.sending.circuits import Circuits
from workers.sending.numbers import Numbers
from workers.sending.proofs import Silence
from workers.sending.sender import NotOursError, Sender
from workers.sending.settlements import returned

SETTINGS = parse_settings("providers: {fcm: {client: console}}")
DEVICE = Device("fcm", "a-token")


class Recorder:
    """In the place of the sender: notes what it is given, and whether the first step of a send has been made."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.began: list[str] = []
        self.ends = asyncio.Event()

    async def send(self, leased: Leased, _category: Category, _leased_at: float, _circuits: Circuits) -> Settlement:
        """Note it, and be under way from then on."""
        self.began.append(leased.job_id)
        await self.ends.wait()
        return returned(leased)


def flights(sender: Recorder, circuits: Any = None) -> Flights:
    """What a worker has in flight, before anything is."""
    policies: Policies = SETTINGS.policies()
    nobody: Any = None
    idle: Any = SimpleNamespace(wake=asyncio.Event())
    tuning = build_tuning(SETTINGS)
    parts = Parts(
        name="w", lanes=(), redis=nobody, idle=idle, sender=cast("Sender", sender), circuits=circuits,
        turns=Turns(Capacity({}), batch=1, most=1), rq_jobs=nobody, tuning=tuning,
    )  # fmt: skip
    found = Flights(parts)
    found.use(policies, RuleTable(policies))
    return found


def leased(name: str) -> Leased:
    """A leased job of this id."""
    return Leased(name, "1", f"user-{name}", "default", b"", None)


async def test_a_call_that_is_written_within_some_turns_goes_before_the_sends() -> None:
    """So Redis works while this process is busy with what was leased."""
    sender = Recorder()
    under_way = flights(sender)
    for name in "abc":
        under_way.begin_soon(leased(name), 10.0, None)
    for _ in range(TURNS):
        await asyncio.sleep(0)
        assert sender.began == []
    assert (len(under_way), under_way.unbegun, under_way.busy) == (3, 3, True)
    await under_way.all_begun.wait()
    assert sender.began == ["a", "b", "c"]
    assert (len(under_way), under_way.unbegun) == (3, 0)


async def test_what_is_leased_meanwhile_begins_with_the_others_and_after_them() -> None:
    """Messages of a user keep their order."""
    sender = Recorder()
    under_way = flights(sender)
    under_way.begin_soon(leased("a"), 10.0, None)
    await asyncio.sleep(0)
    under_way.begin_soon(leased("b"), 10.0, None)
    await under_way.all_begun.wait()
    assert sender.began == ["a", "b"]


async def test_nothing_is_waited_for_where_all_have_begun() -> None:
    """Nor where none was ever leased."""
    sender: Any = Recorder()
    under_way = flights(sender)
    await asyncio.wait_for(under_way.all_begun.wait(), 1)
    assert not under_way.busy


async def test_what_is_adopted_is_put_back_after_the_time_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Till then its worker may settle it. A provider whose client breaks proves nothing, and holds nothing up."""

    async def renews(*_: object) -> None:
        """Say that it was done."""

    monkeypatch.setattr(workers.loop.in_flight, "run_async", renews)
    broken: Any = SimpleNamespace(service=None)
    sender: Any = Recorder()
    sender.silences = lambda orphan, _: [Silence(broken, DEVICE)] if orphan.job_id == "c" else []
    under_way = flights(sender)
    with capture_logs() as told:
        for name, after_s in (("a", 3600.0), ("b", 0.0), ("c", 0.0)):
            under_way.adopt([leased(name)], after_s)
        while len(under_way._settlements) < 2:
            under_way.wake.clear()
            await under_way.wake.wait()
    assert {each.job_id for each in under_way._settlements} == {"b", "c"}
    assert [(line["event"], line["job_id"]) for line in told] == [("proof_broke", "c")]
    await under_way.give_up_unproven()


class Judge(Recorder):
    """Ends each send when it is told how."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, asyncio.Future[Settlement]] = {}

    async def send(self, leased: Leased, _category: Category, _leased_at: float, _circuits: Circuits) -> Settlement:
        self.began.append(leased.job_id)
        self.answers[leased.job_id] = asyncio.get_running_loop().create_future()
        return await self.answers[leased.job_id]

    async def end(self, job: Leased, *, taken: bool) -> None:
        reply = Reply("apns", 200 if taken else 429, 0.1, "delivered" if taken else "busy")
        settlement = returned(job)._replace(handed=Handed(0.0, [reply]))
        self.answers[job.job_id].set_result(settlement._replace(state="delivered") if taken else settlement)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_of_one_backlog_one_is_sent_at_a_time() -> None:
    """What is behind one that its provider did not take goes back behind it, also what is leased meanwhile (law 4)."""
    a1, a2, a3, a4, a5 = (leased(name)._replace(user="anna") for name in ("a1", "a2", "a3", "a4", "a5"))
    b1 = leased("b1")
    judge = Judge()
    under_way = flights(judge)
    for each in (a1, a2, a3, a4, b1):
        under_way.begin(each, 0.0)
    await asyncio.sleep(0)
    assert (judge.began, len(under_way)) == (["a1", "b1"], 5)
    await judge.end(a1, taken=True)
    assert judge.began == ["a1", "b1", "a2"]
    await judge.end(a2, taken=False)
    under_way.begin(a5, 0.0)
    await asyncio.sleep(0)
    assert (judge.began, len(under_way)) == (["a1", "b1", "a2"], 1)
    back = [(each.job_id, each.state) for each in under_way._settlements]
    assert back == [("a1", "delivered"), *((name, "backlog") for name in ("a2", "a3", "a4", "a5"))]
    under_way._settlements.clear()
    await under_way.settle_returned()
    under_way.begin(a2, 0.0)
    await asyncio.sleep(0)
    assert judge.began[-1] == "a2", "all of them are in Redis again"
    for each in (a2, b1):
        await judge.end(each, taken=True)


async def test_an_error_of_the_workers_own_leaves_the_permit_spent() -> None:
    """Law 1: nobody knows whether the message has left."""
    judge = Judge()
    under_way = flights(judge)
    under_way.begin(leased("a"), 0.0)
    await asyncio.sleep(0)
    judge.answers["a"].set_exception(LookupError("a defect"))
    for _ in range(3):
        await asyncio.sleep(0)
    (ended,) = under_way._settlements
    assert (ended.state, ended.reached) == ("failed", True)


@pytest.mark.parametrize(
    ("event", "job", "error"),
    [
        ("expired", leased("a")._replace(left_us=0), NotOursError()),
        ("dropped", leased("a")._replace(dropped="muted"), NotOursError()),
        ("sender_broke", leased("a"), LookupError("a defect")),
    ],
)
async def test_what_the_log_tells_of_one_says_of_whom(event: str, job: Leased, error: Exception) -> None:
    """Also of a function of RQ's own jobs that is not run."""
    judge = Judge()
    under_way = flights(judge)
    with capture_logs() as told:
        under_way.begin(job, 0.0)
        await asyncio.sleep(0)
        judge.answers["a"].set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way._note(under_way._settlements, [False])  # another worker has taken it over
    whom = {"user": "user-a", "job_id": "a", "category": "default"}
    assert [line["event"] for line in told] == [event, "lease_lost"]
    assert [{name: line.get(name) for name in whom} for line in told] == [whom, whom]


class SlowRedis:
    """Answers each settlement when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[list[str], dict[str, int]]] = []  # the jobs and the numbers of each settlement
        self.answers: list[asyncio.Future[None]] = []
        monkeypatch.setattr(workers.loop.in_flight, "run_async", self._run)
        monkeypatch.setattr("notifier.queue.calls.settle", self._settle)

    def _settle(self, batch: Sequence[Settlement], _rules: RuleTable, _worker: Worker, told: Measured) -> Call[Any]:
        numbers = {name: n for name, n in told.numbers.items() if n}
        names = [each.job_id for each in batch]
        return Call(cast("Script", (names, numbers)), [], (), lambda _: [True] * len(names))

    async def _run(self, _redis: Any, call: Call[Any]) -> Any:
        self.asked.append(cast("Any", call.script))
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return call.decode(None)

    async def answer(self, n: int, error: Exception | None = None) -> None:
        """Answer the n-th settlement, from 0."""
        if error is None:
            self.answers[n].set_result(None)
        else:
            self.answers[n].set_exception(error)
        for _ in range(5):
            await asyncio.sleep(0)


def counted(numbers: dict[str, int]) -> int:
    """Of how many sends these numbers say how late they were."""
    return sum(n for name, n in numbers.items() if name.startswith("late|default|") and not name.endswith("|s"))


class Sent:
    """Flights of batches of two, and sends that end at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.redis, self.judge = SlowRedis(monkeypatch), Judge()
        self.circuits = SimpleNamespace(has_news=False, tell=self._tell)
        self.flights = flights(self.judge, self.circuits)
        self.flights._tuning = replace(self.flights._tuning, batch=2)

    def pulling(self) -> AbstractContextManager[None]:
        """While a pull is under way."""
        return self.flights._turns.taking(self.flights, 0)

    async def _tell(self) -> None:
        self.circuits.has_news = False

    async def end(self, *names: str, taken: bool = True) -> None:
        """Begin these, and end them."""
        for name in names:
            self.flights.begin(leased(name), 0.0, asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        for name in names:
            await self.judge.end(leased(name), taken=taken)


async def test_a_batch_that_ends_during_a_pull_is_settled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """So Redis has work until the next pull comes. Each job is settled once, and each number is told once."""
    sent = Sent(monkeypatch)
    await sent.end("a")
    with_pull = await sent.flights.settling()
    assert with_pull is not None
    with sent.pulling():
        await sent.end("b")
        assert sent.redis.asked == []
        await sent.end("c", "d", "e", "f")
        assert [names for names, _ in sent.redis.asked] == [["b", "c"]], "one at a time"
        with_pull.decode(None)
        await sent.redis.answer(0)
        assert [names for names, _ in sent.redis.asked] == [["b", "c"], ["d", "e"]]
    next_pull = cast("Any", await sent.flights.settling())
    assert next_pull.script[0] == ["f"]
    next_pull.decode(None)
    await sent.redis.answer(1)
    assert (sent.flights.delivered, sent.flights.busy) == (6, False)
    told = [cast("Any", with_pull).script, *sent.redis.asked, next_pull.script]
    assert [counted(numbers) for _, numbers in told] == [1, 0, 5, 0]


async def test_a_settlement_beside_a_pull_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next round, which it wakes; so nothing is lost, and nothing waits for more sends to end."""
    sent = Sent(monkeypatch)
    with sent.pulling():
        await sent.end("a", "b")
        sent.flights.wake.clear()
        await sent.redis.answer(0, RedisConnectionError("gone"))
        assert sent.flights.wake.is_set()
    ending = asyncio.create_task(sent.flights.drain())
    await asyncio.sleep(0)
    await sent.redis.answer(1)
    await ending
    assert [names for names, _ in sent.redis.asked] == [["a", "b"], ["a", "b"]]
    assert sent.redis.asked[0] == sent.redis.asked[1], "with its numbers"


async def test_a_settlement_with_a_pull_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its numbers, whatever was settled beside that pull; and it is not settled there."""
    sent = Sent(monkeypatch)
    await sent.end("a")
    lost = cast("Any", await sent.flights.settling())
    with sent.pulling():
        await sent.end("b", "c")
        await sent.redis.answer(0)
        await sent.end("d", "e")
        await sent.redis.answer(1)
    assert sent.redis.asked == [(["b", "c"], {}), (["d", "e"], {})]
    await sent.end("f")
    again = cast("Any", await sent.flights.settling())
    assert (lost.script[0], again.script[0]) == (["a"], ["a", "f"])
    assert counted(again.script[1]) == 6 * counted(lost.script[1]) == 6


async def test_who_ends_waits_for_the_settlement_beside_a_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not made a second time meanwhile."""
    sent = Sent(monkeypatch)
    with sent.pulling():
        await sent.end("a", "b")
    ending = asyncio.create_task(sent.flights.drain())
    await asyncio.sleep(0)
    assert not ending.done()
    await sent.redis.answer(0)
    await ending
    assert [names for names, _ in sent.redis.asked] == [["a", "b"]]


@pytest.mark.parametrize("kept_for", ["a job that goes back", "news of a route", "no pull"])
async def test_what_comes_before_the_next_pull_is_not_settled_beside_one(
    monkeypatch: pytest.MonkeyPatch, kept_for: str
) -> None:
    """The next pull must not lease again what goes back, or later jobs of its backlog."""
    sent = Sent(monkeypatch)
    with sent.pulling() if kept_for != "no pull" else contextlib.nullcontext():
        sent.circuits.has_news = kept_for == "news of a route"
        await sent.end("a", taken=kept_for != "a job that goes back")
        await sent.end("b", "c")
        assert sent.redis.asked == []
    if kept_for == "a job that goes back":
        returning = asyncio.create_task(sent.flights.settle_returned())
        await asyncio.sleep(0)
        await sent.redis.answer(0)
        await returning
        assert [names for names, _ in sent.redis.asked] == [["a", "b"]]
    assert cast("Any", await sent.flights.settling()).script[0] == (["c"] if sent.redis.asked else ["a", "b"])
