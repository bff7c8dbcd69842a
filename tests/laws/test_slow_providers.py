"""A slow provider is not an outage: what it serves a second, it gets, and nothing runs into a timeout of our making."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notification, Notifier
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, client_of, eventually, fcm, note, notifier, worker, write_config

TIMEOUT_S = 8  # a machine with much to do may be silent for two seconds, which is no queue of ours
QUEUE_S = TIMEOUT_S / 2
WITHIN_S = 120.0
SETTINGS = {"lease": f"{TIMEOUT_S + 3}s", "grace": "4s"}


class Service:
    """Simulators, a Redis, a producer and workers."""

    def __init__(self, simulators: Simulators, redis: Redis, producer: Notifier) -> None:
        self.simulators, self.redis, self.producer = simulators, redis, producer

    def stats(self, name: str) -> int:
        """What has been counted in all."""
        return int(self.redis.hget("notifier:stats", name) or 0)  # type: ignore[arg-type]

    def send(self, notifications: list[Notification]) -> None:
        """Accept these."""
        self.producer.send_many(notifications)

    def ended(self, messages: int) -> None:
        """Wait until so many are delivered."""
        eventually(lambda: self.stats("delivered") >= messages, f"{messages} delivered", within_s=WITHIN_S)


@contextmanager
def service(tmp_path: Path, workers: int = 1, **settings: Any) -> Iterator[Service]:
    with ExitStack() as stack:
        simulators = stack.enter_context(Simulators(tmp_path / "simulators"))
        server = stack.enter_context(EmbeddedRedis())
        providers = simulators.providers()
        for provider in providers.values():
            provider["timeout"] = f"{TIMEOUT_S}s"
        providers["fcm"]["limits"] = {"device": [], "collapsible": None, "project": None}
        config = write_config(tmp_path, server.url, providers, worker=SETTINGS | settings)
        producer = stack.enter_context(notifier(config))
        redis = stack.enter_context(client_of(config))
        for n in range(workers):
            stack.enter_context(worker(config, name=f"w{n}")).ready(redis)
        yield Service(simulators, redis, producer)


def test_who_has_no_room_by_a_route_does_not_look_again_and_again(tmp_path: Path) -> None:
    """By another route there is room, so the worker looks: when something happens, and else once a second."""
    with service(tmp_path) as up:
        up.send([note(f"warm{n}", f"warm-{n}", apns(f"w{n}"), fcm(f"w{n}")) for n in range(20)])
        up.ended(20)
        slow = [up.simulators.answer(apns(f"slow{n}"), Reply(200, delay_ms=4_000)) for n in range(200)]
        up.send([note(f"u{n}", f"slow-{n}", device) for n, device in enumerate(slow)])
        eventually(lambda: up.redis.keys("notifier:route:apns|busy|*"), "some to wait for room")
        calls = up.redis.info("commandstats")["cmdstat_evalsha"]["calls"]  # type: ignore[index]
        up.ended(21)
        assert up.redis.info("commandstats")["cmdstat_evalsha"]["calls"] - calls < 300  # type: ignore[index]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("platform", ["apns", "fcm"])
def test_nothing_is_unknown_at_a_slow_provider(tmp_path: Path, platform: str, workers: int) -> None:
    """At 50 a second 450 at once would stand in a queue for nine seconds; none does for four, and each is sent once.

    What goes by the other route does not wait for them.
    """
    slow, quick = (apns, fcm) if platform == "apns" else (fcm, apns)
    with service(tmp_path, workers) as up:
        getattr(up.simulators, platform).rate = 50
        up.send([note(f"s{n}", "slow", slow(f"s{n}")) for n in range(450)])
        up.send([note(f"q{n}", "quick", quick(f"q{n}")) for n in range(100)])
        eventually(up.producer.routes, "the route to be busy")
        (held,) = up.producer.routes()
        assert (held.route, held.state, held.kind) == (platform, "slow", "busy")
        up.ended(550)
        arrived = [a for a in up.simulators.all() if a.status == 200]
        assert len(arrived) == 550
        assert up.stats("retried") == 0
        assert 0 < getattr(up.simulators, platform).longest_queue_s < QUEUE_S
        last_quick = max(a.at_us for a in arrived if a.title == "quick")
        served = sorted(a.at_us for a in arrived if a.title == "slow")
        assert last_quick < served[400], "the other route waits for nobody"
        assert up.producer.routes() == []
        assert up.redis.smembers("notifier:routes") == set()
