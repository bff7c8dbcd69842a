"""Circuits: what one worker makes of its providers' answers."""

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from notifier.providers.contract import Answer, Outcome
from notifier.scripts.loader import script
from tests.harness.patient_loop import skip
from workers.sending.circuits import FAILURES, MAX_KNOWN, Circuits

UP = Answer(Outcome.DELIVERED, 200)
AWAY = Answer(Outcome.UNSENT, reason="Unreachable")
WRONG = Answer(Outcome.FAULT, 403, "InvalidProviderToken")
SILENT = Answer(Outcome.UNKNOWN, reason="Timeout")
REFUSED = Answer(Outcome.UNSENT, reason="RefusedStream")
BUSY = Answer(Outcome.RETRY, 503, "ServiceUnavailable")
FULL = Answer(Outcome.FULL, 429, "RESOURCE_EXHAUSTED", 120_000_000)
MALFORMED = Answer(Outcome.REJECTED, reason="PayloadTooLarge")  # made here, nothing was sent
ITS_FAULT = Answer(Outcome.REFUSED, 401, "THIRD_PARTY_AUTH_ERROR")
SHUT = frozenset({"apns"})


class Told:
    """In Redis's place: what the script is told, as (route, what, kind); it answers as scripted, else ''."""

    def __init__(self, *replies: bytes) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.replies = list(replies)

    async def execute_command(self, _evalsha: str, sha: str, *words: Any, **_: bool) -> bytes:
        _keys, _ours, _rqs, *args = words
        if sha != script("circuit").sha:
            return b"OK"  # where it is noted that a service takes the key
        _clock, _worker, route, seen, _reason, _until, kind, *_ = args
        self.calls.append((route, seen, kind) if seen == "down" else (route, seen))
        return self.replies.pop(0) if self.replies else b""


async def told(*answers: Answer, shut: frozenset[str] = frozenset(), replies: tuple[bytes, ...] = ()) -> list[Any]:
    """What one worker tells after these answers of one route; the logged events at the end."""
    circuits = Circuits(redis := Told(*replies), "w", ["apns"])
    circuits.use(shut)
    for answer in answers:
        circuits.record("apns", answer)
    with capture_logs() as logs:
        await circuits.tell()
        await circuits.tell()
    return [*redis.calls, *[(entry["log_level"], entry["event"]) for entry in logs]]


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
        ([FULL] * 100, [("apns", "down", "full")]),
        ([FULL, UP], [("apns", "down", "full")]),
        ([AWAY, FULL, AWAY], [("apns", "down", "full")]),
        ([Answer(Outcome.BUSY, 429)], [("apns", "up")]),
        ([MALFORMED] * 100, []),
        ([ITS_FAULT] * 100, []),
        ([AWAY, MALFORMED, ITS_FAULT], [("apns", "down", "unreachable")]),
    ],
)
async def test_many_answers_are_one_telling(answers: list[Answer], expected: list[Any]) -> None:
    """Each route is told of once in a batch: the last that is sure; what is this worker's own affair, not at all."""
    assert await told(*answers) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(SILENT, ("apns", "down", "failing"), id="one silence is a failure"),
        pytest.param(MALFORMED, ("apns", "next"), id="one that was never sent is followed by another"),
        pytest.param(ITS_FAULT, ("apns", "next"), id="one refused for its own fault is followed by another"),
    ],
)
async def test_a_probe_speaks_of_its_route_alone(answer: Answer, expected: tuple[str, ...]) -> None:
    """While the route is held: what says nothing of it neither closes its circuit nor is a failed probe."""
    assert await told(answer, shut=SHUT) == [expected]


async def test_a_known_service_that_is_not_reached_is_no_success() -> None:
    """A worker that cannot reach a service under a `*.` waits for the route, and closes no circuit of it."""
    stranger = Answer(Outcome.RETRY, reason="Unreachable", retry_after_us=900_000_000)
    circuits = Circuits(redis := Told(), "w", ["webpush"])
    circuits.use(frozenset({"webpush@a.example"}))
    assert circuits.record("webpush@a.example", stranger) == (AWAY, True)
    assert circuits.record("webpush@b.example", stranger) == (stranger, False)
    await circuits.tell()
    assert redis.calls == [("webpush@a.example", "down", "unreachable")]


