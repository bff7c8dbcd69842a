"""Pausing, with real workers and simulators: what is paused waits, keeps its place and its expiry, and goes after."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from notifier.queue.pauses import find_pauses, pause, pause_name, resume
from notifier.scripts.loader import run
from notifier.store.exchange import exchange
from tests.harness.support import apns, ends, eventually, fcm, note
from tests.laws.test_held_routes import Service, events, order_by_user, service

LONG_US = 3_600_000_000


def stop(up: Service, what: str, lasts_us: int = 0) -> None:
    assert run(up.redis, pause(pause_name(what), "anna", "wrong text", lasts_us)) == "paused"


def let_go(up: Service, what: str) -> None:
    assert run(up.redis, resume(pause_name(what), "anna")) == "resumed"


def waiting_for_routes(up: Service) -> int:
    names: Any = up.redis.smembers("notifier:routes")
    return sum(int(up.redis.zcard(b"notifier:waiting_for_route:" + name)) for name in names)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["all", "category:default", "lane:default", "user:ann", "route:apns"])
def test_what_is_paused_waits_and_goes_in_order_when_it_is_resumed(tmp_path: Path, what: str) -> None:
    """Nothing of it arrives while it is paused, no attempt is spent; then all of it arrives once, in order."""
    with service(tmp_path) as up:
        up.work("one")
        stop(up, what)
        ids = up.send([note("ann", f"p-ann-{n}", apns("ann")) for n in range(5)])
        eventually(lambda: waiting_for_routes(up) == 1, "ann to wait for a route")
        free = up.send([note("bob", "free-bob-0", fcm("bob"), category="chat")])
        if what == "all":
            eventually(lambda: waiting_for_routes(up) == 2, "bob to wait for a route")
        else:
            ends(up.producer, free[0], "delivered")
        assert up.simulators.titles("p-") == []
        up.nothing_spent(ids)
        (held,) = exchange(up.redis, find_pauses())
        assert (held.state, held.kind, held.whose, held.next_at) == ("stopped", "paused", "person", None)
        assert held.why == "paused by anna: wrong text"
        let_go(up, what)
        eventually(lambda: up.delivered() == 6, "all to be delivered")
        assert order_by_user(up.simulators.all())["apns p-ann"] == [0, 1, 2, 3, 4]
        eventually(lambda: up.redis.scard("notifier:routes") == 0, "nothing to be held any more")
        assert exchange(up.redis, find_pauses()) == []


def test_who_waits_in_a_pause_is_sent_the_rest(tmp_path: Path) -> None:
    """Urgent messages are paused, and the others go at their gap; those wait for the pause, not for the gap."""
    with service(tmp_path, user={"gap": "200ms"}) as up:
        stop(up, "category:chat")
        chat = up.send([note("ann", f"c-ann-{n}", apns("ann"), category="chat") for n in range(2)])
        rest = up.send([note("ann", f"p-ann-{n}", apns("ann")) for n in range(4)])
        one = up.work("one")
        for job_id in rest:
            ends(up.producer, job_id, "delivered")
        paused = {b"hcategory:chat=anna": b"2"}
        eventually(lambda: up.redis.hgetall("notifier:waits") == paused, "both to wait for the pause")
        assert events([one], "unreadable") == []
        let_go(up, "category:chat")
        for job_id in chat:
            ends(up.producer, job_id, "delivered")


def test_a_pause_ends_by_itself(tmp_path: Path) -> None:
    """What is paused for a time goes when it is over, and nobody has to resume it."""
    with service(tmp_path) as up:
        up.work("one")
        stop(up, "category:default", 2_000_000)
        (held,) = exchange(up.redis, find_pauses())
        assert held.next_at is not None
        assert held.since is not None
        assert held.next_at - held.since == timedelta(seconds=2)
        job_ids = up.send([note("ann", f"p-ann-{n}", apns("ann")) for n in range(3)])
        for job_id in job_ids:
            ends(up.producer, job_id, "delivered")
        (first, *_) = up.simulators.all()
        assert first.at_us / 1e6 >= held.next_at.timestamp()


def test_what_expires_while_it_is_paused_expires(tmp_path: Path) -> None:
    """A pause holds nobody's expiry up: it ends as expired, and is never sent."""
    with service(tmp_path) as up:
        up.work("one")
        stop(up, "user:ann")
        (job_id,) = up.send([note("ann", "p-ann-0", apns("ann"), expires_in=timedelta(seconds=1))])
        ends(up.producer, job_id, "expired")
        status = up.producer.status(job_id)
        assert status is not None
        assert status.reason == "expired while it waited", "no limit of its user held it"
        let_go(up, "user:ann")
        last = up.send([note("ann", "p-ann-1", apns("ann"))])
        ends(up.producer, last[0], "delivered")
        assert [arrival.title for arrival in up.simulators.all()] == ["p-ann-1"]


def test_a_paused_route_is_not_probed_and_another_takes_its_devices(tmp_path: Path) -> None:
    """Of a message to two devices the one that is not paused gets it at once; the other when its route is resumed."""
    with service(tmp_path) as up:
        up.work("one")
        stop(up, "route:apns", LONG_US)
        (job_id,) = up.send([note("ann", "p-ann-0", apns("ann"), fcm("ann"))])
        eventually(lambda: up.simulators.titles("p-"), "the device by FCM")
        assert [arrival.platform for arrival in up.simulators.all()] == ["fcm"]
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") == 1, "the rest to wait for a route")
        let_go(up, "route:apns")
        ends(up.producer, job_id, "delivered")
        assert [arrival.platform for arrival in up.simulators.all()] == ["fcm", "apns"]


def test_what_cannot_be_paused_is_refused() -> None:
    """A name that means nothing is refused with the words that would be right."""
    for what in ("marketing", "category:", "tag:x", ""):
        with pytest.raises(ValueError, match="give all, category:NAME"):
            pause_name(what)
