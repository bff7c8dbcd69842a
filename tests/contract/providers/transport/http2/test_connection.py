"""What other clients of Apple fail at: sockets that wait, windows that run out, connections that die in silence.

And the limits as a strict server changes them. Real sockets, real TLS; each test holds one sentence.
"""

import asyncio
import socket
import time
from collections import Counter
from typing import Any

import structlog.testing

from notifier.providers.apns.provider import apns_id
from notifier.providers.apns.token import ProviderToken
from notifier.providers.apns.token_store import LocalTokenStore
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.http2 import wire as http2_wire
from notifier.providers.transport.http2.channel import BACKOFF_MIN_S
from notifier.simulators.wire import Reply
from tests.contract.apns_rig import KEY_ID, TEAM, TOKEN, rig

ERRORS = 3000  # the window would end at 2,427 of these answers


def connection(r: Any) -> Any:
    return r.provider._channel._connection


def outcomes(answers: list[Answer]) -> Counter[Outcome]:
    return Counter(answer.outcome for answer in answers)


# Sockets.


async def test_sends_one_after_the_other_do_not_wait(identity):
    """TCP_NODELAY is set: a send is not held back for 40 ms by Nagle's algorithm and a delayed acknowledgement."""
    async with rig(identity) as r:
        await r.send()
        plain = connection(r)._transport.get_extra_info("socket")
        assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_what_would_leave_too_late_is_not_written(identity, monkeypatch):
    """A process that is stopped between its look at the clock and the write sends nothing when it goes on."""
    async with rig(identity) as r:
        await r.send()
        start = connection(r)._start

        def stop_behind(request: Any) -> None:
            start(request)
            request.send_by = 0.0  # its time passes meanwhile

        monkeypatch.setattr(connection(r), "_start", stop_behind)
        answers = await asyncio.gather(r.send(), r.send())
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.UNSENT, "TooLate")}
        assert (await r.insist()).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 2


async def test_a_moment_too_late_costs_no_connection(identity, monkeypatch):
    """A busy process whose write is a moment late writes: to cut would leave in doubt what the connection carries."""
    async with rig(identity, latency_ms=20) as r:
        await r.send()
        start = connection(r)._start

        def pass_meanwhile(request: Any) -> None:
            start(request)
            request.send_by = asyncio.get_running_loop().time()

        monkeypatch.setattr(connection(r), "_start", pass_meanwhile)
        answers = await asyncio.gather(*(r.send() for _ in range(20)))
        assert outcomes(answers) == {Outcome.DELIVERED: 20}
        assert r.simulator.connections_opened == 1


# Windows.


async def test_the_rest_of_a_body_is_not_written_too_late(identity, monkeypatch):
    """A window that comes only after a request's time lets nothing more of it leave."""
    async with rig(identity) as r:
        r.simulator.window_updates = False
        for _ in range(65_535 // 3030):
            await r.send(title="t", body="x" * 3000)
        last = asyncio.create_task(r.send(title="t", body="x" * 3000))
        for _ in range(10):  # turns of the loop, until what fits has left
            await asyncio.sleep(0)
        (blocked,) = connection(r)._blocked.values()
        blocked.send_by = 0.0
        monkeypatch.setattr(connection(r)._h2, "room", lambda _: 10_000)
        connection(r).on_ready()
        assert not blocked.complete
        r.provider._channel._expire(blocked)
        assert (await last).outcome is Outcome.UNSENT


async def test_three_thousand_error_answers(identity):
    """Answers with a body are acknowledged to the connection too: its window outlasts any number of them."""
    async with rig(identity, scripts={TOKEN: [Reply(400, "BadDeviceToken")]}) as r:
        async with asyncio.timeout(60):
            for _ in range(ERRORS // 500):
                answers = await asyncio.gather(*(r.send() for _ in range(500)))
                assert {(a.outcome, a.reason) for a in answers} == {(Outcome.REJECTED, "BadDeviceToken")}
        assert r.simulator.connections_opened == 1
        assert len(r.log.arrivals) == ERRORS


async def test_five_hundred_large_answers_at_once(identity):
    """500 answers of 15 kB at once, a hundred times the connection's window, all arrive."""
    page = "<html>" + "x" * 15_000
    async with rig(identity, scripts={TOKEN: [Reply(502, page, delay_ms=50)]}) as r:
        await r.send("cd" * 32)
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(r.send() for _ in range(500)))
        assert {a.status for a in answers} == {502}
        assert r.simulator.peak_streams > 400
        assert r.simulator.connections_opened == 1


async def test_a_window_that_never_opens_again(identity):
    """A server that takes no more bytes is left after one timeout; what it never got whole is UNSENT, not UNKNOWN."""
    async with rig(identity, client={"timeout_us": 1_000_000}) as r:
        r.simulator.window_updates = False
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(r.send(title="t", body="x" * 3000) for _ in range(60)))
        assert set(outcomes(answers)) == {Outcome.DELIVERED, Outcome.UNSENT}
        assert outcomes(answers)[Outcome.DELIVERED] == len(r.log.arrivals) == 65_535 // 3030
        r.simulator.window_updates = True
        assert (await r.insist()).outcome is Outcome.DELIVERED
        assert r.simulator.connections_opened > 1