async def test_nobody_can_invent_a_circuit() -> None:
    """A push service that no configuration names has one only after it has delivered something here."""
    circuits = Circuits(redis := Told(), "w", ["webpush", "webpush@known.example"])
    for n in range(3 * MAX_KNOWN):
        name = f"webpush@{n}.example"
        for _ in range(FAILURES):
            assert circuits.record(name, SILENT) == (SILENT, False)
        assert circuits.record(name, AWAY) == (AWAY, False), "it waits for itself"
        circuits.record(name, Answer(Outcome.DEAD_TOKEN, 404))
    await circuits.tell()
    assert redis.calls == []
    assert circuits.record("webpush@known.example", AWAY) == (AWAY, True)
    circuits.record("webpush@7.example", UP)
    assert circuits.record("webpush@7.example", AWAY) == (AWAY, True)
    await circuits.tell()
    assert redis.calls == [(f"webpush@{name}.example", "down", "unreachable") for name in ("known", "7")]


async def test_no_number_of_services_fills_the_memory() -> None:
    """Clients name them, and what each does: it delivers, and then cannot be reached."""
    circuits = Circuits(Told(), "w", ["webpush"])
    for n in range(MAX_KNOWN + 2):
        for answer in (UP, BUSY, AWAY):
            circuits.record(f"webpush@{n}.example", answer)
            await circuits.tell()
    kept = [*vars(circuits).values(), circuits._unreached._delivered, circuits._unreached._noted]
    assert max(len(known) for known in kept if isinstance(known, dict | set)) <= MAX_KNOWN + 1


async def test_the_longest_wait_that_was_asked_for_is_told() -> None:
    """Of several 429 of one project the latest moment holds, and never less than was asked for."""

    class Noted(Told):
        async def execute_command(self, *words: Any, **_: bool) -> bytes:
            self.calls.append(tuple(words[12:15]))
            return b""

    circuits = Circuits(redis := Noted(), "w", ["fcm"])
    for asked_s in (0, 300, 60):
        circuits.record("fcm", Answer(Outcome.FULL, 429, "", asked_s * 1_000_000))
    await circuits.tell()
    ((first_us, _, share),) = redis.calls
    assert int(first_us) == 300_000_000
    assert int(share) >= 1000


async def test_what_is_seen_while_it_tells_is_for_the_next_time() -> None:
    """An answer that comes while Redis is told of trouble: the telling goes on, and the next one is of the answer."""

    class Slow(Told):
        async def execute_command(self, *words: Any, **options: bool) -> bytes:
            if not self.calls:
                circuits.record("apns", UP)
            return await super().execute_command(*words, **options)

    circuits = Circuits(redis := Slow(), "w", ["apns"])
    circuits.record("apns", AWAY)
    await circuits.tell()
    await circuits.tell()
    assert redis.calls == [("apns", "down", "unreachable"), ("apns", "up")]


async def test_people_are_told_once_and_by_rank() -> None:
    """Who opened it says so: an error where it is ours to mend, else a warning; the others are silent."""
    assert (await told(WRONG, replies=(b"opened",)))[1:] == [("error", "circuit_opened")]
    assert (await told(AWAY, replies=(b"opened",)))[1:] == [("warning", "circuit_opened")]
    assert (await told(AWAY, replies=(b"",)))[1:] == []
    assert (await told(UP, replies=(b"closed",)))[1:] == [("info", "circuit_closed")]
    assert (await told(AWAY, replies=(b"alone",)))[1:] == [("warning", "stepped_back")]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (WRONG, f"{WRONG.status} {WRONG.reason}"),
        (Answer(Outcome.FULL, 503), "503 its quota is used up"),
        (Answer(Outcome.FAULT, 404), "404 it refuses our key or our settings"),
        (replace(AWAY, seen="connection refused at a:1"), "connection refused at a:1"),
    ],
)
async def test_what_opened_a_circuit_is_told_in_words(answer: Answer, reason: str) -> None:
    """A status says by itself neither what it means for the route, nor who has to mend it."""
    circuits = Circuits(Told(b"opened"), "w", ["apns"])
    circuits.record("apns", answer)
    with capture_logs() as logs:
        await circuits.tell()
    assert [entry["reason"] for entry in logs] == [reason]


