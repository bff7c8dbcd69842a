"""The connection to Apple: many at once, what breaks, and what is made of it. Real sockets, real TLS."""

import asyncio
import itertools
import socket

import pytest
import structlog.testing

from notifier.notification import Notification
from notifier.providers.apns.payload import PAYLOAD_BYTES, payload
from notifier.providers.contract import Outcome
from notifier.providers.transport.http2 import wire as http2_wire
from notifier.simulators.wire import Reply
from tests.contract.apns_rig import TOKEN, dispatch, make_provider, rig

# Many at once.


async def test_many_large_bodies(identity):
    """500 bodies of 4,096 bytes at once, far over the connection's window, all arrive."""
    room = PAYLOAD_BYTES - len(payload(Notification(user="u", devices=[], title="t", body="")))
    body = "x" * (room - len(',"body":""'))
    async with rig(identity) as r:
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(r.send(title="t", body=body) for _ in range(500)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert len({a.message_id for a in r.log.arrivals}) == 500
        assert r.simulator.connections_opened == 1


async def test_narrow_streams(identity):
    """A body wider than its stream's window goes out in parts as the server takes them, and arrives whole."""
    async with rig(identity, window_bytes=1000) as r:
        await r.send(data={"x": "y" * 4000})
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(r.send(data={"x": "y" * 4000}) for _ in range(30)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert {len(a.data["x"]) for a in r.log.arrivals} == {4000}


async def test_unfinished_body(identity):
    """A request of which a part never left is UNSENT at its timeout: nobody can act on half a message."""
    async with rig(identity, window_bytes=0, client={"timeout_us": 200_000}) as r:
        await r.send()  # before the client has read how narrow the window is
        answer = await r.send()
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Timeout")
        assert len(r.log.arrivals) == 1


async def test_stream_limit(identity):
    """Never more streams than the server admits: one until a token was accepted, then what it says."""
    async with rig(identity, max_streams=7, latency_ms=5) as r:
        answers = await asyncio.gather(*(r.send() for _ in range(60)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert r.simulator.streams_refused == 0
        assert r.simulator.peak_streams == 7


async def test_send_by(identity):
    """What got no stream before its send_by is UNSENT in time, and is never sent after it."""
    async with rig(identity, max_streams=1, latency_ms=200) as r:
        first = asyncio.create_task(r.send())
        await r.log.reach(1)
        late = await r.send(within_s=0.05)
        assert not first.done(), "it did not wait for the stream of the first"
        r.simulator.latency_ms = 0
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        assert (await r.send(within_s=-1)).outcome is Outcome.UNSENT
        assert (await first).outcome is Outcome.DELIVERED
        assert (await r.send()).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 2


async def test_what_waits_for_a_stream_has_its_whole_time_for_the_answer(identity):
    """One stream at a time, and answers that take a while: what was begun is answered, and the rest never left."""
    async with rig(identity, max_streams=1, latency_ms=60, client={"timeout_us": 200_000}) as r:
        answers = await asyncio.gather(*(r.send() for _ in range(6)))
        delivered = [a for a in answers if a.outcome is Outcome.DELIVERED]
        assert {(a.outcome, a.reason) for a in answers if a not in delivered} <= {(Outcome.UNSENT, "NoStream")}
        assert len(delivered) == len(r.log.arrivals)
        assert r.simulator.connections_opened == 1


async def test_half_a_body_is_not_finished_after_send_by(identity):
    """A body that waits for a window is given up when its time is up: not sent, and the connection is as good."""
    async with rig(identity, window_bytes=0) as r:
        await r.send()  # before the client has read how narrow the window is
        late = await r.send(within_s=0.1)
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        assert len(r.log.arrivals) == 1
        assert r.provider._channel._connection is not None
        assert r.simulator.connections_opened == 1


# What breaks.


async def test_timeout(identity):
    """A request that left and has no answer in time is UNKNOWN; its neighbours are not disturbed."""
    scripts = {TOKEN: [Reply(200, delay_ms=5000)]}
    async with rig(identity, scripts=scripts, latency_ms=10, client={"timeout_us": 300_000}) as r:
        await r.send("cd" * 32)
        slow = asyncio.create_task(r.send())
        await r.log.reach(2)
        while not slow.done():
            assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED
        answer = await slow
        assert (answer.outcome, answer.reason) == (Outcome.UNKNOWN, "Timeout")
        assert r.simulator.connections_opened == 1


async def test_silent_connection_is_left(identity):
    """A connection that said nothing for a whole timeout gets no further request; the next is answered."""
    scripts = {TOKEN: [Reply(200, delay_ms=5000)]}
    async with rig(identity, scripts=scripts, client={"timeout_us": 300_000}) as r:
        await r.send("cd" * 32)
        assert (await r.send()).outcome is Outcome.UNKNOWN
        assert (await r.insist(token="cd" * 32)).outcome is Outcome.DELIVERED
        assert r.simulator.connections_opened == 2


async def test_goaway(identity):
    """After a GOAWAY: above the last stream UNSENT, the rest is answered, the next goes elsewhere."""
    async with rig(identity, latency_ms=150) as r:
        await r.send()  # stream 1
        sends = [asyncio.create_task(r.send()) for _ in range(4)]  # streams 3, 5, 7 and 9
        await r.log.reach(5)
        r.simulator.go_away(last_stream_id=5)
        answers = await asyncio.gather(*sends)
        assert [a.outcome for a in answers] == [Outcome.DELIVERED] * 2 + [Outcome.UNSENT] * 2
        assert (await r.insist()).outcome is Outcome.DELIVERED
        assert r.simulator.connections_opened == 2
        assert len(r.simulator.connections) == 1


async def test_goaway_before_the_first_answer(identity):
    """A server that restarts in order is no outage: what it took is answered, the rest goes over a new connection."""
    async with rig(identity, max_streams=1, latency_ms=150) as r:
        sends = [asyncio.create_task(r.send()) for _ in range(4)]
        await r.log.reach(1)
        r.simulator.go_away()
        assert [answer.outcome for answer in await asyncio.gather(*sends)] == [Outcome.DELIVERED] * 4
        assert r.simulator.connections_opened == 2


async def test_goaway_and_never_an_answer(identity):
    """Who takes a request, says why it goes and never answers counts as gone for that once the connection has ended."""
    scripts = {TOKEN: [Reply(200, delay_ms=5000)]}
    async with rig(identity, scripts=scripts, client={"timeout_us": 300_000}) as r:
        lost = asyncio.create_task(r.send())
        await r.log.reach(1)
        r.simulator.go_away("BadCertificate")
        assert (await lost).outcome is Outcome.UNKNOWN
        await asyncio.gather(*(connection.ended for connection in r.provider._channel._living))
        answer = await r.send("cd" * 32)
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Unreachable")
        assert answer.seen.endswith(": ended before it answered anything: BadCertificate")


async def test_backoff_grows(identity):
    """Each connection that cannot be opened doubles the time to the next, and all are answered meanwhile."""
    with socket.socket() as taken:  # bound but not listening: refuses
        taken.bind(("127.0.0.1", 0))
        provider = make_provider(identity, f"https://127.0.0.1:{taken.getsockname()[1]}")
        with structlog.testing.capture_logs() as logs:
            for _ in range(6):
                assert (await provider.send(dispatch())).outcome is Outcome.UNSENT
                provider._channel._not_before = 0.0
        waits_ms = [entry["wait_ms"] for entry in logs if entry["event"] == "provider_unreachable"]
        assert waits_ms[0] == 200
        assert all(b >= 0.99 * a for a, b in itertools.pairwise(waits_ms))
        assert 3_000 <= waits_ms[5] <= 6_400
        await provider.close()


async def test_cancelled_send(identity):
    """A send that its caller cancels gives its stream back."""
    async with rig(identity, max_streams=1, scripts={TOKEN: [Reply(200, delay_ms=5000)]}) as r:
        send = asyncio.create_task(r.send())
        await r.log.reach(1)
        send.cancel()
        with pytest.raises(asyncio.CancelledError):
            await send
        assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED


async def test_keep_alive(identity, monkeypatch):
    """An idle connection that still answers is kept, one that does not is left for a new one."""
    monkeypatch.setattr(http2_wire, "IDLE_S", 0.05)
    async with rig(identity, client={"timeout_us": 200_000}) as r:
        await r.send()
        connection = r.provider._channel._connection
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(connection.ended), 0.2)
        (server_side,) = r.simulator.connections
        server_side._transport.pause_reading()
        await asyncio.wait_for(connection.ended, 5)
        assert (await r.insist()).outcome is Outcome.DELIVERED
        server_side.abort()
