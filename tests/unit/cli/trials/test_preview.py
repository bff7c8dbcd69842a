"""The command `notifier preview`, without Redis."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from notifier.cli.__main__ import main

S = 1_000_000

Ran = tuple[int, str, str]
Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, in a folder with old.yaml (the configured one), new.yaml and trace.jsonl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NOTIFIER_CONFIG", "old.yaml")
    rest = {"redis": {"url": "redis://localhost:1/0"}, "providers": {"fcm": {"client": "console"}}}
    for name, rate in (("old", "1/10s"), ("new", "1/1s")):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(rest | {"user": {"windows": [rate]}}))
    Path("trace.jsonl").write_text('{"at": 0, "user": "ann"}\n' * 3)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["notifier", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capfd.readouterr())

    return run


def test_the_command(run: Run) -> None:
    """It needs no Redis; the configured file is the old one."""
    status, out, err = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--plot", "plot.svg")
    assert (status, err) == (0, "")
    assert "3 notifications for 1 user in 0 ms; old → new:" in out
    assert "10.0 s → 1.0 s" in out
    assert "0 would wait longer, 2 shorter" in out
    assert ET.parse("plot.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    status, out, _ = run("preview", "--new", "old.yaml", "--trace", "trace.jsonl", "--json")
    found = json.loads(out)
    assert found["overall"]["old"] == found["overall"]["new"]
    assert found["overall"]["new"]["longest_us"] == 20 * S


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "1800-01-01T00:00:00Z", "9998-12-30T00:00:00Z"])
def test_it_begins_where_the_clock_can_be_asked(run: Run, at: str) -> None:
    """A time far off is refused in a trace by its line."""
    Path("trace.jsonl").write_text(f'{{"at": 0, "user": "ann", "began": "{at}"}}\n')
    status, _, err = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl")
    assert status != 0
    assert "trace.jsonl:1: began" in err


@pytest.mark.parametrize("given", [{"max_waiting": 9}, {"user": {"max_waiting": 9}}])
def test_what_is_not_replayed_is_said(run: Run, given: dict[str, object]) -> None:
    """A file with a max_waiting: beside the answer, which shows what would be refused or dropped as waiting."""
    new = yaml.safe_load(Path("new.yaml").read_text())
    Path("new.yaml").write_text(yaml.safe_dump(new | given))
    status, _, err = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl")
    said = "new.yaml: max_waiting is not replayed: what it refuses or drops is shown as waiting\n"
    assert (status, err) == (0, said)


def test_the_command_shows_what_collapses(run: Run) -> None:
    """A column of its own, where something does."""
    new = yaml.safe_load(Path("new.yaml").read_text())
    Path("new.yaml").write_text(
        yaml.safe_dump(new | {"categories": {"default": {"lane": "bulk", "when_blocked": "collapse"}}})
    )
    Path("trace.jsonl").write_text('{"at": 0, "user": "ann", "collapse_id": "match"}\n' * 3)
    _, out, _ = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl")
    head, _, row, *_ = [line.split() for line in out.splitlines()[1:]]
    assert head[:4] == ["category", "sent", "expired", "superseded"]
    assert row[:8] == ["default", "3", "→", "1", "0", "0", "→", "2"]
    assert "superseded" in run("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--user", "ann")[1]


def test_the_commands_timeline(run: Run) -> None:
    """Of one user; status 1 for one who is not in the trace."""
    asked = ("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--user")
    status, out, _ = run(*asked, "ann")
    assert status == 0
    assert [line.split()[2:] for line in out.splitlines()[-2:]] == [
        ["10.0", "s", "user", "1/10s", "1.0", "s", "user", "1/1s"],
        ["20.0", "s", "user", "1/10s", "2.0", "s", "user", "1/1s"],
    ]
    assert "user 1/10s" in out
    assert len(json.loads(run(*asked, "ann", "--json")[1])) == 3
    assert run(*asked, "ann", "--plot", "Plot.SVG")[1] == out
    assert Path("Plot.SVG").exists()
    assert run(*asked, "bob") == (1, "", "nothing in the trace is for bob\n")


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"--trace": "none.jsonl"}, 1, "none.jsonl: cannot be read: No such file"),
        ({"--trace": "old.yaml"}, 1, "old.yaml:1: is not a JSON object"),
        ({"--new": "none.yaml"}, 3, "none.yaml: cannot be read"),
        ({"--plot": "plot.png"}, 2, ".svg"),
        ({"--plot": "none/plot.svg"}, 1, "none/plot.svg: cannot be written"),
        ({"--live": "5s"}, 2, "a file, or --live TIME"),
    ],
)
def test_what_is_not_right_is_said(run: Run, changed: dict[str, str], status: int, said: str) -> None:
    """Each with its exit status, and no trace of Python."""
    options = {"--new": "new.yaml", "--trace": "trace.jsonl", **changed}
    ended, _, err = run("preview", *(word for option in options.items() for word in option))
    assert (ended, said in err, "Traceback" in err) == (status, True, False), err
