"""Notifier: what a producer calls. Checks a notification, writes it as an RQ job, tells what became of it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Final, Self

from redis import Redis

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.errors import InvalidNotificationError, OverloadedError, Refused
from notifier.notification import Notification
from notifier.notification.job import encode_data, encode_meta, encode_targets
from notifier.producer.backend import Backend, SingleRedis, Status
from notifier.producer.feedback import Gone
from notifier.providers import check_payload
from notifier.providers.apns.options import check_by_certificate
from notifier.rules.costs import check_fits
from notifier.rules.policy import Category
from notifier.settings import Settings, load_settings
from notifier.shards.backend import Shards
from notifier.store.connection import connect

JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Notifier:
    """Accepts notifications. Threads may share one; it opens no connection before the first call.

    policies: the rules of the configuration, by user and category.
    """

    def __init__(self, redis: Redis | Backend, settings: Settings) -> None:
        """`from_config` builds one from the YAML. redis: a client; or where else notifications are kept."""
        self._backend: Backend = SingleRedis(redis, settings) if isinstance(redis, Redis) else redis
        self.policies = settings.policies()
        self._most = settings.most_waiting()
        self._platforms = settings.providers.platforms()
        self.limiter = self._backend.limiter

    @classmethod
    def from_config(cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Notifier:
        """A Notifier by the YAML at `path`, at `NOTIFIER_CONFIG`, or at config/notifier.yaml.

        Raises SettingsError where the configuration cannot be used.
        """
        return cls.of(load_settings(path, environ))

    @classmethod
    def of(cls, settings: Settings) -> Notifier:
        """A Notifier by these settings."""
        return cls(Shards(settings) if settings.redis.shards else connect(settings), settings)

    def close(self) -> None:
        """Close the connections to Redis."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, notification: Notification) -> None:
        """Raise InvalidNotificationError, as `send` would, without sending."""
        self._job(notification, "")

    def send(self, notification: Notification, *, job_id: str | None = None) -> str:
        """Accept one notification; returns its job id (with a `dedupe_key` seen before, the earlier one's).

        job_id: an id of the caller's own, else a random one. As long as a notification is kept, one of its id is
        not accepted again: so a caller that does not know whether a call went through can repeat it.
        Raises InvalidNotificationError before anything is written, RedisUnusableError if Redis does not answer,
        OverloadedError where `max_waiting` is reached and the category's `overflow` makes no room, and with
        `redis.wait_replicas` NotReplicatedError for what is accepted and may not survive the primary.
        """
        return self._backend.enqueue([self._job(notification, _checked(job_id))])[0]

    def send_many(
        self,
        notifications: Iterable[Notification],
        *,
        job_ids: Iterable[str] | None = None,
        on_accepted: Callable[[Sequence[str]], object] | None = None,
    ) -> int:
        """Accept any number, a hundred to a round trip; returns how many. Never holds more than a hundred.

        job_ids: as for `send`, one for each. on_accepted: called with the job ids of each hundred, in order.
        Raises InvalidNotificationError, its field led by the place in the iterable, as in
        ``notifications[17].user``: all before that one were accepted, none after it. So it is where the
        iterable raises an error of its own. With `redis.shards`, where shards do not answer, ShardsUnusableError at
        the end names what was not accepted; `on_accepted` is not called from the first of these on.
        So it is with OverloadedError.
        """
        tried = 0
        chunk: list[calls.Job] = []
        over: list[Refused] = []

        def flush() -> None:
            nonlocal tried
            # Taken out first: where Redis fails, the same jobs are not tried once more on the way out.
            jobs, chunk[:] = chunk.copy(), []
            if not jobs:
                return
            tried += len(jobs)
            try:
                job_ids = enqueue(jobs)
            except OverloadedError as error:
                over.extend(replace(each, place=tried - len(jobs) + each.place) for each in error.refused)
                return
            if job_ids and not over and on_accepted is not None:
                on_accepted(job_ids)

        with self._backend.sending() as enqueue:
            try:
                ids = repeat(None) if job_ids is None else job_ids
                for index, (notification, job_id) in enumerate(zip(notifications, ids, strict=job_ids is not None)):
                    try:
                        chunk.append(self._job(notification, _checked(job_id)))
                    except InvalidNotificationError as error:
                        raise InvalidNotificationError(f"notifications[{index}].{error.field}", error.why) from None
                    if len(chunk) == self._backend.chunk:
                        flush()
                    if over and over[-1].limit != "user":
                        break
            finally:
                flush()
                if over:
                    raise OverloadedError(over, tried)
        return tried

    def cancel(self, job_id: str) -> calls.Cancelled:
        """Cancel a notification that no worker has taken yet.

        Returns 'cancelled'; or 'sending' or 'ended' where it is too late; or 'unknown'. Where one of its devices has
        taken it and others are to be tried again, they are not: it is delivered, and this returns 'ended'.
        """
        return self._backend.cancel(job_id)

    def feedback(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> Iterator[Gone]:
        """Iterate over the tokens that a provider called dead: ``for gone in notifier.feedback(): …``.

        Each is acknowledged when the loop comes back for the next one. One over which the loop broke, or was left,
        is given again: to whoever asks once `lease` has passed, and to a consumer of the same name at once. So let
        the loop's body take less than `lease`, and do no harm when done twice.
        group: every group is given each token once, from the oldest that is kept; its consumers share them.
        consumer: a name that no other process uses at the same time; None is for any number of processes.
        follow: wait for more, for ever; else end when nothing is left.
        Raises RedisUnusableError if Redis does not answer: begin again, nothing is lost.
        """
        return self._backend.feedback(group, consumer, follow=follow, lease=lease)

    def routes(self) -> list[Held]:
        """The routes by which nothing goes now, why, since when, and how many wait; empty when all is well.

        Raises RedisUnusableError if Redis does not answer.
        """
        return self._backend.routes()

    def status(self, job_id: str) -> Status | None:
        """What became of a notification; None for one that is unknown or no longer kept."""
        return self._backend.status(job_id)

    def _job(self, notification: Notification, job_id: str) -> calls.Job:
        if not isinstance(notification, Notification):
            raise InvalidNotificationError("notification", f"must be a Notification, is {type(notification).__name__}")
        notification.validate()
        if not self.policies.knows(notification.category):
            known = ", ".join(sorted(self.policies.categories))
            raise InvalidNotificationError("category", f"{notification.category!r} is unknown; known are {known}")
        category = self.policies.category(notification.category)
        self._check_routes(notification, category)
        check_fits(self.policies.for_user(notification.user), category)
        if notification.priority is None and category.priority == "high":
            notification = replace(notification, priority="high")
        check_payload(notification)
        own = notification.expires_in_us
        expires_in_us = category.expires_us if own is None else own
        dedupe, most = notification.dedupe_key, self._most.of(notification.user)
        return calls.Job(
            id=job_id,
            lane=category.lane,
            data=encode_data(notification),
            meta=encode_meta(notification, expires_in_us),
            expires_in_us=expires_in_us,
            send_at_us=_send_at_us(notification),
            targets=encode_targets(notification),
            # With its length, so that no user's name and key together read like another's.
            dedupe=f"{len(notification.user)}:{{{notification.user}}}:{dedupe}" if dedupe else "",
            overflow=None if most is None and self._most.in_all is None else category.overflow,
            max_waiting=most,
            category=category.name,
        )

    def _check_routes(self, notification: Notification, category: Category) -> None:
        app = notification.app or category.app
        for index, device in enumerate(notification.devices):
            platform = self._platforms.get(device.platform)
            if platform is None:
                raise InvalidNotificationError(
                    f"devices[{index}].platform", f"no provider is configured: add providers.{device.platform}"
                )
            if why_not := platform.why_not(app):
                whose = "" if notification.app or app is None else f"category {category.name}, "
                raise InvalidNotificationError("app", f"{why_not} ({whose}devices[{index}])")
            if why_not := platform.why_not_to(device.token, app):
                raise InvalidNotificationError(f"devices[{index}].token", why_not)
            if notification.apns and platform.by_certificate(app):
                check_by_certificate(notification)


def _checked(job_id: str | None) -> str:
    if job_id is None:
        return secrets.token_hex(10)
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        raise InvalidNotificationError("job_id", "must be 1 to 64 letters, digits, '_' and '-'")
    return job_id


def _send_at_us(notification: Notification) -> int | None:
    at = notification.send_at
    return None if at is None else int(at.timestamp() * 1_000_000)
