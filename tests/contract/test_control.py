"""Steering the simulators while they run: what they are told to do, and what they say of what they are told wrongly."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from notifier.simulators.__main__ import main as simulators_main
from notifier.simulators.control import Control
from notifier.simulators.wire import Arrival, Playback, Reply, WireLog

ARRIVAL = Arrival(1, "apns", "t", 200, "", "id")


class Recorded:
    """A simulator that notes what is asked of it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.playback = Playback({})

    async def start(self) -> None:
        raise OSError(98, "Address already in use")

    async def close(self) -> None:
        self.done.append("close")

    def cut(self) -> None:
        self.done.append("cut")


def test_commands_and_arrivals(tmp_path: Path) -> None:
    """A command is carried out and answered, a senseless one is told; arrivals are told where they fall between."""
    asked: list[tuple[bytes, dict[str, str] | str]] = [
        (b'{"script": {"t": [{"status": 410, "reason": "Unregistered"}]}}', {"done": "script"}),
        (b'{"cut": "apns"}', {"done": "cut"}),
        (b'{"stop": "apns"}', {"done": "stop"}),
        (b'{"start": "apns"}', {"error": "start apns: Address already in use"}),
        (b'{"cut": "apple"}', "not understood: KeyError"),
        (b'{"hide": "apns"}', {"error": "no such command: hide"}),
        (b'{"script": {"t": [{"state": 1}]}}', "not understood: TypeError"),
        (b"{}", "not understood"),
        (b"cut apns", "not understood"),
    ]

    async def run() -> None:
        apns, log = Recorded(), WireLog()
        control = Control(tmp_path / "control", log, {"apns": apns})
        await control.start()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "control")
        for line, expected in asked:
            writer.write(line + b"\n")
            said = json.loads(await reader.readline())
            assert said == expected if isinstance(expected, dict) else said["error"].startswith(expected)
            log.record(ARRIVAL)
            assert json.loads(await reader.readline()) == {"arrival": asdict(ARRIVAL)}
        assert apns.done == ["cut", "close"]
        assert apns.playback.next("t") == Reply(410, "Unregistered")
        writer.close()
        await control.close()
        assert not (tmp_path / "control").exists()

    asyncio.run(run())


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


def test_a_socket_that_cannot_be_made_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A control socket that cannot be made ends the command with status 1 and names the option and the path."""
    where = tmp_path / "missing" / "control"
    assert simulators_main(["--folder", str(tmp_path), "--control", str(where)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--control {where}" in line
