"""Circuits: what one worker makes of its providers' answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from notifier.providers.contract import Answer, Outcome
from workers.circuits import FAILURES, Circuits

UP = Answer(Outcome.DELIVERED, 200)
AWAY = Answer(Outcome.UNSENT, reason="Unreachable")
WRONG = Answer(Outcome.FAULT, 403, "InvalidProviderToken")
SILENT = Answer(Outcome.UNKNOWN, reason="Timeout")
REFUSED = Answer(Outcome.UNSENT, reason="RefusedStream")
BUSY = Answer(Outcome.RETRY, 503, "ServiceUnavailable")


class Told:
    """In Redis's place: what the script is told, as (route, what, kind); it answers as scripted, else ''."""

    def __init__(self, *replies: bytes) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.replies = list(replies)

    async def evalsha(self, _sha: str, _keys: int, *args: Any) -> bytes:
        self.calls.append(tuple(args[2:5]))
        return self.replies.pop(0) if self.replies else b""


def told(*answers: Answer, shut: frozenset[str] = frozenset(), replies: tuple[bytes, ...] = ()) -> list[Any]:
    """What one worker tells after these answers of one route; the logged events at the end."""

    async def run() -> list[Any]:
        redis = Told(*replies)
        circuits = Circuits(redis, "w", ["apns"])
        circuits.use(shut)
        for answer in answers:
            circuits.saw("apns", answer)
        with capture_logs() as logs:
            await circuits.tell()
            await circuits.tell()
        return [*redis.calls, *[(entry["log_level"], entry["event"]) for entry in logs]]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([UP], [("apns", "up")]),
        ([Answer(Outcome.REJECTED, 400)], [("apns", "up")]),
        ([AWAY] * 100, [("apns", "down", "unreachable")]),
        ([WRONG] * 100, [("apns", "down", "fault")]),
        ([AWAY, UP], [("apns", "up")]),
        ([UP, AWAY], [("apns", "down", "unreachable")]),
        ([SILENT] * (FAILURES - 1), []),
        ([SILENT] * FAILURES, [("apns", "down", "failing")]),
        ([BUSY] * FAILURES, [("apns", "down", "failing")]),
        ([SILENT] * 6 + [UP] + [SILENT] * 6, [("apns", "up")]),
        ([Answer(Outcome.UNSENT, reason=reason) for reason in ("TooLate", "Closed", "GoAway", "RefusedStream")], []),
        ([REFUSED] * (FAILURES - 1), []),
        ([REFUSED] * FAILURES, [("apns", "down", "failing")]),
        ([Answer(Outcome.UNSENT, 401, "UNAUTHENTICATED")] * 100, []),
        ([Answer(Outcome.UNSENT, 403, "ExpiredProviderToken")] * 100, []),
    ],
)
def test_many_answers_are_one_telling(answers: list[Answer], expected: list[Any]) -> None:
    """Each route is told of once in a batch: the last that is sure; what is this worker's own affair, not at all."""
    assert told(*answers) == expected


def test_a_probe_without_an_answer_is_a_failure() -> None:
    """While the route is held, one silence is enough."""
    assert told(SILENT, shut=frozenset({"apns"})) == [("apns", "down", "failing")]


def test_what_is_seen_while_it_tells_is_for_the_next_time() -> None:
    """An answer that comes while Redis is told of trouble: the telling goes on, and the next one is of the answer."""

    async def run() -> None:
        class Slow(Told):
            async def evalsha(self, _sha: str, _keys: int, *args: Any) -> bytes:
                if not self.calls:
                    circuits.saw("apns", UP)
                return await super().evalsha(_sha, _keys, *args)

        circuits = Circuits(redis := Slow(), "w", ["apns"])
        circuits.saw("apns", AWAY)
        await circuits.tell()
        await circuits.tell()
        assert redis.calls == [("apns", "down", "unreachable"), ("apns", "up")]

    asyncio.run(run())


def test_people_are_told_once_and_by_rank() -> None:
    """Who opened it says so: an error where it is ours to mend, else a warning; the others are silent."""
    assert told(WRONG, replies=(b"opened",))[1:] == [("error", "circuit_opened")]
    assert told(AWAY, replies=(b"opened",))[1:] == [("warning", "circuit_opened")]
    assert told(AWAY, replies=(b"",))[1:] == []
    assert told(UP, replies=(b"closed",))[1:] == [("info", "circuit_closed")]
    assert told(AWAY, replies=(b"alone",))[1:] == [("warning", "stepped_back")]


def test_a_fault_of_one_message_is_its_own() -> None:
    """Where the route works, a refused topic waits for itself: nobody else does, and it is told as an error."""

    async def run() -> None:
        circuits = Circuits(redis := Told(), "w", ["apns"])
        assert circuits.saw("apns", UP)
        with capture_logs() as logs:
            assert not circuits.saw("apns", Answer(Outcome.FAULT, 400, "TopicDisallowed"))
        assert [(entry["log_level"], entry["event"]) for entry in logs] == [("error", "fault")]
        await circuits.tell()
        assert redis.calls == [("apns", "up")]

    asyncio.run(run())


def test_a_worker_steps_back_ever_longer() -> None:
    """Alone with its trouble it is away for about 1 s, then 2 s; what works again ends that."""

    async def run() -> None:
        circuits = Circuits(Told(b"alone", b"alone", b"closed"), "w", ["apns"])
        assert circuits.away_s() == 0
        circuits.saw("apns", AWAY)
        await circuits.tell()
        assert 0.7 < circuits.away_s() <= 1.0

    asyncio.run(run())
