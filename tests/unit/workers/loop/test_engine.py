"""What Redis answers while it cannot write, by redis-py's class or by the text: passing, and told in plain words."""

import pytest
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, ResponseError

from notifier.store.connection import unusable
from workers.loop.engine import is_passing

FULL = "command not allowed when used memory > 'maxmemory'."
IN_A_SCRIPT = "Error running script (call to f_1): @user_script:9: @user_script: 9: -"

PASSING = [
    OutOfMemoryError(FULL),
    ReadOnlyError("You can't write against a read only replica."),
    MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    ResponseError(f"{IN_A_SCRIPT}OOM {FULL}"),
    ResponseError(f"{IN_A_SCRIPT}READONLY You can't write against a read only replica."),
    ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk."),
    ResponseError("NOREPLICAS Not enough good replicas to write."),
    ResponseError("BUSY Redis is busy running a script."),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: str(error)[-40:])
def test_a_refusal_that_passes_ends_no_worker(error: ResponseError) -> None:
    """Law 8: redis-py takes the code off some of the answers; each is known all the same."""
    assert is_passing(error)


def test_what_does_not_pass_is_raised() -> None:
    """A fault of the script's or of the rights is for people to see, not to be asked again for ever."""
    assert not is_passing(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    assert not is_passing(ResponseError(f"{IN_A_SCRIPT}attempt to index a nil value"))


@pytest.mark.parametrize("error", [PASSING[0], PASSING[3]], ids=["redis 7", "redis 6.2"])
def test_a_full_redis_is_named_so(error: ResponseError) -> None:
    """Out of memory is said, and what helps."""
    assert str(unusable(error)) == (
        "Redis is out of memory and takes nothing new; let the workers drain it, or raise its maxmemory"
    )
    assert str(unusable(PASSING[1])).startswith("Redis refuses: You can't write")
