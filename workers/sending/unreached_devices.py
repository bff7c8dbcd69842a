"""Unreached devices, to which a route has never delivered: trouble with them alone says nothing about the route.

A client chooses the address of its push service, so it also chooses what the service answers. A service that accepted
our key goes on accepting it, and a service that delivers to other devices has not failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from notifier.notification.notification import platform_of
from notifier.providers.contract import Answer, Outcome
from notifier.queue.writes import write
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run_async

TAKEN_S: Final = 86_400.0  # how long a service that took a message is known to accept the key
DELIVERS_S: Final = 2.0  # how long a route that delivered is known to deliver
NOTED_S: Final = 60.0  # how often a worker notes in Redis that a service accepts the key, also for its own next start
MAX_DEVICES: Final = 10_000
MAX_ROUTES: Final = 1_000
MAX_PROBES: Final = 5  # failed ones, each sent at once after the one before
BY_DEVICE: Final = frozenset({Outcome.FAULT, Outcome.UNKNOWN, Outcome.RETRY})


class UnreachedDevices:
    """Knows by which routes this worker has delivered, and to which devices.

    keys: by route, a digest of the key that its services see.
    """

    def __init__(self, redis: Any, keys: Mapping[str, str]) -> None:
        self._redis = redis
        self._keys = keys
        self._delivered: dict[str, float] = {}
        self._devices: dict[tuple[str, int], None] = {}  # the latest last
        self._probes: Counter[str] = Counter()
        self._noted: dict[str, float] = {}
        self._to_note: set[str] = set()

    def delivered(self, route: str, device: str, now: float) -> None:
        """Note that the route has delivered to a device, named by its token."""
        if len(self._delivered) > MAX_ROUTES:
            self._delivered.clear()
            self._noted.clear()
        self._delivered[route] = now
        self._probes.pop(route, None)
        of, devices = (route, hash(device)), self._devices
        devices.pop(of, None)
        devices[of] = None
        if len(devices) > MAX_DEVICES:
            del devices[next(iter(devices))]
        if "@" in route and now >= self._noted.get(route, -NOTED_S) + NOTED_S:
            self._noted[route] = now
            self._to_note.add(route)

    def is_own_fault(self, route: str, device: str, now: float) -> bool:
        """Whether a refusal of our key is this device's own fault: its service lately accepted the key."""
        return _is_service(route) and self._is_strange(route, device) and self._since(route, now) < TAKEN_S

    def is_own_trouble(self, route: str, device: str, now: float) -> bool:
        """Whether a failure says nothing about the route: it delivers to other devices just now."""
        return self._is_strange(route, device) and self._since(route, now) < DELIVERS_S

    def is_no_proof(self, route: str, device: str, answer: Answer) -> bool:
        """Whether a failed probe may be its device's fault: then another one should go at once.

        After a few in a row one counts, so that a service that is down is not probed without a pause.
        """
        by_device = answer.outcome in BY_DEVICE and answer.status is not None
        if not (by_device and _is_service(route) and self._is_strange(route, device)):
            return False
        self._probes[route] = (self._probes[route] + 1) % (MAX_PROBES + 1)
        return self._probes[route] != 0

    def forget(self, platform: str) -> None:
        """Forget a platform's services: they see a new key."""
        for route in [by for by in self._delivered if platform_of(by) == platform]:
            del self._delivered[route]
            self._noted.pop(route, None)

    async def begin(self, routes: Iterable[str]) -> None:
        """Learn which services lately accepted the key from any worker."""
        now = asyncio.get_running_loop().time()
        for route in filter(_is_service, routes):
            if await self._redis.exists(self._key(route)):
                self._delivered.setdefault(route, now - DELIVERS_S)

    async def tell(self) -> None:
        """Note in Redis which services accepted the key."""
        for route in list(self._to_note):
            await run_async(self._redis, write("SET", self._key(route), "1", "EX", int(TAKEN_S)))
            self._to_note.discard(route)

    def _key(self, route: str) -> str:
        return redis_key("taken", route, self._keys.get(route.partition("@")[0], ""))

    def _is_strange(self, route: str, device: str) -> bool:
        return (route, hash(device)) not in self._devices

    def _since(self, route: str, now: float) -> float:
        return now - self._delivered.get(route, now - TAKEN_S)


def _is_service(route: str) -> bool:
    """Whether the route leads to one of many services, at an address that the device names."""
    return "@" in route
