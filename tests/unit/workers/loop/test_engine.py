"""The engine's rounds, and what Redis answers while it cannot write: passing, and told in plain words."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

import workers.loop.engine
import workers.loop.idle
import workers.served
from notifier.queue.calls import Leased, Pulled
from notifier.scripts.loader import Call
from notifier.scripts.records import PullFields
from notifier.settings import parse_settings
from notifier.store.connection import is_passing, unusable
from notifier.store.partitions import Partition
from tests.unit.workers.loop.test_in_flight import leased
from workers.configuration.wiring import build_tuning
from workers.loop.engine import Engine
from workers.loop.idle import IdleWorker
from workers.loop.in_flight import Flights
from workers.loop.parts import Parts
from workers.loop.turns import Turns
from workers.sending.capacity import Capacity
from workers.sending.numbers import Numbers
from workers.sending.settlements import returned
from workers.served import Served

FULL = "command not allowed when used memory > 'maxmemory'."
IN_A_SCRIPT = "Error running script (call to f_1): @user_script:9: @user_script: 9: -"

PASSING = [
    OutOfMemoryError(FULL),
    ReadOnlyError("You can't write against a read only replica."),
    MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    ResponseError(f"{IN_A_SCRIPT}OOM {FULL}"),
    ResponseError(f"{IN_A_SCRIPT}READONLY You can't write against a read only replica."),
    ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk."),
    ResponseError("NOREPLICAS Not enough good replicas to write."),
    ResponseError("BUSY Redis is busy running a script."),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: str(error)[-40:])
def test_a_refusal_that_passes_ends_no_worker(error: ResponseError) -> None:
    """Law 8: redis-py takes the code off some of the answers; each is known all the same."""
    assert is_passing(error)


def test_what_does_not_pass_is_raised() -> None:
    """A fault of the script's or of the rights is for people to see, not to be asked again for ever."""
    assert not is_passing(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    assert not is_passing(ResponseError(f"{IN_A_SCRIPT}attempt to index a nil value"))


@pytest.mark.parametrize("error", [PASSING[0], PASSING[3]], ids=["redis 7", "redis 6.2"])
def test_a_full_redis_is_named_so(error: ResponseError) -> None:
    """Out of memory is said, and what helps."""
    assert str(unusable(error)) == (
        "Redis is out of memory and takes nothing new; let the workers drain it, or raise its maxmemory"
    )
    assert str(unusable(PASSING[1])) == "Redis is a replica (READONLY); redis.url is to name its primary"


SETTINGS = parse_settings("providers: {fcm: {client: console}}")
NOTHING: dict[str, Any] = dict.fromkeys(("leased", "rq_jobs", "orphans", "unread", "asked", "chosen"), ())


class Rounds:
    """An engine whose Redis is this: it notes what is asked, and what is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Sequence[Any]) -> None:
        """answers: to the calls of the next looks, each the last of its round trip."""
        self.did: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(workers.loop.engine, "run_async", self._alone)
        monkeypatch.setattr(workers.loop.engine, "run_together", self._together)

        async def nothing() -> None:
            """Tell nobody."""

        async def wait(_due_in_s: float | None, **_: bool) -> bool:
            self.did.append("waits")
            return True

        idle: Any = IdleWorker(None, None, "w", ["default"])
        idle.leads, idle.wait = True, wait
        circuits: Any = SimpleNamespace(
            tell=nothing, away_s=lambda: 0.0, was_in_vain=lambda: False, in_trouble=False, use=lambda _: None
        )
        sender: Any = SimpleNamespace(numbers=Numbers())
        rq_jobs: Any = SimpleNamespace()
        tuning = build_tuning(SETTINGS)
        self.parts = Parts(
            name="w", lanes=["default"], redis=None, idle=idle, sender=sender, circuits=circuits,
            turns=Turns(Capacity({}), batch=10, most=10), rq_jobs=rq_jobs, tuning=tuning,
        )  # fmt: skip
        self.engine = Engine(self.parts, SETTINGS.policies())
        self.rates: list[Any] = []  # as the engine says in each look that it knows them

    async def _alone(self, _redis: Any, call: Call[Any]) -> None:
        self.did.append(call.script.name)

    async def _together(self, _redis: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        self.did.append(" ".join(call.script.name for call in calls))
        self.rates += [call.args[PullFields._fields.index("rates")] for call in calls if call.script.name == "pull"]
        return [*(call.decode([1]) for call in calls[:-1]), self._answers.pop(0)] if calls else []

    def go(self, rounds: int = 1) -> list[str]:
        """Go so many rounds; returns what was asked in them."""

        async def go() -> None:
            for _ in range(rounds):
                await self.engine._round(wait=True)

        asyncio.run(go())
        return self.did


def pulled(**more: Any) -> Pulled:
    """The reply to a pull that found nothing."""
    plain = {"now_us": 1, "next_us": None, "suspended": False, "rooms": {}, "taken": 0, "shut": None}
    return Pulled(**{**NOTHING, **plain, "idle": 0, "queued": 0, "unpublished": False, "rates": None, **more})


def test_a_round_is_one_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended is settled, and more is taken, and somebody idle is called: in this order, all at once."""
    rounds = Rounds(monkeypatch, [pulled(taken=10, queued=1), pulled()])
    rounds.engine.flights._settlements.append(returned(leased("a")))
    assert rounds.go(2) == ["settle pull", "hand_over pull", "waits"]
    assert not rounds.engine.flights.busy


def test_who_is_told_of_other_rates_looks_at_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says from then on that it knows these, whether it can follow them or not."""
    rounds = Rounds(monkeypatch, [pulled(rates=b"7"), pulled()])

    async def look() -> None:
        rounds.did.append("looks")

    rounds.engine.look_at_rates = look
    assert rounds.go(2) == ["pull", "looks", "pull", "waits"]
    assert rounds.rates == [b"", b"7"]


def test_somebody_idle_is_called_before_this_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a route nothing more may go here, so somebody else is to look at once, not when this one looks again."""
    rounds = Rounds(monkeypatch, [pulled(rooms={"fcm": 0}, idle=1), pulled(rooms={"fcm": 0})])
    assert rounds.go(2) == ["pull", "hand_over", "waits", "pull", "waits"], "nobody for what was found before"


def test_who_is_called_and_has_no_room_passes_the_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have room by that route. But it goes round once, not again and again."""
    rounds = Rounds(monkeypatch, [pulled(rooms={"fcm": 0})] * 4)
    monkeypatch.setattr(workers.loop.idle, "PASS_ON_S", 0.0)
    for called in (b"first", b"first", b"second"):
        rounds.engine._idle.called = called
        rounds.go()
    passed, kept = ["pull", "hand_over", "waits"], ["pull", "waits"]
    assert rounds.did == [*passed, *kept, *passed]
    monkeypatch.setattr(workers.loop.idle, "PASS_ON_S", 3600.0)
    rounds.engine._idle.called = b"third"
    assert rounds.go() == [*passed, *kept, *passed, *kept]
    assert rounds.engine._idle.called == b"third", "it goes with a later look"


def test_who_takes_what_lasts_calls_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who does not lead: it may have looked because another called, who is busy as well."""
    rounds = Rounds(monkeypatch, [pulled(rq_jobs=[("a", "1")], taken=1)])
    rounds.engine._idle.leads = False

    async def runs() -> None:
        rounds.did.append("runs")

    monkeypatch.setattr(rounds.engine, "_run_rq_jobs", runs)
    assert rounds.go() == ["pull", "hand_over", "runs"]


def test_who_follows_looks_for_nothing_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knew to fall due is its leader's to look for, also once its time has passed."""
    rounds = Rounds(monkeypatch, [pulled()])

    async def follows(_due_in_s: float | None, **_: bool) -> bool:
        rounds.did.append("waits")
        rounds.engine._due_at = 0.0
        return False

    rounds.engine._idle.wait = follows  # type: ignore[method-assign]
    assert rounds.go(4) == ["pull", "waits", "waits", "waits", "waits"]


def test_what_was_leased_begins_though_the_settlement_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One script may meet what it cannot read; the other's reply is not lost for that, and the error is told."""
    rounds = Rounds(monkeypatch, [])
    rounds.engine.flights._settlements.append(returned(leased("a")))

    async def fails(_redis: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        assert len(calls) == len("ab")
        return [ResponseError("WRONGTYPE"), pulled(leased=[leased("b")])]

    async def sends(*_: object) -> None:
        """Say nothing of it yet."""

    monkeypatch.setattr(Flights, "_send", sends)
    monkeypatch.setattr(workers.loop.engine, "run_together", fails)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        rounds.go()
    assert len(rounds.engine.flights) == 1
    assert [each.job_id for each in rounds.engine.flights._settlements] == ["a"], "it is tried again"


def test_after_an_outage_others_come_back_before_their_sends_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back first finds the leases of all ended; those who wait to connect know what was delivered.

    Who starts does not know whether there was an outage.
    """
    orphans = [leased("a")]
    rounds = Rounds(monkeypatch, [pulled(orphans=orphans) for _ in range(4)])
    waits: list[float] = []
    rounds.engine.flights.adopt = lambda _, after_s=0.0: waits.append(after_s)  # type: ignore[method-assign]
    monkeypatch.setattr(workers.loop.engine, "LONGEST_RECONNECT_S", 3600.0)
    rounds.go()
    rounds.engine._all_back_at = 0.0
    rounds.go()
    rounds.engine._outage = 1
    rounds.go()
    rounds.engine._note_reachable()
    rounds.go()
    assert [round(max(0.0, wait), -2) for wait in waits] == [3600.0, 0.0, 3600.0, 3600.0]


def test_a_suspect_whose_begin_got_no_answer_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not sent, and this worker lives: it stays this worker's, and no third death is laid to it."""
    rounds = Rounds(monkeypatch, [pulled(), pulled()])
    rounds.engine._suspects.append((leased("a"), 0.0))
    rounds.engine.flights.begin = lambda leased, _: rounds.did.append(f"sends {leased.job_id}")  # type: ignore[method-assign,assignment]
    replies = [RedisConnectionError("Connection closed by server."), True]

    async def loses(call: Call[Any]) -> Any:
        if call.script.name != "begin":
            return None
        if isinstance(reply := replies.pop(0), Exception):
            raise reply
        return reply

    monkeypatch.setattr(rounds.engine, "_call", loses)
    with pytest.raises(RedisConnectionError):
        rounds.go()
    assert rounds.go() == ["pull", "pull", "sends a"]
    assert rounds.engine._suspects == []


async def test_who_ends_while_redis_is_away_asks_it_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call could wait for the whole timeout, and the pause before the next look may be long: it is cut short."""
    asked: list[str] = []
    looked = asyncio.Event()

    async def away(_redis: Any, call: Any) -> None:
        asked.append("hand_over" if isinstance(call, Call) else "pull")
        looked.set()
        raise RedisTimeoutError

    async def nothing(*_: object) -> None:
        """Do nothing."""

    rounds = Rounds(monkeypatch, [])
    for module, name in ((workers.loop.engine, "run_together"), (workers.loop.engine, "run_async")):
        monkeypatch.setattr(module, name, away)
    monkeypatch.setattr(workers.served, "run_async", away)
    monkeypatch.setattr(workers.loop.engine, "RECONNECTS", EqualJitterBackoff(cap=3600.0, base=3600.0))
    rounds.parts.circuits.begin = rounds.parts.idle.close = nothing  # type: ignore[method-assign]
    redis, sender = SimpleNamespace(aclose=nothing, delete=nothing), SimpleNamespace(close=nothing, numbers=Numbers())
    parts = replace(rounds.parts, redis=redis, sender=sender)
    served = Served(Partition(0, 1, None, None), parts, SETTINGS.policies(), "")
    served.engine.mender.note_failed()
    served.engine.mender.take_over = nothing  # type: ignore[method-assign]

    working = asyncio.create_task(served.engine.run())
    await looked.wait()
    served.engine.stop()
    await working
    await served.leave(registered=True)
    assert asked == ["pull"]


@pytest.mark.parametrize(("count", "order"), [(1, "pull a pull waits"), (3, "pull pull waits a b c")])
def test_a_few_sends_go_before_the_next_pull(monkeypatch: pytest.MonkeyPatch, count: int, order: str) -> None:
    """Redis works on the next pull while many begin; a message that comes alone need not wait for it."""
    names = "abc"[:count]
    rounds = Rounds(monkeypatch, [pulled(leased=[leased(name) for name in names], taken=count), pulled()])

    async def send(sent: Leased, *_: object) -> None:
        rounds.did.append(sent.job_id)
        await asyncio.Event().wait()

    monkeypatch.setattr(rounds.parts.sender, "send", send, raising=False)

    async def go() -> None:
        for _ in range(2):
            await rounds.engine._round(wait=True)
        await rounds.engine.flights.all_begun.wait()

    asyncio.run(go())
    assert " ".join(rounds.did) == order
