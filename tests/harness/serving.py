"""A partition in a worker's hands, of which only what it does by itself beside its engine is tried."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from notifier.rules.category import LANES
from notifier.settings import parse_settings
from notifier.store.partitions import Partition
from workers.configuration.wiring import build_tuning
from workers.loop.idle import IdleWorker
from workers.loop.parts import Parts
from workers.loop.turns import Turns
from workers.sending.capacity import Capacity
from workers.sending.numbers import Numbers
from workers.served import Served

SETTINGS: Final = parse_settings("providers: {fcm: {client: console}}")


def serve(client: Any, version: str, lanes: Sequence[str] = LANES, name: str = "w") -> Served:
    """client: of asyncio. version: of the rules that its worker follows."""
    absent: Any = SimpleNamespace(numbers=Numbers())
    parts = Parts(
        name=name, lanes=lanes, redis=client, idle=IdleWorker(client, client, name, lanes), sender=absent,
        circuits=absent, turns=Turns(Capacity({}), batch=10, most=10), rq_jobs=absent, tuning=build_tuning(SETTINGS),
    )  # fmt: skip
    return Served(Partition(0, 1, None, client), parts, SETTINGS.policies(), version)
