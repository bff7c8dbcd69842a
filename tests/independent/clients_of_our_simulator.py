"""Clients that others wrote, served by our simulator: what they are told is what Apple would tell them.

Not collected with the suite: it needs their environment, which `make check-independent` builds and then runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from notifier.notification.subscription import read_subscription
from notifier.providers.webpush.crypto import encrypt
from notifier.providers.webpush.payload import PAYLOAD_BYTES
from notifier.simulators.control import tell
from notifier.simulators.webpush_browser import browser, encode, subscription
from notifier.simulators.wire import WireLog

HERE: Final = Path(__file__).parent
PEERS: Final = Path(os.environ["NOTIFIER_PEERS"])  # a venv with aioapns and node, and what npm has beside it
WITHIN_S: Final = 60
AT_ONCE: Final = 200
FCM_DEVICE: Final = "fcm-registration-of-somebody"
GOOD, GONE, BAD, BUSY = "ab" * 32, "cd" * 32, "ef" * 32, "12" * 32
ASKED: Final = json.dumps({"devices": [GOOD, GONE, BAD, "short"], "at_once": AT_ONCE})


@pytest.fixture
def simulators(tmp_path: Path) -> Iterator[Path]:
    """The simulators as a process; the folder in which they have announced themselves."""
    told = {"scripts": {GONE: "unregistered", BAD: "bad_token"}}
    command = [sys.executable, "-m", "notifier.simulators", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        tell(tmp_path / "control", told)
        yield tmp_path
        process.terminate()


def run(*command: str | Path, folder: Path, asked: str = ASKED) -> Any:
    """What a client prints, as JSON."""
    announced = str(folder / "simulators.json")
    done = subprocess.run(
        [*map(str, command), announced, asked], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node_apn(simulators: Path) -> None:
    """node-apn, by token: delivered, gone, unknown and malformed devices, a wrong topic, and 200 at once."""
    script = PEERS / "node_apn.mjs"
    script.write_text((HERE / "node_apn.mjs").read_text())
    good, gone, bad, short, topic, many = run(PEERS / "bin" / "node", script, folder=simulators)

    def refusal(answer: Any) -> tuple[int, str]:
        (failed,) = answer["failed"]
        return failed["status"], failed["response"]["reason"]

    assert refusal(gone) == (410, "Unregistered")
    assert gone["failed"][0]["response"]["timestamp"] > 1_600_000_000_000
    assert refusal(bad) == (400, "BadDeviceToken")
    assert refusal(short) == (400, "BadDeviceToken")
    assert refusal(topic) == (400, "TopicDisallowed")
    assert (len(many["sent"]), many["failed"]) == (AT_ONCE, [])
    arrivals = WireLog.read(simulators / "wire.jsonl")
    titles = Counter(arrival.title for arrival in arrivals if arrival.status == 200)
    assert titles == {"one": 1, "many": AT_ONCE}
    first = arrivals[0]
    assert (good["sent"], good["failed"]) == ([{"device": GOOD, "apns-id": first.message_id}], [])
    assert (first.token, first.title, first.collapse_id, first.data) == (GOOD, "one", "c", {"n": 1})


def test_npm_web_push(simulators: Path) -> None:
    """npm's web-push is taken, or refused for what is wrong with it; npm's http_ece reads what is encrypted here."""
    me = {"subject": "mailto:node@example.com"}
    sends = [
        {
            "text": json.dumps({"title": "one", "data": {"n": 1}}),
            "TTL": 60,
            "urgency": "high",
            "topic": "newEvent",
            **me,
        },
        {"text": json.dumps({"title": "two"}), "contentEncoding": "aes128gcm", **me},
        {"text": "{}", "stranger": True, **me},
        {"text": "{}", "subject": "mailto:node@localhost"},
        {"text": "{}", "contentEncoding": "aesgcm", **me},
        {"text": "x" * 4000, **me},
    ]
    ours = browser("reader")
    key = ours.key.private_numbers().private_value.to_bytes(32, "big")
    body = encrypt(read_subscription(subscription("https://push.example.com", "reader")), "Grüße".encode() * 100)
    reader = {"key": encode(key), "auth": encode(ours.auth)}
    script = PEERS / "node_web_push.mjs"
    script.write_text((HERE / "node_web_push.mjs").read_text())
    asked = json.dumps({"sends": sends, "reader": reader, "body": encode(body)})
    said = run(PEERS / "bin" / "node", script, folder=simulators, asked=asked)
    assert said["answers"] == [
        [201, ""],
        [201, ""],
        [403, "VapidPkHashMismatch"],
        [403, "BadJwtToken"],
        [401, "MissingAuthorization"],
        [413, "PayloadTooLarge"],
    ]
    assert said["read"] == "Grüße" * 100
    first, second = [each for each in WireLog.read(simulators / "wire.jsonl") if each.status == 200]
    assert (first.token, first.title, first.data, first.ttl_us) == ("node", "one", {"n": 1}, 60_000_000)
    assert (second.title, second.platform) == ("two", "webpush")


def test_firebase_admin(simulators: Path) -> None:
    """firebase-admin signs in with all its scopes, and is told of good, dead and wrong messages."""
    asked = json.dumps({"device": FCM_DEVICE, "gone": GONE, "bad": BAD, "at_once": AT_ONCE})
    answers = run(PEERS / "bin" / "python", HERE / "firebase_client.py", folder=simulators, asked=asked)
    project = "projects/simulated-project/messages/"
    assert [answer.startswith(project) for answer in answers["taken"]] == [True] * 4
    assert answers["dry_run"] == f"{project}fake_message_id"
    assert answers["refused"] == ["UnregisteredError", "InvalidArgumentError", "InvalidArgumentError"]
    assert answers["many"] == AT_ONCE
    arrivals = [a for a in WireLog.read(simulators / "wire.jsonl") if a.status == 200]
    assert Counter(a.title for a in arrivals) == {"one": 1, "urgent": 1, "calm": 1, None: 1, "many": AT_ONCE}
    (urgent,) = [a for a in arrivals if a.title == "urgent"]
    assert (urgent.collapse_id, urgent.ttl_us, urgent.data) == ("c", 60_000_000, {"n": "1"})


def test_python_http_ece(tmp_path: Path) -> None:
    """The library http_ece reads a hundred messages of all sizes that are encrypted here, each by keys of its own."""
    reader = browser("reader")
    key = reader.key.private_numbers().private_value.to_bytes(32, "big")
    to = read_subscription(subscription("https://push.example.com", "reader"))
    sizes = [1, 2, 15, 16, 17, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, *range(3, 3993, 43)]
    texts = [(chr(97 + n % 26) * size) for n, size in enumerate(sizes)]
    bodies = [encrypt(to, text.encode()) for text in texts]
    assert len({body[:16] for body in bodies}) == len({body[21:86] for body in bodies}) == len(bodies)
    asked = json.dumps({"key": encode(key), "auth": encode(reader.auth), "bodies": [encode(body) for body in bodies]})
    (tmp_path / "asked.json").write_text(asked)
    command = [PEERS / "bin" / "python", HERE / "webpush_reader.py", tmp_path / "asked.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == texts


def test_aioapns(simulators: Path) -> None:
    """aioapns, by token: delivered, gone, unknown and malformed devices, and 200 at once."""
    answers = run(PEERS / "bin" / "python", HERE / "aioapns_client.py", folder=simulators)
    assert answers[:4] == [["200", None], ["410", "Unregistered"], ["400", "BadDeviceToken"], ["400", "BadDeviceToken"]]
    assert answers[4:] == [["200", None]] * AT_ONCE
    titles = Counter(a.title for a in WireLog.read(simulators / "wire.jsonl") if a.status == 200)
    assert titles == {"one": 1, "many": AT_ONCE}
