"""A client takes leave, and its server goes on talking: that is nobody's fault, and nobody is told of it."""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from notifier.providers.apns.tls import context
from notifier.providers.contract import Outcome
from notifier.providers.transport.http1 import http1_lives
from notifier.providers.transport.http2.channel import Channel
from notifier.simulators.fcm import make_service_account
from tests.contract.apns_rig import Identity, dispatch, make_provider
from tests.harness.sections import section
from tests.hostile.servers import ACK, PING, H1Peer, H2Peer, HostileServer, frame, serve_http1_well, serve_http2_well
from tests.hostile.suffering import Complaints
from tests.hostile.test_hostile_http1 import Stage


def channel_to(server: HostileServer, identity: Identity, timeout_s: float = 5.0) -> Channel:
    """A channel to this server, to be probed."""
    tls = context(section("apns", client="console", ca_file=identity.certificates.ca_file))
    return Channel(host="127.0.0.1", port=server.port, tls=tls, timeout_s=timeout_s)


class Talker:
    """Serves well until its client takes leave, and talks after that; `talked` is set then."""

    def __init__(self, well: Callable[[Any], None], words: bytes) -> None:
        self.talked = threading.Event()
        self._well, self._words = well, words

    def __call__(self, peer: Any) -> None:
        def listen(size: int) -> bytes:
            found = b""
            with contextlib.suppress(OSError):  # a client may hang up without taking leave
                if found := receive(size):
                    return found
                send(self._words)  # after the client's goodbye; this direction is still open
            self.talked.set()
            return found

        sock: ssl.SSLSocket = peer.sock
        receive, send = sock.recv, sock.sendall
        peer.sock = Ears(sock, listen)
        self._well(peer)


class Ears:
    """A socket whose `recv` is another."""

    def __init__(self, sock: ssl.SSLSocket, recv: Callable[..., bytes]) -> None:
        self.recv, self.sendall = recv, sock.sendall


@contextlib.asynccontextmanager
async def in_silence(talker: Talker) -> AsyncIterator[None]:
    """Nothing is logged from here on, and the event loop has nothing to say."""
    with capture_logs() as lines, Complaints() as complaints:
        yield
        assert await asyncio.to_thread(talker.talked.wait, 20)
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()  # a future whose exception nobody took complains only then
    assert [line for line in lines if line["log_level"] != "debug"] + complaints.found == []


PINGS = frame(PING, ACK, 0, b"hostile!") * 50


async def test_a_connection_of_http2(identity: Identity) -> None:
    """The provider of APNs closes."""
    talker = Talker(serve_http2_well, PINGS)
    with HostileServer(identity.certificates, talker, serve_http2_well, H2Peer) as server:
        async with in_silence(talker):
            provider = make_provider(identity, server.url)
            assert (await provider.send(dispatch())).outcome is Outcome.DELIVERED
            await provider.close()


@pytest.mark.parametrize("by", ["fcm", "webpush"])
async def test_connections_of_http1(identity: Identity, by: str, tmp_path: Path) -> None:
    """The providers of FCM and Web Push close."""
    talker = Talker(serve_http1_well, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    account = json.loads(make_service_account(tmp_path, "https://127.0.0.1:1/token", "p").read_text())
    with HostileServer(identity.certificates, talker, serve_http1_well, H1Peer) as server:
        async with in_silence(talker):
            stage = Stage(by, server, identity.certificates, account, 5.0)
            assert (await stage.provider.send(stage.dispatch(0))).outcome is Outcome.DELIVERED
            await stage.provider.close()


async def test_a_probe_of_http2(identity: Identity) -> None:
    """What a worker asks by, whether a provider still reads."""
    talker = Talker(serve_http2_well, PINGS)
    with HostileServer(identity.certificates, talker, serve_http2_well, H2Peer) as server:
        async with in_silence(talker):
            assert await channel_to(server, identity).lives()


async def test_a_probe_of_http2_that_is_not_answered(identity: Identity) -> None:
    """It says so in time, and that is all."""

    def mute(peer: H2Peer) -> None:
        with contextlib.suppress(OSError):
            while peer.sock.recv(65_536):
                pass

    talker = Talker(mute, PINGS)
    with HostileServer(identity.certificates, talker, serve_http2_well, H2Peer) as server:
        async with in_silence(talker):
            assert not await channel_to(server, identity, timeout_s=0.5).lives()


async def test_a_probe_of_http2_says_what_is_wrong_once(identity: Identity) -> None:
    """A route that is probed for hours is told of once a minute, by the connections and the probes together."""

    def confused(peer: H2Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.wait()  # who closes on what it has not read resets, and what it said may be lost

    with HostileServer(identity.certificates, confused, serve_http2_well, H2Peer) as server, capture_logs() as lines:
        channel = channel_to(server, identity)
        assert not any([await channel.lives() for _ in range(3)])
    said = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert "http2_protocol_error" in said
    assert len(said) == len(set(said))


def test_a_probe_of_http1_is_cut(identity: Identity) -> None:
    """It does not even take leave: nobody reads the rest."""
    tls = ssl.create_default_context(cafile=identity.certificates.ca_file)

    async def play() -> list[Any]:
        with capture_logs() as lines, Complaints() as complaints:
            assert await http1_lives(server.url, tls, 5.0)
            gc.collect()
        return lines + complaints.found

    with HostileServer(identity.certificates, serve_http1_well, serve_http1_well, H1Peer) as server:
        assert asyncio.run(play()) == []


async def test_a_connection_of_http2_that_is_cut(identity: Identity) -> None:
    """What it still had to send does not arrive behind what goes over the next one: it is reset, not closed."""
    ends: list[str] = []
    arrived, ended = threading.Event(), threading.Event()

    def script(peer: H2Peer) -> None:
        peer.begin()
        peer.first()
        arrived.set()
        try:
            while socket.socket.recv(peer.sock, 65_536):  # below TLS, which takes a reset for an end
                pass
            ends.append("an end")
        except OSError as error:
            ends.append(type(error).__name__)
        ended.set()

    with HostileServer(identity.certificates, script, serve_http2_well, H2Peer) as server:
        provider = make_provider(identity, server.url)
        sending = asyncio.create_task(provider.send(dispatch()))
        assert await asyncio.to_thread(arrived.wait, 20)
        next(iter(provider._channel._living)).abort()
        assert (await sending).outcome is Outcome.UNKNOWN
        assert await asyncio.to_thread(ended.wait, 20)
        await provider.close()
    assert ends == ["ConnectionResetError"]
