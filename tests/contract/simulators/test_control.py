"""Steering the simulators while they run: what they are told to do, and what they say of what they are told wrongly."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from notifier.simulators.__main__ import main as simulators_main
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.control import Control
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import Arrival, Playback, Reply, WireLog

ARRIVAL = Arrival(1, "apns", "t", 200, "", "id")


class Recorded(Simulator):
    """A simulator that notes what is asked of it."""

    platform = "fcm"

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(certificates=certificates, log=WireLog())
        self.done: list[str] = []
        self.listens = True

    @property
    def listening(self) -> bool:
        return self.listens

    async def start(self) -> None:
        raise OSError(98, "Address already in use")

    async def close(self) -> None:
        self.listens = False
        self.done.append("close")

    def cut(self) -> None:
        self.done.append("cut")

    def expire_tokens(self) -> None:
        self.done.append("expire")

    def open_connections(self) -> list[object]:
        return []


DONE = [
    b'{"scripts": {"t": "unregistered", "u": [{"status": 410}, "cut"]}}',
    b'{"fcm": {"cut": true, "latency_ms": 2.5, "silent": true, "fail": {"internal": 0.5, "cut": 0.5}}}',
    b'{"fcm": {"listening": false}, "scripts": {"u": null, "v": {"fault": "throttled", "delay_ms": 7}}}',
    b'{"fcm": {"expire_tokens": true}}',
]
WRONG = [
    (b'{"fcm": {"listening": true}}', "cannot listen: Address already in use"),
    (b'{"apple": {"cut": true}}', "'apple' is none of: fcm, scripts"),
    (b'{"fcm": {"hide": true}}', "fcm.hide: unknown"),
    (b'{"fcm": {"go_away": true}}', "fcm.go_away: unknown"),
    (b'{"fcm": {"cut": 1}}', "fcm.cut: 1 should be a valid boolean"),
    (b'{"fcm": {"cut": false}}', "fcm.cut: give true"),
    (b'{"fcm": {"silent": 1}}', "fcm.silent: 1 should be a valid boolean"),
    (b'{"fcm": {"latency_ms": -1}}', "fcm.latency_ms: -1 should be greater than or equal to 0"),
    (b'{"fcm": {"latency_ms": true}}', "fcm.latency_ms: True should be a valid number"),
    (b'{"fcm": {"fail": {"go_away": 0.1}}}', "fcm.fail: 'go_away' is no fault of this platform"),
    (b'{"fcm": {"fail": {"nothing": 0.1}}}', "fcm.fail: 'nothing' is no fault"),
    (b'{"fcm": {"fail": {"cut": 0.6, "slow": 0.6}}}', "fcm.fail: the shares are more than 1 in all"),
    (b'{"fcm": {"fail": {"cut": "often"}}}', "fcm.fail.cut: 'often' should be a valid number"),
    (b'{"fcm": {"fail": {"cut": 2}}}', "fcm.fail.cut: 2 should be less than or equal to 1"),
    (b'{"fcm": [1]}', "fcm: give an object"),
    (b'{"fcm": {"latency_ms": 99, "cut": 0}}', "fcm.cut: 0 should be a valid boolean"),
    (b'{"scripts": {"t": [{"state": 1}]}}', "t: state: unknown; give any of: fault, status, reason"),
    (b'{"scripts": {"t": {"status": "410"}}}', "t: status: '410' should be a valid integer"),
    (b'{"scripts": {"t": {"status": 999}}}', "t: status: 999 is no HTTP status"),
    (b'{"scripts": {"t": {"headers": {"a": 1}}}}', "t: headers.a: 1 should be a valid string"),
    (b'{"scripts": {"t": "unregistred"}}', "t: 'unregistred' is no fault; --faults lists them"),
    (b'{"scripts": {"t": "go_away"}}', "t: no platform can give"),
    (b'{"scripts": {"t": {"reset": "CANCEL"}}}', "t: no platform can give"),
    (b'{"scripts": {"t": {"reset": "BANG"}}}', "t: reset: 'BANG' is no error code of HTTP/2"),
    (b'{"scripts": {"t": 7}}', "t: 7 is no reply"),
    (b'{"scripts": [7]}', "give an object"),
    (b"[]", "give an object with any of: fcm, scripts"),
    (b"cut fcm", "this is no JSON"),
    (b"[" * 50_000, "this is no JSON"),
]


async def test_what_is_told_is_done_or_refused(tmp_path: Path) -> None:
    """All of a line is done and answered, or its mistake is named and nothing is done; arrivals fall in between."""
    fcm, log = Recorded(make_certificates(tmp_path)), WireLog()
    control = Control(tmp_path / "control", log, [fcm])
    await control.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "control")
    for line, error in [*((line, None) for line in DONE), *WRONG]:
        writer.write(line + b"\n")
        said = json.loads(await reader.readline())
        assert said["error"].startswith(error) if error else said == {"done": list(json.loads(line))}
        log.record(ARRIVAL)
        assert json.loads(await reader.readline()) == {"arrival": asdict(ARRIVAL)}
    assert fcm.done == ["cut", "close", "expire"]
    assert fcm.playback.next("t") == Reply(404, "UNREGISTERED")
    assert fcm.playback.next("v") == Reply(429, "QUOTA_EXCEEDED", delay_ms=7)
    assert fcm.playback.next("u") is None
    writer.write(b"{}\n")
    state = json.loads(await reader.readline())["state"]
    assert state["fcm"].items() >= {"latency_ms": 2.5, "silent": True, "listening": False}.items()
    assert state["scripts"] == {"t": "unregistered", "v": {"fault": "throttled", "delay_ms": 7}}
    writer.write(b'{"scripts": null}\n')
    await reader.readline()
    assert fcm.playback.next("t") is None
    writer.close()
    await control.close()
    assert not (tmp_path / "control").exists()


def test_a_new_script_begins_anew() -> None:
    """Replies given later take the place of those before, from their first."""
    playback = Playback({"t": [Reply(500), Reply(501)]})
    first, second = playback.next("t"), playback.next("t")
    playback.rewrite("t", [Reply(410), Reply(411)])
    assert [reply and reply.status for reply in (first, second, playback.next("t"), playback.next("t"))] == [
        500, 501, 410, 411,
    ]  # fmt: skip
    playback.rewrite("u", [Reply(410)])
    assert playback.next("u") == Reply(410)


def test_a_service_rate_is_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 a second three at once are answered after 10, 20 and 30 ms; one that comes to an idle server after 10."""
    now = 1000.0
    monkeypatch.setattr("notifier.simulators.simulator.time.monotonic", lambda: now)
    simulator = Recorded(make_certificates(tmp_path))
    simulator.latency_ms = 5
    assert simulator.serve(2) == pytest.approx(0.007)
    simulator.rate = 100
    assert [simulator.serve() for _ in range(3)] == pytest.approx([0.015, 0.025, 0.035])
    now += 0.02
    assert simulator.serve() == pytest.approx(0.025), "the third is being served"
    now += 60
    assert simulator.serve() == pytest.approx(0.015)


def test_a_socket_that_cannot_be_made_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose path is too long for a socket ends the command with status 1 and a line that names it."""
    folder = tmp_path / ("long" * 30)
    assert simulators_main(["--folder", str(folder)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder}/control cannot be a socket" in line
    assert line.endswith("give a shorter path")
