"""`python -m notifier.simulators` as a person uses it: what it writes, what it is told, what it says of mistakes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from notifier.settings import load_settings
from notifier.simulators.__main__ import main
from notifier.simulators.faults import FAULTS


@contextmanager
def running(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """The simulators in a process of their own; what they announce."""
    command = [sys.executable, "-m", "notifier.simulators", "--folder", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.communicate() == ("", "")
        assert process.returncode == 0


def test_the_folder_has_all_that_is_needed(tmp_path: Path) -> None:
    """The announcement stands in the folder too, and notifier.yaml is a configuration that leads to the simulators."""
    folder = tmp_path / "sim"
    with running(folder) as told:
        assert json.loads((folder / "simulators.json").read_text()) == told
        settings = load_settings(folder / "notifier.yaml", {})
        assert settings.providers.apns is not None
        assert settings.providers.fcm is not None
        assert settings.providers.apns.endpoint == told["apns"]["endpoint"]
        assert settings.providers.fcm.endpoint == told["fcm"]["endpoint"]


def test_they_keep_their_ports(tmp_path: Path) -> None:
    """At the next start in the folder, where the ports are free: a copy of the configuration stays right."""
    with running(tmp_path) as told:
        before = {name: told[name]["endpoint"] for name in ("apns", "fcm", "webpush", "hms", "expo")}
        channels = told["apns"]["channels_endpoint"]
    port = urlsplit(before["expo"]).port
    with socket.create_server(("127.0.0.1", port or 0)), running(tmp_path) as told:
        assert {name: told[name]["endpoint"] for name in before if name != "expo"} == {
            name: endpoint for name, endpoint in before.items() if name != "expo"
        }
        assert told["apns"]["channels_endpoint"] == channels
        assert told["expo"]["endpoint"] != before["expo"]


def test_further_apps_stand_in_the_configuration(tmp_path: Path) -> None:
    """--app adds an app to both platforms, with a topic, a project and an account of its own."""
    with running(tmp_path, "--app", "driver", "--app", "kitchen") as told:
        providers = load_settings(tmp_path / "notifier.yaml", {}).providers
        assert providers.apns is not None
        assert providers.fcm is not None
        assert list(providers.apns.app_names) == list(providers.fcm.app_names) == [None, "driver", "kitchen"]
        assert providers.apns.app("driver").topic == "com.example.driver"
        assert providers.apns.app("driver").key_id == told["apns"]["key_id"]
        assert providers.fcm.read_service_account({}, "driver")["project_id"] == "simulated-driver"


def test_told_from_the_start_and_while_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--with, --fail, --scripts and --tell say the same things; --tell prints what holds now."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text('{"t": "unregistered"}')
    options = ["--with", '{"apns": {"max_streams": 1}}', "--fail", "cut=0.1", "--fail", "go_away=0.2"]
    with running(tmp_path, *options, "--scripts", str(scripts), "--latency-ms", "3"):
        assert main(["--folder", str(tmp_path), "--tell", '{"fcm": {"listening": false, "fail": {}}}']) == 0
        state = json.loads(capsys.readouterr().out)
        assert state["scripts"] == {"t": "unregistered"}
        assert state["apns"].items() >= {
            "max_streams": 1, "fail": {"cut": 0.1, "go_away": 0.2}, "latency_ms": 3.0, "listening": True
        }.items()  # fmt: skip
        assert state["fcm"].items() >= {"listening": False, "fail": {}}.items()
        assert main(["--folder", str(tmp_path), "--tell", '{"apns": {"cat": true}}']) == 1
        assert "apns.cat: unknown" in capsys.readouterr().err


def test_the_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """--faults lists every fault with its words, and needs no folder."""
    assert main(["--faults"]) == 0
    listed = capsys.readouterr().out
    for name, fault in FAULTS.items():
        assert f"\n{name} " in f"\n{listed}"
        assert fault.says in listed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--with", "{"], "--with is no JSON"),
        (["--with", '{"apns": {"cat": true}}'], "--with: apns.cat: unknown"),
        (["--fail", "cat=0.1"], "--fail cat=0.1: give a fault that --faults lists"),
        (["--fail", "cut"], "--fail cut: give a fault"),
        (["--fail", "cut=2"], "--fail: apns.fail.cut: 2.0 should be less than or equal to 1"),
        (["--tell", "{}"], "simulators.json is missing or unreadable: no simulators run in this folder"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """What cannot be understood ends the command with status 1 and one line that names it."""
    assert main(["--folder", str(tmp_path), *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_folder_has_one_set_of_simulators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second start in the folder of some that run is refused, and leaves those their files and their socket."""
    with running(tmp_path) as told:
        assert main(["--folder", str(tmp_path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "simulators already run there" in line
        assert json.loads((tmp_path / "simulators.json").read_text()) == told
        assert main(["--folder", str(tmp_path), "--tell", "{}"]) == 0


def test_simulators_that_have_ended_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--tell for simulators that are no more is one clear line."""
    with running(tmp_path):
        pass
    assert main(["--folder", str(tmp_path), "--tell", "{}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no simulators answer at" in line
