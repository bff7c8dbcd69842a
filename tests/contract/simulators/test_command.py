"""`python -m notifier.simulators` as a person uses it: what it writes, what it is told, what it says of mistakes."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from notifier.settings import load_settings
from notifier.simulators.__main__ import _ports_of_before, main
from notifier.simulators.control import tell
from notifier.simulators.faults import FAULTS
from tests.harness import warm
from tests.harness.support import clean_environ

KEPT = range(9_970, 9_976)  # where no other test chooses


@contextmanager
def running(folder: Path) -> Iterator[dict[str, Any]]:
    """The simulators in a process of their own; what they announce."""
    command = [sys.executable, "-m", "notifier.simulators", "--folder", str(folder)]
    with (
        TemporaryFile() as errors,
        warm.Popen(command, env=clean_environ(), stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.communicate() == (b"", None)
        errors.seek(0)
        assert (errors.read(), process.returncode) == (b"", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of simulators that several tests share; what one tells them it takes back."""
    folder = tmp_path_factory.mktemp("simulators") / "sim"
    with running(folder) as told:
        assert json.loads((folder / "simulators.json").read_text()) == told
        yield folder


@contextmanager
def chosen_elsewhere(port: int) -> Iterator[None]:
    """A process chose this port for a server that does not listen yet."""
    choose = f"from notifier.testing.ports import free_port\nprint(free_port({port}), flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", choose], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert int(process.stdout.readline()) == port
        yield
        process.communicate(b"\n")


def test_a_worker_that_reads_the_folder_at_a_new_start_reads_whole_files(tmp_path: Path) -> None:
    """Each file is replaced in one step, so that what somebody has opened stays what it was."""
    with running(tmp_path):
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in {".pem", ".json", ".yaml"}}
        opened = {path: path.open("rb") for path in before}
    with running(tmp_path):
        for path, file in opened.items():
            with file:
                assert file.read() == before[path]
        assert (tmp_path / "service-account.json").read_bytes() != before[tmp_path / "service-account.json"]


def test_the_folder_has_all_that_is_needed(folder: Path) -> None:
    """The announcement stands in the folder too, and notifier.yaml is a configuration that leads to the simulators."""
    told = json.loads((folder / "simulators.json").read_text())
    settings = load_settings(folder / "notifier.yaml", {})
    assert settings.providers.fcm is not None
    assert settings.providers.apns.endpoint == told["apns"]["endpoint"]
    assert settings.providers.fcm.endpoint == told["fcm"]["endpoint"]


def test_they_keep_their_ports(tmp_path: Path) -> None:
    """At the next start in the folder, where nobody has them since: a copy of the configuration stays right."""
    apns, channels, fcm, webpush, hms, expo = (f"https://127.0.0.1:{port}" for port in KEPT)
    before = {"apns": apns, "fcm": fcm, "webpush": webpush, "hms": hms, "expo": expo}
    announced = {name: {"endpoint": endpoint, "channels_endpoint": channels} for name, endpoint in before.items()}
    (tmp_path / "simulators.json").write_text(json.dumps(announced))
    with running(tmp_path) as told:
        assert {name: told[name]["endpoint"] for name in before} == before
        assert told["apns"]["channels_endpoint"] == channels
    with socket.create_server(("127.0.0.1", KEPT[-1])), chosen_elsewhere(KEPT[-2]), running(tmp_path) as told:
        assert told["apns"]["channels_endpoint"] == channels
        for name, endpoint in before.items():
            assert (told[name]["endpoint"] == endpoint) is (name not in {"hms", "expo"})


def test_told_while_they_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--tell takes all at once or, where something is wrong, nothing; it prints what holds now."""
    told = {"scripts": {"t": "unregistered"}, "apns": {"max_streams": 1, "latency_ms": 3, "fail": {"cut": 0.1}}}
    assert main(["--folder", str(folder), "--tell", json.dumps(told)]) == 0
    capsys.readouterr()
    assert main(["--folder", str(folder), "--tell", '{"fcm": {"listening": false, "fail": {}}}']) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["scripts"] == {"t": "unregistered"}
    assert state["apns"].items() >= {
        "max_streams": 1, "fail": {"cut": 0.1}, "latency_ms": 3.0, "listening": True
    }.items()  # fmt: skip
    assert state["fcm"].items() >= {"listening": False, "fail": {}}.items()
    for wrong, said in (
        ("{", "--tell is no JSON"),
        ("[" * 100_000, "--tell is no JSON"),
        ('{"apns": {"max_streams": 2, "cat": true}}', "apns.cat: unknown"),
    ):
        assert main(["--folder", str(folder), "--tell", wrong]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert main(["--folder", str(folder), "--tell", "{}"]) == 0
    assert json.loads(capsys.readouterr().out) == state
    assert main(["--folder", str(folder), "--tell", '{"scripts": null}']) == 0


def test_scripts_for_many_devices_are_told_at_once(folder: Path) -> None:
    """What is told may be long: over the socket 200 KB of scripts are taken like a short one."""
    scripts = {f"{number:064x}": "unregistered" for number in range(2_400)}
    assert tell(folder / "control", {"scripts": scripts})["scripts"] == scripts
    tell(folder / "control", {"scripts": None})


def test_the_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """--faults lists every fault with its words, and needs no folder."""
    assert main(["--faults"]) == 0
    listed = capsys.readouterr().out
    for name, fault in FAULTS.items():
        assert f"\n{name} " in f"\n{listed}"
        assert fault.says in listed


@pytest.mark.parametrize(
    ("left", "says"),
    [
        pytest.param(None, "simulators.json is missing or unreadable: no simulators run", id="none ever ran"),
        pytest.param({"control": "control"}, "no simulators answer at", id="they have ended"),
    ],
)
def test_a_folder_without_simulators_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: dict[str, str] | None, says: str
) -> None:
    """--tell ends with status 1 and one line that says so. left: what the last ones announced there."""
    if left is not None:
        (tmp_path / "simulators.json").write_text(json.dumps({name: str(tmp_path / of) for name, of in left.items()}))
    assert main(["--folder", str(tmp_path), "--tell", "{}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    "written",
    [
        "[]",
        '{"apns": 7}',
        '{"apns": {"endpoint": 7, "channels_endpoint": ""}}',
        "x",
        '{"apns": {"endpoint": "https://127.0.0.1:65536", "channels_endpoint": ""}}',
    ],
)
def test_a_file_of_ports_that_somebody_wrote_over_is_passed_over(tmp_path: Path, written: str) -> None:
    """They start at ports of their own then."""
    (tmp_path / "simulators.json").write_text(written)
    assert _ports_of_before(tmp_path) == {}


def test_a_folder_has_one_set_of_simulators(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second start in the folder of some that run is refused, and leaves those their files and their socket."""
    told = (folder / "simulators.json").read_text()
    assert main(["--folder", str(folder)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "simulators already run there" in line
    assert (folder / "simulators.json").read_text() == told
    assert main(["--folder", str(folder), "--tell", "{}"]) == 0
