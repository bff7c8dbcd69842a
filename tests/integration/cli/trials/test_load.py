"""`notifier load`: what a limiter admitted is judged by what was recorded."""

from __future__ import annotations

import json
import sys

import pytest
from redis import Redis
from typer.testing import CliRunner

from notifier.cli.app import app
from notifier.cli.trials import load as command_load
from notifier.operations.load import Load, Report, check, over, under
from notifier.rules.rate_text import parse_rates
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.support import clean_environ

S = 1_000_000


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([0, 1, 2], (0, 3)),
        ([0, 1, 2, S - 1], (1, 4)),
        ([0, 1, 2, S], (0, 3)),  # the first has left (t - interval, t]
        ([S - 1, 2, 0, 1, S - 1], (2, 5)),
        ([], (0, 0)),
    ],
)
def test_too_many_are_counted(times: list[int], found: tuple[int, int]) -> None:
    """Three a second: each admission beyond the third of an interval is one too many."""
    assert over([(at, at) for at in times], 3, S) == found


def test_only_what_is_proved_counts() -> None:
    """An admission whose moment is not known to the µs is not held against a limiter that may be right."""
    spans = [(0, 10), (0, 10), (0, 10)]
    assert over([*spans, (S - 20, S)], 3, S) == (0, 3)
    assert over([*spans, (S - 20, S - 1)], 3, S) == (1, 4)


@pytest.mark.parametrize(("refused", "wrong"), [((S, S), 0), ((S + 1, S + 1), 1), ((S, S + 1), 0), ((9 * S, 9 * S), 1)])
def test_too_few_are_counted(refused: tuple[int, int], wrong: int) -> None:
    """A refusal is wrong if the window had room whenever within its span it took place; a gap may have refused too."""
    spans = [(at, at) for at in (1, 2, 3)]
    assert under(parse_rates("3/s"), spans, [refused]) == wrong
    assert under(parse_rates("3/s; gap 1ms"), spans, [refused]) == 0


def test_a_run(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Processes admit exactly the rate of each key and leave nothing behind; a threshold below it fails."""
    load = ["load", "--url", redis_server.url, "--concurrency", "4", "--processes", "2", "--iterations", "400"]
    command = [sys.executable, "-m", "notifier.cli", *load, "--keys", "2", "--rate", "10/day", "--threshold", "9"]
    done = warm.run([*command, "--json"], env=clean_environ(), timeout=120)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["calls"], report["admitted"], report["refused"]) == (400, 20, 380)
    assert (report["over_admitted"], report["under_admitted"], report["most"]) == (0, 0, 10)
    assert redis.keys("*") == []


@pytest.mark.parametrize(
    ("too_many", "most", "threshold", "status"), [(0, 10, None, 0), (0, 10, "10", 0), (0, 10, "9", 1), (1, 11, None, 1)]
)
def test_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, too_many: int, most: int, threshold: str | None, status: int
) -> None:
    """Status 1 where the rate was not kept, or more went than the threshold."""
    report = Report(400, 20, 380, too_many, 0, most, 1.0, 0.1, 0.2)
    monkeypatch.setattr(command_load, "drive", lambda *_: report)
    words = ["load", "--rate", "10/day", *(["--threshold", threshold] if threshold else [])]
    assert CliRunner().invoke(app, words).exit_code == status


@pytest.mark.parametrize(
    ("rates", "why"),
    [("gap 1s", "rate needs a window"), ("5 a minute", "is not a rate")],
)
def test_what_cannot_be_run(rates: str, why: str) -> None:
    """It is told before anything is started."""
    with pytest.raises(ValueError, match=why):
        check(Load("redis://nowhere", rates, 1, 1, 1, 1))
