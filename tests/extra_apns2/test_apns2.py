"""APNs through apns2, beyond the contract: its requests, and our connection over the h2 of 2017."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from h2.exceptions import FrameTooLargeError

from notifier.errors import SettingsError
from notifier.notification import Device, Notification
from notifier.providers.apns.payload import PAYLOAD_BYTES, payload
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.pyapns2.provider import Apns2Provider
from notifier.providers.contract import Outcome
from notifier.providers.transport.http2 import wire
from notifier.providers.transport.http2.plain import PlainH2
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.simulators.provider_contract.stage import Stage
from notifier.simulators.wire import Reply
from tests.contract.rigs import APNS, CLIENT, KEY_ID, TEAM, TOPIC
from tests.harness.sections import section

SILENT = Reply(200, delay_ms=60_000)
SIGN_IN = {"topic": TOPIC, "team_id": TEAM, "key_id": KEY_ID}


def living(stage: Stage) -> set[Any]:
    """The connections of a stage's provider."""
    return stage.provider._channel._living


def body_of(size: int) -> str:
    """The body of a notification whose payload takes so many bytes."""
    return "x" * (size + 1 - len(payload(Notification(user="u", devices=[], title="t", body="x"))))


# What surrounds it.


def test_the_standard_library_is_as_before() -> None:
    """Importing apns2 leaves the modules of the standard library that it needs patched with what they had."""
    code = """
import collections, collections.abc, http.client, json, logging, select, socket, ssl, sys, threading
modules = (collections, collections.abc, http.client, json, logging, select, socket, ssl, threading)
before = [dict(vars(module)) for module in modules]
import notifier.providers.apns.pyapns2.provider
assert "hyper" in sys.modules
assert [dict(vars(module)) for module in modules] == before
assert not {"Iterable", "Mapping", "MutableMapping", "MutableSet"} & vars(collections).keys()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_default_client_says_why_it_cannot_be_had(tmp_path: Path) -> None:
    """Where apns2 is, `client: h2` is refused with the reason and a way out."""
    assert CLIENT == "apns2"
    key_file, _ = make_apns_key(tmp_path, KEY_ID)
    with pytest.raises(SettingsError, match=r"h2 2\.6.*client apns2"):
        ApnsProvider(section("apns", **SIGN_IN), key_id=KEY_ID, key=key_file.read_text())


def test_a_frame_that_is_too_long_is_refused_by_its_head() -> None:
    """Such as the first bytes of an answer in HTTP/1.1, of which h2 would wait for 4.7 MB."""
    state = PlainH2()
    state.initiate_connection()
    state.data_to_send()
    state.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(FrameTooLargeError):
        state.next_frame()
    assert state.data_to_send().endswith(b"\x00\x00\x00\x06")  # FRAME_SIZE_ERROR, in a GOAWAY


# Who is spoken to.


async def test_a_wrong_name_is_refused() -> None:
    """A certificate for another host gets nothing, though our authority signed it."""
    async with APNS.stage() as s:
        await s.tell(wrong_name=True)
        answer = await s.send()
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Unreachable")
        assert await s.arrivals() == []


async def test_a_strange_authority_is_refused(tmp_path: Path) -> None:
    """A server that our authority did not sign for gets nothing."""
    async with APNS.stage() as s:
        strange, key = make_certificates(tmp_path).ca_file, APNS.key_file.read_text()
        settings = section("apns", endpoint=s.endpoint, ca_file=strange, **SIGN_IN)
        provider = Apns2Provider(settings, key_id=KEY_ID, key=key)
        answer = await provider.send(s.dispatch(await s.device()))
        await provider.close()
        assert answer.outcome is Outcome.UNSENT
        assert await s.arrivals() == []


async def test_small_packets_are_not_held_back() -> None:
    """The connection has TCP_NODELAY, without which a send in sequence takes 40 ms."""
    async with APNS.stage() as s:
        await s.send()
        (connection,) = living(s)
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# What goes over it.


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "t"},
        {"data": {"sync": 1}},
        {"title": "t", "ttl_us": 90_000_000, "collapse_id": "ü score"},
        {"data": {"call": 1}, "apns": {"push_type": "voip"}},
        {"title": "t", "apns": {"topic": "com.example.app", "priority": 1, "interruption_level": "passive"}},
    ],
    ids=["alert", "background", "expiring", "voip", "options"],
)
async def test_apns2_sends_what_the_default_client_would(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Every header reaches the wire as the provider made it, but for the priority 10, which apns2 leaves out."""
    made: list[Any] = []  # each is added to until it is sent
    sent: list[dict[bytes, bytes]] = []
    make, send = ApnsProvider._headers, PlainH2.send_headers

    def making(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    def sending(state: Any, stream_id: int, headers: Any, **options: Any) -> None:
        sent.append(dict(headers))
        send(state, stream_id, headers, **options)

    monkeypatch.setattr(ApnsProvider, "_headers", making)
    monkeypatch.setattr(PlainH2, "send_headers", sending)
    async with APNS.stage() as s:
        assert (await s.send(**fields)).status is not None
        assert [{b"apns-priority": b"10"} | headers for headers in sent] == [dict(headers) for headers in made]


async def test_a_broadcast_channel() -> None:
    """What apns2 has no request for goes as by the default client: Apple answers that it does not know this channel."""
    update = {"push_type": "liveactivity", "event": "update", "timestamp": 1_750_000_000, "content_state": {"score": 1}}
    async with APNS.stage() as s:
        answer = await s.send(Device("apns", "channel:dHN0LXNyY2gtY2hubA=="), title="t", apns=update)
        assert (answer.outcome, answer.reason) == (Outcome.DEAD_TOKEN, "ChannelNotRegistered")


@pytest.mark.parametrize("size", [1023, 1024, 1025, 2048, PAYLOAD_BYTES])
async def test_bodies_of_whole_kibibytes(size: int) -> None:
    """A payload of any size is completed: hyper leaves those of 1,024, 2,048… bytes without their end."""
    async with APNS.stage() as s:
        assert (await s.send(title="t", body=body_of(size))).outcome is Outcome.DELIVERED


async def test_many_large_bodies() -> None:
    """500 bodies of 4,096 bytes at once, far over the connection's window, all arrive, over one connection."""
    async with APNS.stage() as s:
        devices = [await s.device() for _ in range(500)]
        body = body_of(PAYLOAD_BYTES)
        answers = await asyncio.gather(*(s.send(device, title="t", body=body) for device in devices))
        assert Counter(answer.outcome for answer in answers) == {Outcome.DELIVERED: 500}
        assert len(living(s)) == 1


async def test_many_errors() -> None:
    """Error pages in their hundreds do not use up the window that they arrive through."""
    async with APNS.stage() as s:
        device = await s.device(Reply(502, "<html>" + "x" * 3000))
        for _ in range(5):
            answers = await asyncio.gather(*(s.send(device) for _ in range(100)))
            assert {answer.status for answer in answers} == {502}
        assert len(living(s)) == 1


async def test_narrow_streams() -> None:
    """A body wider than its stream's window goes out in parts as the server takes them, and arrives whole."""
    async with APNS.stage() as s:
        await s.tell(window_bytes=1000)
        await s.send()
        answers = await asyncio.gather(*(s.send(data={"x": "y" * 3900}) for _ in range(30)))
        assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
        assert {len(arrival.data["x"]) for arrival in (await s.arrivals())[1:]} == {3900}


async def test_the_stream_limit() -> None:
    """With one stream at a time nothing is refused or lost; a late one is UNSENT in time and never sent."""
    async with APNS.stage() as s:
        await s.tell(max_streams=1, latency_ms=10)
        answers = await asyncio.gather(*(s.send() for _ in range(20)))
        assert Counter(answer.outcome for answer in answers) == {Outcome.DELIVERED: 20}
        await s.tell(latency_ms=300)
        first = asyncio.create_task(s.send())
        await s.reach(21)
        late = await s.send(within_s=0.05)
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        assert (await first).outcome is Outcome.DELIVERED
        assert len(await s.arrivals()) == 21


# What breaks.


async def test_goaway() -> None:
    """After a GOAWAY what the server processes is answered, the rest is UNSENT, and the next goes elsewhere."""
    async with APNS.stage() as s:
        await s.send()
        devices = [await s.device(Reply(200, delay_ms=300)) for _ in range(10)]
        sends = [asyncio.create_task(s.send(device)) for device in devices]
        await s.reach(11)
        await s.tell(go_away={"keep": 0.5})
        outcomes = Counter(answer.outcome for answer in await asyncio.gather(*sends))
        assert outcomes == {Outcome.DELIVERED: 5, Outcome.UNSENT: 5}
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        async with asyncio.timeout(5):
            while len(living(s)) > 1:  # the old one is taking leave
                await s.arrivals()


@pytest.mark.parametrize(("code", "outcome"), [("REFUSED_STREAM", Outcome.UNSENT), ("INTERNAL_ERROR", Outcome.UNKNOWN)])
async def test_a_stream_cut_off(code: str, outcome: Outcome) -> None:
    """A stream that the server refused was not sent; one that it broke off may have been. Its neighbours go on."""
    async with APNS.stage() as s:
        assert (await s.send(await s.device(Reply(reset=code)))).outcome is outcome
        assert (await s.send()).outcome is Outcome.DELIVERED
        assert len(living(s)) == 1


async def test_a_cancelled_send_gives_its_stream_back() -> None:
    """A send that its caller cancels leaves room for the next."""
    async with APNS.stage() as s:
        await s.tell(max_streams=1)
        await s.send()
        send = asyncio.create_task(s.send(await s.device(SILENT)))
        await s.reach(2)
        send.cancel()
        assert (await s.send()).outcome is Outcome.DELIVERED
        assert send.cancelled()


async def test_an_idle_connection_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection that does not answer is left for a new one."""
    monkeypatch.setattr(wire, "IDLE_S", 0.05)
    async with APNS.stage(timeout_us=300000) as s:
        await s.send()
        (dead,) = living(s)
        await s.tell(silent=True)
        async with asyncio.timeout(5):
            await dead.ended
        await s.tell(silent=False)
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED


async def test_a_connection_in_doubt_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What died while it was idle, without a word, costs the next send nothing: it goes over a new connection."""
    monkeypatch.setattr(wire, "DOUBT_S", 0.1)
    async with APNS.stage(timeout_us=2000000) as s:
        await s.send()
        await s.tell(idle_s=0.6)
        await asyncio.sleep(0.7)  # as long as the network takes to forget the connection
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        await s.tell(idle_s=0)
        assert len(await s.arrivals()) == 2
