"""A call of `send_many`: one hundred is on its way while the next is built."""

from asyncio import CancelledError
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from notifier import Device, Notification, RedisUnusableError
from notifier.producer.jobs import Bulk, JobBuilder
from notifier.queue import calls
from notifier.scripts.loader import finished
from notifier.settings import parse_settings

RATES = "{categories: {default: {lane: default}}, providers: {fcm: {client: console}}}"
SIZE = 2


class Two:
    """Chunks of two. begun: the future of each that is under way; handed: all that were handed over."""

    def __init__(self) -> None:
        self.begun: list[Future[list[str]]] = []
        self.handed: list[list[str]] = []
        self.told: list[str] = []
        self.bulk = Bulk(JobBuilder(parse_settings(RATES)), SIZE, self._enqueue, self._begin, self.told.extend)

    def add(self, *names: str) -> list[bool]:
        """Whether it is time to go on, after each."""
        return [self.bulk.add(Notification("anna", [Device("fcm", "t" * 20)], title="hi"), name) for name in names]

    def go_on(self) -> bool:
        return finished(self.bulk.go_on())

    def _enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        self.handed.append([job.id for job in jobs])
        return self.handed[-1]

    def _begin(self, jobs: Sequence[calls.Job]) -> Future[list[str]]:
        self._enqueue(jobs)
        self.begun.append(Future())
        return self.begun[-1]


def test_what_is_accepted_is_told_with_the_next_one() -> None:
    """Not only with the next hundred: the iterable may wait for long."""
    two = Two()
    assert two.add("a", "b") == [False, True]
    assert two.go_on()
    assert two.add("c") == [False]
    two.begun[0].set_result(["a", "b"])
    assert two.add("d") == [True]
    assert two.go_on()
    assert two.told == ["a", "b"]
    assert two.handed == [["a", "b"], ["c", "d"]]


def test_after_an_error_nothing_more_is_tried() -> None:
    """What was built meanwhile is not handed over, also not on the way out."""
    two = Two()
    two.add("a", "b")
    two.go_on()
    two.add("c", "d")
    two.begun[0].set_exception(RedisUnusableError("away"))
    with pytest.raises(RedisUnusableError):
        two.go_on()
    finished(two.bulk.finish())
    assert (two.handed, two.told, two.bulk.tried) == ([["a", "b"]], [], 0)


@pytest.mark.parametrize("ends_by", [KeyboardInterrupt, CancelledError])
def test_who_ends_the_program_does_not_wait(ends_by: type[BaseException]) -> None:
    """What is under way is left, and what was built is not handed over: Redis may not answer for long."""
    two = Two()
    two.add("a", "b")
    two.go_on()
    two.add("c")
    finished(two.bulk.finish(ends_by()))
    assert two.begun[0].cancelled()
    assert two.handed == [["a", "b"]]
