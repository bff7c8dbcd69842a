"""Our APNs client against an APNs server that others wrote, and our simulator beside it: the same answers.

Not part of the suite: the server has to be brought along. NOTIFIER_INDEPENDENT_APNS names a JSON file that says where
it is and what it takes: endpoint, ca_file, key_file (the .p8), key_id, team_id, topic, token (of a device it knows),
unregistered (of one that is gone); if it takes client certificates, cert_file; and under `differs` the cases below
that it answers in another way: by their names, the status and the reason. `make check-independent-server` runs this.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import jwt
import pytest

from notifier.notification import Device, Notification
from notifier.providers.apns.payload import PAYLOAD_BYTES
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport.http2.channel import Channel
from notifier.providers.transport.http2.headers import literal, repeated
from notifier.providers.transport.http2.requests import Response
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import make_certificates
from notifier.simulators.fcm import public_key_of
from notifier.simulators.wire import Reply, WireLog
from tests.harness.sections import section

WITHIN_S: Final = 60.0
THERE: Final[dict[str, Any]] = json.loads(Path(os.environ["NOTIFIER_INDEPENDENT_APNS"]).read_text(encoding="utf-8"))
KEY: Final = Path(THERE["key_file"]).read_text(encoding="utf-8")
ALERT: Final = b'{"aps":{"alert":"x"}}'


@contextlib.asynccontextmanager
async def provider(endpoint: str, ca_file: Path, **changes: Any) -> AsyncIterator[ApnsProvider]:
    """Our client for one of the servers."""
    keys = {name: THERE[name] for name in ("team_id", "key_id", "topic")} | {"ca_file": ca_file}
    key = changes.pop("key", KEY)
    settings = section("apns", endpoint=endpoint, **{name: value for name, value in (keys | changes).items() if value})
    made = ApnsProvider(settings, key_id=settings.key_id, key=key)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def simulator(folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """Our simulator, which knows the same team and devices: its endpoint and the authority to trust."""
    certificates = make_certificates(folder)
    server = ApnsSimulator(
        certificates=certificates,
        log=WireLog(),
        topics={THERE["topic"]},
        team_keys={THERE["key_id"]: (THERE["team_id"], public_key_of(KEY))},
        scripts={THERE["unregistered"]: [Reply(410, "Unregistered")]},
    )
    await server.start()
    try:
        yield server.url, certificates.ca_file
    finally:
        await server.close()


def dispatch(job_id: str, token: str = "", **fields: Any) -> Dispatch:
    device = Device("apns", token or THERE["token"])
    notification = Notification(user="u", devices=[device], **({"title": "Grüße"} | fields))
    return Dispatch(job_id, device, notification, 3_600_000_000, asyncio.get_running_loop().time() + WITHIN_S)


TOKEN: Final[dict[str, Any]] = {}
BY_CERTIFICATE: Final = {"key": "", "key_id": "", "team_id": "", "cert_file": Path(THERE.get("cert_file", ""))}
WAYS: Final = {"token": TOKEN, **({"certificate": BY_CERTIFICATE} if "cert_file" in THERE else {})}


@pytest.mark.parametrize("way", WAYS)
async def test_it_delivers(way: str) -> None:
    """What we send is taken: shown, silent, with a collapse id, and at the largest."""
    spare = PAYLOAD_BYTES - len('{"aps":{"alert":{"title":"Grüße","body":""}}}'.encode())
    async with provider(THERE["endpoint"], Path(THERE["ca_file"]), **WAYS[way]) as ours:
        answers = [
            await ours.send(dispatch("shown")),
            await ours.send(dispatch("silent", title=None, data={"sync": True})),
            await ours.send(dispatch("collapse", collapse_id="c" * 64)),
            await ours.send(dispatch("largest", body="x" * spare)),
        ]
    assert answers == [Answer(Outcome.DELIVERED, 200)] * 4


async def test_a_thousand_at_once() -> None:
    """1,000 sends at once, whatever limit the server sets, are 1,000 deliveries over one connection."""
    async with provider(THERE["endpoint"], Path(THERE["ca_file"]), timeout_us=60_000_000) as ours:
        answers = await asyncio.gather(*(ours.send(dispatch(f"many-{n}", body="x" * 500)) for n in range(1000)))
    assert answers == [Answer(Outcome.DELIVERED, 200)] * 1000


async def test_a_dead_device() -> None:
    """A device that is gone is a dead token, with the time at which it went."""
    async with provider(THERE["endpoint"], Path(THERE["ca_file"])) as ours:
        answer = await ours.send(dispatch("gone", THERE["unregistered"]))
    assert (answer.outcome, answer.status, answer.reason) == (Outcome.DEAD_TOKEN, 410, "Unregistered")
    assert answer.gone_at_us


async def test_a_wrong_key() -> None:
    """A provider token of a key that the server does not know, or of another team's, is a fault of ours."""
    answers = []
    for change in ({"key_id": "UNKNOWN123"}, {"topic": "com.example.other"}):
        async with provider(THERE["endpoint"], Path(THERE["ca_file"]), **change) as ours:
            answers.append(await ours.send(dispatch("wrong")))
    key, topic = answers
    assert (key.outcome, key.status, key.reason) == (Outcome.FAULT, 403, "InvalidProviderToken")
    assert topic.outcome in {Outcome.FAULT, Outcome.REJECTED}


