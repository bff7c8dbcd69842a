"""End users choose the endpoints of their subscriptions: none of their push service's answers stops anybody else."""

from pathlib import Path

import pytest

from notifier.notification.subscription import read_subscription
from notifier.simulators.wire import Reply
from tests.harness.support import WorkerProcess, ends, eventually
from tests.laws.test_held_routes import events
from tests.laws.test_push_services import Browsers, browsers

STRANGERS, GOOD = 60, 20


def deliver(b: Browsers, prefix: str, count: int) -> None:
    for job_id in [b.send(b.there, f"{prefix}-{n}") for n in range(count)]:
        ends(b.producer, job_id, "delivered")


def strangers(b: Browsers, status: int) -> list[str]:
    for n in range(STRANGERS):
        b.there.playback.rewrite(f"strange-{n}", [Reply(status, "")])
    return [b.send(b.there, f"strange-{n}") for n in range(STRANGERS)]


@pytest.mark.parametrize("status", [401, 403, 405, 500, 503])
def test_strange_endpoints_stop_nobody(tmp_path: Path, status: int) -> None:
    """Sixty of them are refused by a service that has just taken good messages: these go on, and no circuit opens."""
    with browsers(tmp_path) as b:
        running = b.up.work("one")
        deliver(b, "before", 3)
        strangers(b, status)
        deliver(b, "good", GOOD)
        assert len(b.arrived("good-")) == GOOD
        assert faults(running) == []


def faults(running: WorkerProcess) -> list[object]:
    return [line["kind"] for line in events([running], "circuit_opened") if line["kind"] == "fault"]


def test_a_worker_that_begins_knows_who_takes_the_key(tmp_path: Path) -> None:
    """After a restart the first that it hears of a service are sixty refusals: it remembers that the key was taken."""
    with browsers(tmp_path) as b:
        first = b.up.work("one")
        deliver(b, "before", 3)
        eventually(lambda: b.up.redis.keys("notifier:taken:*"), "a note of it")
        assert first.end() == 0
        ids = strangers(b, 403)
        second = b.up.work("two")
        eventually(lambda: len(b.arrived("strange-")) >= STRANGERS, "all of them")
        deliver(b, "good", GOOD)
        assert faults(second) == []
        assert all(b.up.redis.exists(f"rq:job:{job_id}") for job_id in ids), "kept, as what is refused is"


def test_a_key_that_is_refused_everywhere_stops_its_service(tmp_path: Path) -> None:
    """Those who were reached before are refused now: that is ours to mend, so it costs no message an attempt."""
    with browsers(tmp_path) as b:
        running = b.up.work("one")
        names = [f"known-{n}" for n in range(30)]
        ids = [b.send(b.there, name) for name in names]
        for job_id in ids:
            ends(b.producer, job_id, "delivered")
        for name in names:
            b.there.playback.rewrite(name, [Reply(403, "")])
        for name in names:
            b.send(b.there, name)
        eventually(b.circuits, "the circuit to open")
        eventually(lambda: faults(running), "a word about it, which comes after Redis has answered")
        assert faults(running) == ["fault"]


def test_quiet_services_are_probed_by_others_than_strangers(tmp_path: Path) -> None:
    """Nobody was ever reached, and ten strangers meet 503: the circuit opens, and the first good message closes it."""
    with browsers(tmp_path) as b:
        b.up.work("one")
        strangers(b, 503)
        eventually(b.circuits, "the circuit to open")
        deliver(b, "good", 1)


@pytest.mark.parametrize("path", ["/a/../admin", "/..", "/a/./b", "/%2e%2E/x", "/a/.%2e", "/a/..?x=1"])
def test_an_endpoint_does_not_climb(path: str, tmp_path: Path) -> None:
    """A path with `..` would lead a worker to another part of the push service's host."""
    with browsers(tmp_path) as b:
        good = b.there.subscribe("good")
        endpoint = read_subscription(good).endpoint
        with pytest.raises(ValueError, match=r"\.\."):
            read_subscription(good.replace(endpoint, endpoint + path))
        assert read_subscription(good.replace(endpoint, endpoint + "/a..b/...")).host
