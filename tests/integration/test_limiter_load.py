"""What `make bench-limiter` says of a limiter: what it admitted is judged by what was recorded."""

import pytest
from redis import Redis

from notifier.rules.rate_text import parse_rates
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.limiter_load import Load, drive, over, under

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
    """Processes admit exactly the rate of each key and leave nothing behind."""
    report = drive(Load(redis_server.url, "10/day", concurrency=4, iterations=400, keys=2, processes=2))
    assert (report.calls, report.admitted, report.refused) == (400, 20, 380)
    assert (report.over_admitted, report.under_admitted, report.most) == (0, 0, 10)
    assert redis.keys("*") == []
