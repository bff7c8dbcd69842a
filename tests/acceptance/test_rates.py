"""docs/tutorials/rates.md, typed as it stands: each command works, and prints what the page shows."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from redis import Redis
from support import type_in

from notifier.settings import parse_settings
from notifier.testing.embedded import EmbeddedRedis

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "rates.md").read_text(encoding="utf-8")
STEP = re.compile(r"^```sh\n(?P<typed>.*?)^```$(?:\n\n^```\n(?P<shown>.*?)^```$)?", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CSV = re.compile(r"^```csv\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 80
MARK = "=== the next step"

# What is another at each run, and how much room it takes.
VOLATILE = (
    (re.compile(r"\d+:\d\d:\d\d\.\d{3}"), "12:00:00.000"),
    (re.compile(r" in [\d.]+m?s;"), " in 1s;"),
    (re.compile(r"─+"), "─"),
    (re.compile(r" +"), " "),
)


def test_the_walk(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Every command of the page works in the order in which it stands there, and says what is shown below it."""
    steps = list(STEP.finditer(PAGE))
    script = "".join(f"{step['typed']}echo '{MARK}'\n" for step in steps)
    said = type_in(script, tmp_path, redis_server.url, COLUMNS=str(COLUMNS))
    printed = said.replace(socket.gethostname(), "web-1").split(f"{MARK}\n")
    for step, text in zip(steps, printed, strict=False):
        if step["shown"] is not None:
            assert lines_of(text) == lines_of(step["shown"]), step["typed"]
    assert redis.scard("rq:workers") == 0


def lines_of(text: str) -> list[str]:
    """The lines of what was printed, without what is another each time."""
    for form, instead in VOLATILE:
        text = form.sub(instead, text)
    return [line.rstrip() for line in text.splitlines()]


def test_what_is_shown_fits_a_terminal() -> None:
    """What the page shows as printed is at most eighty columns wide."""
    shown = [line for step in STEP.finditer(PAGE) for line in (step["shown"] or "").splitlines()]
    assert [line for line in shown if len(line) > COLUMNS] == []


@pytest.mark.parametrize("text", YAML.findall(PAGE))
def test_what_can_be_written_is_right(text: str, tmp_path: Path) -> None:
    """Each piece of YAML on the page is one that the notifier takes, beside the users in the CSV of the page."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "many.csv").write_text("\n".join(CSV.findall(PAGE)), encoding="utf-8")
    tiers = "" if "tiers:" in text else "\ntiers: {quiet: {gap: 5s}}\n"
    assert parse_settings(text + tiers, name=str(tmp_path / "notifier.yaml")).rates_version
