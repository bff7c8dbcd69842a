"""Export to a user the sends and notifications that are kept under the name of the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from redis import Redis

from notifier.errors import InvalidNotificationError
from notifier.forecast.expected import expect_later
from notifier.notification.job import decode_data
from notifier.notification.json_values import fields_of
from notifier.operations.explain import Inspection
from notifier.queue.circuits import Held, find_routes
from notifier.queue.waits import OF_LATER
from notifier.queue.walk import find_waiting
from notifier.rules.category import DEFAULT_CATEGORY, LANES
from notifier.rules.policies import Policies
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key
from notifier.store.connection import ask_each, pieces, redis_answers
from notifier.store.exchange import exchange
from notifier.texts import mask
from notifier.units import moment

CHUNK: Final = 500
FIELDS: Final = ("meta", "push_outcome", "data")


def export_user(redis: Redis, policies: Policies, user: str) -> dict[str, Any]:
    """Return the times of sends, and the notifications that wait or ended badly; device tokens are masked.

    `Notifier` has the user's preferences and history. Raises RedisUnusableError.
    """
    waiting = {each.job_id: each.expected_at for each in Inspection(redis, policies, user).backlog()}
    with redis_answers():
        others = [job_id for job_id in exchange(redis, find_waiting(user)) if job_id not in waiting]
        routes = exchange(redis, find_routes())
        waiting |= {job_id: _expected_later(redis, job_id, routes) for job_id in others}
        return {
            "sends": [
                {"category": category, "at": at}
                for category in (None, *sorted(policies.categories))
                for at in _sends(redis, user, category)
            ],
            "waiting": [_waiting(redis, *each) for each in waiting.items()],
            "ended": list(_ended(redis, user)),
        }


def _sends(redis: Any, user: str, category: str | None) -> Iterator[datetime]:
    for _, at in redis.zscan_iter(user_key("sent", user, category), count=CHUNK):
        yield moment(at)
    counts = redis.zrange(user_key("counts", user, category), 0, -1, withscores=True)
    for (_, before), (at, total) in pairwise(counts):
        yield from [moment(int(at))] * int(total - before)


def _ended(redis: Any, user: str) -> Iterator[dict[str, Any]]:
    for registry in (rq_key(name, lane) for name in ("failed", "canceled") for lane in LANES):
        for page in pieces(redis.zscan_iter(registry, count=CHUNK), CHUNK):
            jobs = ask_each(redis, page, lambda pipe, entry: pipe.hmget(job_key(entry[0]), FIELDS))
            for (job_id, _), (meta, outcome, data) in zip(page, jobs, strict=True):
                if outcome and (of := fields_of(meta)).get("user") == user:
                    known = {"category": of.get("category", DEFAULT_CATEGORY), "outcome": outcome.decode()}
                    yield {"job_id": job_id.decode(errors="replace"), **known, **_content(data)}


def _expected_later(redis: Any, job_id: str, routes: Sequence[Held]) -> datetime | None:
    at_us = redis.zscore(redis_key("later"), job_id)
    return None if at_us is None else expect_later(at_us, redis.hmget(job_key(job_id), OF_LATER), routes).at


def _waiting(redis: Any, job_id: str, at: datetime | None) -> dict[str, Any]:
    meta, _, data = redis.hmget(job_key(job_id), FIELDS)
    category = fields_of(meta).get("category", DEFAULT_CATEGORY)
    return {"job_id": job_id, "category": category, "expected_at": at, **_content(data)}


def _content(data: bytes | None) -> Mapping[str, Any]:
    try:
        _, kwargs = decode_data(data or b"")
    except InvalidNotificationError:
        return {}
    devices = kwargs.get("devices")
    shown = [_masked(device) for device in devices] if isinstance(devices, list) else []
    return {"notification": {**kwargs, "devices": shown}}


def _masked(device: Any) -> Any:
    if not isinstance(device, dict):
        return None
    return {"platform": device.get("platform"), "token": mask(str(device.get("token", "")))}