# The stream limit.


async def test_the_limit_as_it_changes(identity):
    """One stream, then many, then one, then many: what the server says holds at once, and nothing is refused by it."""
    async with rig(identity, max_streams=20, latency_ms=5) as r:
        for limit in (20, 1, 12, 1, 20):
            r.simulator.max_streams = limit
            await r.send()  # by its answer the client has read the new limit
            r.simulator.peak_streams = 0
            answers = await asyncio.gather(*(r.send() for _ in range(40)))
            assert outcomes(answers) == {Outcome.DELIVERED: 40}
            assert r.simulator.peak_streams == limit
        assert r.simulator.streams_refused == 0
        assert r.simulator.connections_opened == 1


async def test_the_limit_falls_under_way(identity):
    """With streams open over a limit that has just fallen, none is opened until they are below it."""
    async with rig(identity, max_streams=10, latency_ms=100) as r:
        await r.send()
        first = [asyncio.create_task(r.send()) for _ in range(10)]
        await r.log.reach(11)
        r.simulator.max_streams = 1
        rest = [asyncio.create_task(r.send()) for _ in range(4)]
        assert outcomes(await asyncio.gather(*first)) == {Outcome.DELIVERED: 10}
        r.simulator.peak_streams = 0
        assert outcomes(await asyncio.gather(*rest)) == {Outcome.DELIVERED: 4}
        assert r.simulator.peak_streams <= 1
        assert r.simulator.streams_refused == 0


async def test_back_to_one_after_a_rejection(identity):
    """Apple admits one stream again after it refused a provider token, and many after it took one: so do we."""
    refused = Reply(403, "InvalidProviderToken")
    async with rig(identity, max_streams=15, latency_ms=10, scripts={TOKEN: [refused]}) as r:
        for _ in range(2):
            assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED
            assert (await r.send(TOKEN)).outcome is Outcome.FAULT
            r.simulator.peak_streams = 0
            assert outcomes(await asyncio.gather(*(r.send(TOKEN) for _ in range(15)))) == {Outcome.FAULT: 15}
            assert r.simulator.peak_streams == 1
            r.simulator.latency_ms = 100  # so that they overlap
            answers = await asyncio.gather(*(r.send("cd" * 32) for _ in range(40)))
            r.simulator.latency_ms = 10
            assert outcomes(answers) == {Outcome.DELIVERED: 40}
            assert r.simulator.peak_streams == 15
        assert r.simulator.streams_refused == 0
        assert r.simulator.connections_opened == 1


async def test_every_send_has_its_deadline(identity):
    """With one stream and a silent server those that wait for it are answered in time too, UNSENT."""
    async with rig(identity, max_streams=1, client={"timeout_us": 500_000}) as r:
        await r.send()
        r.simulator.silent = True
        answers = await asyncio.gather(*(r.send() for _ in range(30)))
        found = outcomes(answers)
        # One stream to a connection; a slow machine has time to open another for those that still wait.
        assert 1 <= found[Outcome.UNKNOWN] <= r.simulator.connections_opened
        assert found[Outcome.UNKNOWN] + found[Outcome.UNSENT] == 30
        r.simulator.silent = False
        # The first of the 30 to end may have had a connection opened for the others, in the silence still.
        first, second = await r.insist(), await r.insist()
        assert first.outcome in {Outcome.DELIVERED, Outcome.UNKNOWN}
        assert second.outcome is Outcome.DELIVERED


# Connections that die, or are told to end.


async def test_half_dead_connection(identity):
    """A connection that died while idle is noticed before anything goes over it: nothing is lost or sent twice."""
    async with rig(identity) as r:
        await r.send()
        first = connection(r)
        r.simulator._dead.update(r.simulator.connections)  # it reads, as a network does that drops what it takes
        first.heard_at -= http2_wire.DOUBT_S
        answers = await asyncio.gather(*(r.send() for _ in range(20)))
        assert outcomes(answers) == {Outcome.DELIVERED: 20}
        assert r.simulator.connections_opened == 2
        assert Counter(a.message_id for a in r.log.arrivals).most_common(1)[0][1] == 1
        assert len(r.log.arrivals) == 21
        assert first.retired


