"""What a producer asks of one Redis, step by step."""

from typing import Any

import pytest

from notifier import Device, Notification
from notifier.producer import memory_limit
from notifier.producer.cancel import Cancellation
from notifier.producer.exchanges import Exchanges
from notifier.producer.jobs import JobBuilder
from notifier.settings import parse_settings
from notifier.store.exchange import Commands, Once

RATES = """
redis: {max_memory: 50%, wait_replicas: 1}
providers: {apns: {client: console}}
"""


def test_no_limit_of_memory_refuses_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot's new primary takes the jobs, too, and may have less room: if the slot only moved, they are there."""
    settings = parse_settings(RATES)
    job = JobBuilder(settings).build(Notification("ann", [Device("apns", "a" * 64)], title="Hello"))
    monkeypatch.setattr(memory_limit, "LOOK_EVERY_S", 0.0)
    used, once = iter([1, 99]), iter([1, 0, 1, 2, 2, 0, 1, 2])  # it has connected once, then twice

    def reply(step: Any) -> Any:
        if isinstance(step, Commands):
            return [{"used_memory": next(used), "maxmemory": 100}]
        return next(once) if isinstance(step, Once) else [job.id]

    def run(steps: Any) -> None:
        answer = None
        while True:
            answer = reply(steps.send(answer))

    with pytest.raises(StopIteration) as end:
        run(Exchanges(settings).enqueue([job]))
    assert end.value.value == [job.id]
    assert not list(once)


@pytest.mark.parametrize(("too_late", "sends"), [((), "hide"), (("job",), "leave")])
def test_the_sends_of_whom_a_worker_sends_to_keep_their_names(
    monkeypatch: pytest.MonkeyPatch, too_late: tuple[str, ...], sends: str
) -> None:
    """Also after its lease: who takes over from a dead worker dates the permit under the user's own name (law 1)."""

    def told(result: Any) -> Any:
        yield from ()
        return result

    monkeypatch.setattr(Exchanges, "cancel_of", lambda *_: told(Cancellation(0, too_late)))
    monkeypatch.setattr(Exchanges, "prefer", lambda *_: told(None))
    step: Any = next(Exchanges(parse_settings(RATES)).forget("ann", hard=False))
    assert sends in step.args