async def test_a_fault_of_one_message_is_its_own() -> None:
    """Where others get through, a second fault of one message is its own; a first one may be a key just revoked."""
    circuits = Circuits(redis := Told(), "w", ["apns"])
    assert circuits.record("apns", WRONG, 1) == (WRONG, True), "nobody got through yet"
    circuits.record("apns", UP)
    answer, _ = circuits.record("apns", WRONG, 1)
    assert (answer.outcome, answer.reason, bool(answer.help)) == (Outcome.REFUSED, WRONG.reason, True)
    await circuits.tell()
    assert redis.calls == [("apns", "up")]
    assert circuits.record("apns", WRONG, 0) == (WRONG, True)
    await circuits.tell()
    assert redis.calls[1:] == [("apns", "down", "fault")]
    circuits.use(SHUT)
    assert circuits.record("apns", WRONG, 1) == (WRONG, True), "nobody got through since it was refused"
    await circuits.tell()
    assert redis.calls[2:] == [("apns", "down", "fault")]
    circuits.record("apns", UP)
    circuits.use(frozenset())
    assert circuits.record("apns", WRONG, 1)[0].outcome is Outcome.REFUSED


async def test_what_works_after_trouble_is_told_at_once() -> None:
    """Law 3: no pull has said yet that the circuit is open, and a success was told just before the trouble."""
    circuits = Circuits(redis := Told(), "w", ["apns"])
    for answer in (UP, AWAY, UP):
        circuits.record("apns", answer)
        await circuits.tell()
    assert [seen for _, seen, *_ in redis.calls] == ["up", "down", "up"]


async def test_failures_that_were_told_of_count_no_more() -> None:
    """Another worker may have closed the circuit since: then one more failure alone does not open it again."""
    circuits = Circuits(redis := Told(), "w", ["apns"])
    for failures in (FAILURES, FAILURES - 1, 1):
        for _ in range(failures):
            circuits.record("apns", SILENT)
        await circuits.tell()
        redis.calls.append((str(failures),))
    down = ("apns", "down", "failing")
    assert redis.calls == [down, (str(FAILURES),), (str(FAILURES - 1),), down, ("1",)]


async def test_a_worker_steps_back_ever_longer() -> None:
    """Alone with its trouble it is away for about 1 s, then 2 s, for a minute at most; what works again ends that."""
    circuits = Circuits(redis := Told(), "w", ["apns", "fcm"])
    assert circuits.away_s() == 0
    for most_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 0.0, 1.0):
        redis.replies = [b"alone", b"alone"] if most_s else [b"closed"]
        for route in ("apns", "fcm"):
            circuits.record(route, AWAY if most_s else UP)
        await circuits.tell()
        assert 0.8 * most_s <= circuits.away_s() <= most_s
        skip(most_s)


async def test_a_new_key_of_a_platform_has_its_routes_probed() -> None:
    """Those of its apps, and of the services behind it that are held; no others."""
    circuits = Circuits(redis := Told(), "w", ["apns", "apns/driver", "webpush"])
    circuits.use(frozenset({"webpush@push.example", "apns"}))
    await circuits.probe("apns")
    await circuits.probe("webpush")
    assert sorted(call[:2] for call in redis.calls) == [
        (by, "retry") for by in ("apns", "apns/driver", "webpush", "webpush@push.example")
    ]


@pytest.mark.parametrize(
    ("answer", "in_vain"),
    [(AWAY, True), (WRONG, True), (Answer(Outcome.UNSENT, reason="TooLate"), True), (UP, False), (MALFORMED, False),
     (Answer(Outcome.UNSENT, reason="Closed"), False), (Answer(Outcome.UNSENT, 403, "ExpiredProviderToken"), False)],
)  # fmt: skip
async def test_who_cannot_get_through_says_so_once(answer: Answer, in_vain: bool) -> None:
    """Another worker is to try then, also by a route that has no circuit."""
    circuits = Circuits(Told(), "w", ["apns"])
    circuits.record("apns" if answer is WRONG else "webpush@invented.example", answer)
    await circuits.tell()
    assert [circuits.was_in_vain(), circuits.was_in_vain()] == [in_vain, False]


@pytest.mark.parametrize(
    ("answers", "in_trouble"), [([AWAY], True), ([WRONG], True), ([AWAY, UP], False), ([FULL], False), ([UP], False)]
)
async def test_who_cannot_get_through_is_in_trouble_until_something_gets_through(
    answers: list[Answer], in_trouble: bool
) -> None:
    """What others try in vain by any route is then for somebody else; a provider that is full is so for all alike."""
    circuits = Circuits(Told(), "w", ["apns"])
    for answer in answers:
        circuits.record("apns", answer)
        await circuits.tell()
    assert circuits.in_trouble is in_trouble
