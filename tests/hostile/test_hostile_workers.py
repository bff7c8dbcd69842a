"""A real worker before hostile servers: it stops within its grace, nothing is lost, and another delivers the rest."""

import json
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier.providers.apns.provider import apns_id
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.simulators.fcm import make_service_account
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import (
    KEY_ID,
    TEAM_ID,
    TOPIC,
    apns,
    eventually,
    fcm,
    note,
    notifier,
    state,
    worker,
    write_config,
)
from tests.hostile.servers import (
    ACK,
    END_HEADERS,
    GOAWAY,
    PING,
    H1Peer,
    H2Peer,
    HostileServer,
    frame,
    head,
    serve_http1_well,
    serve_http2_well,
)

COUNT = 10
GRACE_S = 2
MAX_LINES = 10
OF_THE_WIRE = ("http2_", "goaway", "connection_", "provider_", "fcm_")


def a_status_that_no_int_holds(peer: H2Peer) -> None:
    peer.begin()
    for stream in peer.requests():
        peer.send(peer.answer(stream, b"9" * 5000))


def goaways_without_end(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.flood(frame(GOAWAY, 0, 0, struct.pack(">LL", 2**31 - 1, 0)))


def pings_without_end(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.flood(frame(PING, 0, 0, b"hostile!"))


def headers_and_no_more(peer: H2Peer) -> None:
    peer.begin()
    for stream in peer.requests():
        peer.send(peer.answer(stream, b"200", flags=END_HEADERS) + frame(PING, ACK, 0, b"hostile!"))


def a_token_byte_by_byte(peer: H1Peer) -> None:
    for _ in peer.requests():
        peer.send(head(b"200 OK", b"Content-Length: 100000"))
        while not peer.server.healed.is_set():
            peer.send(b"x")
            time.sleep(0.05)


def a_token_without_end(peer: H1Peer) -> None:
    for _ in peer.requests():
        peer.send(head(b"200 OK"))
        peer.flood(b"x" * 1000)


def a_message_byte_by_byte(peer: H1Peer) -> None:
    for request in peer.requests():
        if request.path == "/token":
            peer.send(peer.good(request))
            continue
        peer.send(head(b"200 OK", b"Transfer-Encoding: chunked"))
        while not peer.server.healed.is_set():
            peer.send(b"1\r\nx\r\n")
            time.sleep(0.05)


def apns_settings(folder: Path, server: HostileServer, ca_file: Path) -> dict[str, Any]:
    key_file, _ = make_apns_key(folder, KEY_ID)
    sign_in = {"team_id": TEAM_ID, "key_id": KEY_ID, "key_file": str(key_file), "topic": TOPIC}
    return {"client": "h2", **sign_in, "endpoint": server.url, "ca_file": str(ca_file), "timeout": "1s"}


def fcm_settings(folder: Path, server: HostileServer, ca_file: Path) -> dict[str, Any]:
    account = make_service_account(folder, f"{server.url}/token", "p")
    shared = {"endpoint": server.url, "ca_file": str(ca_file), "timeout": "1s"}
    return {"client": "pyfcm", "service_account": str(account), **shared}


def play(
    script: Callable[[Any], None], platform: str, redis: Redis, server_of_redis: EmbeddedRedis, folder: Path
) -> None:
    certificates = make_certificates(folder)
    well, peer = (serve_http2_well, H2Peer) if platform == "apns" else (serve_http1_well, H1Peer)
    build, device = (apns_settings, apns) if platform == "apns" else (fcm_settings, fcm)
    with HostileServer(certificates, script, well, peer) as server:
        provider = build(folder, server, certificates.ca_file)
        of_worker = {"lease": "3s", "grace": f"{GRACE_S}s", "backoff": {"first": "50ms", "most": "200ms"}}
        config = write_config(folder, server_of_redis.url, {platform: provider}, worker=of_worker)
        # The second is to send each once, so it waits longer for an answer than a busy machine needs.
        patient = {platform: provider | {"timeout": "8s"}}
        patient_config = write_config(
            folder / "patient", server_of_redis.url, patient, worker=of_worker | {"lease": "10s"}
        )
        with notifier(config) as producer, worker(config, name="first") as first:
            first.ready(redis)
            ids = [producer.send(note(f"u{n}", "Hello", device(f"u{n}"))) for n in range(COUNT)]
            eventually(lambda: server.arrived, "a request at the server")
            assert first.end(signal.SIGTERM) == 0
            events = [json.loads(line)["event"] for line in first.log.splitlines() if line.startswith("{")]
            assert sum(event.startswith(OF_THE_WIRE) for event in events) <= MAX_LINES, events
            server.heal()
            with worker(patient_config, name="second") as second:
                second.ready(redis)
                for n, job_id in enumerate(ids):
                    eventually(lambda job_id=job_id: state(producer, job_id) == "delivered", f"the delivery of {n}")
                    name = apns_id(job_id, apns(f"u{n}").token) if platform == "apns" else fcm(f"u{n}").token
                    assert server.answered[name].count(200) == 1
                assert second.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    "script", [a_status_that_no_int_holds, goaways_without_end, pings_without_end, headers_and_no_more]
)
def test_a_worker_before_a_hostile_apns(
    script: Callable[[H2Peer], None], redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """It ends when it is told to, in order, and what it had is delivered once by the next one."""
    play(script, "apns", redis, redis_server, tmp_path)


@pytest.mark.parametrize("script", [a_token_byte_by_byte, a_token_without_end, a_message_byte_by_byte])
def test_a_worker_before_a_hostile_fcm(
    script: Callable[[H1Peer], None], redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """No fetch of a token and no answer outlives the worker, and nothing is lost meanwhile."""
    play(script, "fcm", redis, redis_server, tmp_path)