async def test_idle_but_alive_connection(identity):
    """A connection that was long idle and answers is used on: no reconnect, one question for any number of sends."""
    async with rig(identity) as r:
        await r.send()
        mine = connection(r)
        for _ in range(3):
            mine.heard_at -= 3600
            asked = []
            ask = mine._ping
            mine._ping = lambda patience_s: (asked.append(patience_s), ask(patience_s))  # noqa: B023
            answers = await asyncio.gather(*(r.send() for _ in range(20)))
            mine._ping = ask
            assert outcomes(answers) == {Outcome.DELIVERED: 20}
            assert len(asked) == 1
        assert r.simulator.connections_opened == 1


async def test_goaway_says_why(identity):
    """Apple's reason for ending a connection is in the log, as one word; what had begun is answered all the same."""
    with structlog.testing.capture_logs() as logs:
        async with rig(identity, latency_ms=50) as r:
            await r.send()
            sends = [asyncio.create_task(r.send()) for _ in range(5)]
            await r.log.reach(6)
            r.simulator.go_away("Idle Timeout of something")
            assert outcomes(await asyncio.gather(*sends)) == {Outcome.DELIVERED: 5}
            await r.send()
            r.simulator.go_away("BadCertificate")
            await connection(r).ended
    reasons = [entry["reason"] for entry in logs if entry["event"] == "goaway"]
    assert reasons == ['{"reason": "Idle Timeout of something"}', "BadCertificate"]


async def test_a_server_that_moves_house_at_once(identity):
    """Its connections end right after their first answer: what comes then waits for the next one, not stopped."""
    async with rig(identity) as r:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(4):
            assert [a.outcome for a in await asyncio.gather(r.send(), r.send())] == [Outcome.DELIVERED] * 2
            r.simulator.go_away()
            await connection(r).ended
        assert r.simulator.connections_opened == 4
        assert loop.time() - began >= 3 * BACKOFF_MIN_S


async def test_cut_after_a_goaway(identity):
    """What a GOAWAY promised to answer, and then did not, is UNKNOWN; what it disowned is UNSENT."""
    async with rig(identity) as r:
        await r.send()  # stream 1
        r.simulator.latency_ms = 5000
        sends = [asyncio.create_task(r.send()) for _ in range(4)]  # streams 3, 5, 7 and 9
        await r.log.reach(5)
        r.simulator.go_away(last_stream_id=5)
        assert [(await send).outcome for send in sends[2:]] == [Outcome.UNSENT] * 2
        r.simulator.cut()
        assert [(await send).outcome for send in sends[:2]] == [Outcome.UNKNOWN] * 2


async def test_nothing_is_sent_again_behind_ones_back(identity):
    """What was under way when its connection broke is told, UNKNOWN, and never sent again by the client itself."""
    async with rig(identity, latency_ms=200) as r:
        await r.send()
        for round_ in range(3):
            sends = [asyncio.create_task(r.send(data={"n": n})) for n in range(10)]
            await r.log.reach(1 + 11 * round_ + 10)
            r.simulator.cut()
            assert outcomes(await asyncio.gather(*sends)) == {Outcome.UNKNOWN: 10}
            assert (await r.insist()).outcome is Outcome.DELIVERED
        assert max(Counter(a.message_id for a in r.log.arrivals).values()) == 1
        assert len(r.log.arrivals) == 1 + 3 * 11


# Tokens and ids.


async def test_a_new_token_on_the_same_connection(identity):
    """A provider token is renewed without a new connection, and without a send that fails."""
    ahead_s = [0.0]
    async with rig(identity, clock=lambda: time.time() + ahead_s[0]) as r:
        store = LocalTokenStore(lambda: time.time() + ahead_s[0])
        token = r.provider._token = ProviderToken(team_id=TEAM, key_id=KEY_ID, key=identity.key, store=store)
        await r.send()
        ahead_s[0] = 41 * 60
        token._look_at = 0.0
        answers = [await r.send() for _ in range(10)]
        assert outcomes(answers) == {Outcome.DELIVERED: 10}
        assert len({headers["authorization"] for headers in r.simulator.seen}) == 2
        assert r.simulator.connections_opened == 1


async def test_the_apns_id_can_be_told(identity):
    """The id that Apple knows a message by follows from the job's id and the token, so that anybody can look it up."""
    async with rig(identity, scripts={TOKEN: [Reply(403, "InvalidProviderToken")]}) as r:
        with structlog.testing.capture_logs() as logs:
            await r.send(job_id="a")
        (arrival,) = r.log.arrivals
        assert arrival.message_id == apns_id("a", TOKEN)
        assert [e["apns_id"] for e in logs if e["event"] == "apns_fault"] == [arrival.message_id]
