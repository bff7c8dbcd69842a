"""How long `notifier serve` waits for Redis."""

import pytest

from notifier.server.state import _hasty
from notifier.settings import Settings


@pytest.mark.parametrize(
    ("partitions", "given", "waits_us"),
    [(1, "5s", 1_500_000), (8, "5s", 1_000_000), (1, "200ms", 200_000), (8, "200ms", 200_000)],
)
def test_a_redis_that_hangs_is_given_up_before_the_answer_is_due(partitions: int, given: str, waits_us: int) -> None:
    """Redis is asked twice, and four seconds are there for the answer. A shorter time of the configuration holds."""
    settings = Settings.model_validate({"redis": {"partitions": partitions, "socket_timeout": given}})
    assert _hasty(settings).redis.socket_timeout_us == waits_us
