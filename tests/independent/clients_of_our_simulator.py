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

from notifier.simulators.wire import WireLog

HERE: Final = Path(__file__).parent
PEERS: Final = Path(os.environ["NOTIFIER_PEERS"])  # a venv with aioapns and node, and node-apn beside it
WITHIN_S: Final = 60
AT_ONCE: Final = 200
GOOD, GONE, BAD, BUSY = "ab" * 32, "cd" * 32, "ef" * 32, "12" * 32
ASKED: Final = json.dumps({"devices": [GOOD, GONE, BAD, "short"], "at_once": AT_ONCE})


@pytest.fixture
def simulators(tmp_path: Path) -> Iterator[Path]:
    """The simulators as a process; the folder in which they have announced themselves."""
    told = {"scripts": {GONE: "unregistered", BAD: "bad_token"}}
    command = [sys.executable, "-m", "notifier.simulators", "--folder", str(tmp_path), "--with", json.dumps(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield tmp_path
        process.terminate()


def run(*command: str | Path, folder: Path) -> Any:
    """What a client prints, as JSON."""
    announced = str(folder / "simulators.json")
    done = subprocess.run(
        [*map(str, command), announced, ASKED], capture_output=True, text=True, timeout=WITHIN_S, check=False
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


def test_aioapns(simulators: Path) -> None:
    """aioapns, by token: delivered, gone, unknown and malformed devices, and 200 at once."""
    answers = run(PEERS / "bin" / "python", HERE / "aioapns_client.py", folder=simulators)
    assert answers[:4] == [["200", None], ["410", "Unregistered"], ["400", "BadDeviceToken"], ["400", "BadDeviceToken"]]
    assert answers[4:] == [["200", None]] * AT_ONCE
    titles = Counter(a.title for a in WireLog.read(simulators / "wire.jsonl") if a.status == 200)
    assert titles == {"one": 1, "many": AT_ONCE}