# Request by request: what is changed of a good one. None leaves a header out.
CASES: Final[dict[str, dict[str, Any]]] = {
    "good": {},
    "apns-id in capitals": {"apns-id": str(uuid.UUID(int=2**127 + 7)).upper()},
    "no apns-id": {"apns-id": None},
    "bad apns-id": {"apns-id": "not-a-uuid"},
    "no device token": {":path": "/3/device/"},
    "short device token": {":path": "/3/device/abcd"},
    "device token that is no hex": {":path": "/3/device/" + "xy" * 32},
    "bad path": {":path": "/4/device/" + THERE["token"]},
    "wrong method": {":method": "GET"},
    "no topic": {"apns-topic": None},
    "wrong topic": {"apns-topic": "com.example.other"},
    "bad priority": {"apns-priority": "7"},
    "bad push type": {"apns-push-type": "shout"},
    "collapse id of 64 bytes": {"apns-collapse-id": "c" * 64},
    "collapse id of 65 bytes": {"apns-collapse-id": "c" * 65},
    "no provider token": {"authorization": None},
    "provider token that is none": {"authorization": "bearer x.y.z"},
    "expired provider token": {"iat": -3700},
    "fresh provider token": {"iat": -3500},
    "another team's provider token": {"iss": "OTHERTEAM1"},
    "float iat": {"iat": 0.5},
    "largest payload": {"body": b'{"aps":{"alert":"' + b"x" * 4076 + b'"}}'},
    "payload too large": {"body": b'{"aps":{"alert":"' + b"x" * 4077 + b'"}}'},
    "unregistered": {":path": "/3/device/" + THERE["unregistered"]},
}


def authorization(**claims: Any) -> str:
    issued = {"iss": claims.get("iss", THERE["team_id"]), "iat": int(time.time()) + claims.get("iat", 0)}
    return "bearer " + jwt.encode(issued, KEY, algorithm="ES256", headers={"kid": THERE["key_id"]})


async def ask(endpoint: str, ca_file: Path, change: dict[str, Any]) -> tuple[int, str, bool]:
    """The status and reason of one request on a connection of its own, and whether its apns-id came back."""
    tls = ssl.create_default_context(cafile=ca_file)
    tls.set_alpn_protocols(["h2"])
    host, _, port = endpoint.removeprefix("https://").rpartition(":")
    apns_id = str(uuid.uuid4())
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":authority": f"{host}:{port}",
        ":path": "/3/device/" + THERE["token"],
        "apns-topic": THERE["topic"],
        "apns-push-type": "alert",
        "apns-id": apns_id,
        "authorization": authorization(**{key: change[key] for key in ("iat", "iss") if key in change}),
        **{name: value for name, value in change.items() if name not in {"iat", "iss", "body"}},
    }
    asked = [
        (literal if name == ":path" else repeated)(name.encode(), value.encode())
        for name, value in headers.items()
        if value is not None
    ]
    channel = Channel(host=host, port=int(port), tls=tls, timeout_s=WITHIN_S)
    try:
        send_by = asyncio.get_running_loop().time() + WITHIN_S
        result = await channel.request(asked, change.get("body", ALERT), send_by=send_by)
    finally:
        await channel.close()
    assert isinstance(result, Response), result
    reason = json.loads(result.body)["reason"] if result.body else ""
    returned = result.headers.get(b"apns-id", b"").decode().lower()
    assert uuid.UUID(returned)
    return result.status, reason, returned == str(headers["apns-id"]).lower()


@pytest.mark.parametrize("case", CASES)
async def test_the_same_answer_as_our_simulator(case: str, tmp_path: Path) -> None:
    """To the same request, the other server and our simulator give the same status, reason and apns-id."""
    theirs = await ask(THERE["endpoint"], Path(THERE["ca_file"]), CASES[case])
    async with simulator(tmp_path) as (endpoint, ca_file):
        ours = await ask(endpoint, ca_file, CASES[case])
    if differs := THERE.get("differs", {}).get(case):
        theirs, ours = theirs[:2], tuple(differs)
    assert theirs == ours
