"""Build the jobs of notifications, and check them before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from notifier.errors import InvalidNotificationError, NotReplicatedError, OverloadedError, Refused, SettingsError
from notifier.notification import Notification
from notifier.notification.job import encode_data, encode_meta, encode_targets
from notifier.providers import check_payload
from notifier.queue.spans import NO_SPAN, Operation, Spans
from notifier.rules.category import Category, check_fits
from notifier.scripts import records
from notifier.scripts.loader import settled
from notifier.store.partitions import Partitions
from notifier.units import shown

if TYPE_CHECKING:
    from notifier.settings import Settings

LONGEST_REF: Final = 256
JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JobBuilder:
    """Checks notifications and builds their jobs, by the settings."""

    def __init__(self, settings: Settings, partitions: Partitions | None = None) -> None:
        self._partitions = partitions or Partitions.around(None)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        self.policies = settings.policies()
        self._max_waiting = settings.user.max_waiting
        self._counts_waiting = settings.max_waiting is not None or self._max_waiting is not None
        self._platforms = settings.providers.platforms()
        self._has_events = settings.events.keep_us > 0
        self._spans = Spans() if settings.tracing == "opentelemetry" else None

    def check_events(self) -> None:
        """Raise SettingsError where the configuration keeps no events."""
        if not self._has_events:
            raise SettingsError("events.keep is 0s, so there are no events: write events: {keep: 1d}, say")

    def span(self, operation: Operation, notification: Notification) -> AbstractContextManager[Mapping[str, str]]:
        """The span in which a notification is built; it yields the `trace` that `build` takes."""
        if self._spans is None or not isinstance(notification, Notification):
            return NO_SPAN
        return self._spans.produce(operation, notification.category)

    def build(
        self, notification: Notification, job_id: str | None = None, trace: Mapping[str, str] | None = None
    ) -> records.Job:
        """The job of a notification. Raises InvalidNotificationError.

        job_id: None is a random one. trace: of `span`.
        """
        if not isinstance(notification, Notification):
            raise InvalidNotificationError("notification", f"must be a Notification, is {type(notification).__name__}")
        notification.validate()
        job_id = self._partitions.job_id(notification.user, _checked(job_id))
        category = self.category(notification.category)
        self._check_routes(notification, category)
        check_fits(self.policies.for_user(notification.user), category)
        if notification.priority is None and category.priority == "high":
            notification = replace(notification, priority="high")
        check_payload(notification)
        own = notification.expires_in_us
        expires_in_us = category.expires_us if own is None else own
        dedupe, send_at = notification.dedupe_key, notification.send_at
        return records.Job(
            id=job_id,
            lane=category.lane,
            data=encode_data(notification),
            meta=encode_meta(notification, expires_in_us, self._ref(notification), trace),
            expires_in_us=expires_in_us,
            send_at_us=None if send_at is None else int(send_at.timestamp() * 1_000_000),
            targets=encode_targets(notification),
            # With the name's length, so that no other user and key give the same text.
            dedupe=f"{len(notification.user)}:{{{notification.user}}}:{dedupe}" if dedupe else "",
            overflow=category.overflow if self._counts_waiting else None,
            max_waiting=self._max_waiting,
            category=category.name,
            tagged=notification.user if notification.tags else "",
        )

    def category(self, name: str) -> Category:
        """The configured category of that name. Raises InvalidNotificationError where there is none."""
        if not self.policies.knows(name):
            known = ", ".join(sorted(self.policies.categories))
            raise InvalidNotificationError("category", f"{shown(name)} is unknown; known are {known}")
        return self.policies.category(name)

    def _ref(self, notification: Notification) -> str | None:
        """The caller's own name for the notification, for its event."""
        ref = notification.data.get("ref") if self._has_events else None
        if ref is not None and (not isinstance(ref, str) or len(ref.encode(errors="replace")) > LONGEST_REF):
            raise InvalidNotificationError(
                "data.ref",
                f"stands in the event of the notification, so it must be text of at most {LONGEST_REF} bytes",
            )
        return ref

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
            platform.check(notification, app)


class Bulk:
    """One call of `send_many`: gathers jobs into chunks, enqueues them, and keeps the refusals.

    While a chunk is on its way, the next is built. tried: how many jobs are known to be accepted or refused.
    """

    def __init__(
        self,
        builder: JobBuilder,
        size: int,
        enqueue: Callable[[Sequence[records.Job]], Any],
        begin: Callable[[Sequence[records.Job]], Any],
        on_accepted: Callable[[Sequence[str]], object] | None,
    ) -> None:
        """enqueue: enqueues a chunk; returns its job ids, or an awaitable. begin: starts the same; returns a future."""
        self._builder = builder
        self._size = size
        self._enqueue, self._begin = enqueue, begin
        self._on_accepted = on_accepted
        self._chunk: list[records.Job] = []
        self._under_way: Any = None  # the future of the previous chunk
        self._over: list[Refused] = []
        self._seen = 0
        self.tried = 0

    def add(self, notification: Notification, job_id: str | None) -> bool:
        """Add a notification; True if it is time for `go_on`. Raises InvalidNotificationError with its place."""
        index = self._seen
        self._seen += 1
        try:
            with self._builder.span("create", notification) as trace:
                self._chunk.append(self._builder.build(notification, job_id, trace))
        except InvalidNotificationError as error:
            raise InvalidNotificationError(f"notifications[{index}].{error.field}", error.why) from None
        return len(self._chunk) == self._size or (self._under_way is not None and self._under_way.done())

    async def go_on(self) -> bool:
        """Note the result of the previous chunk, and enqueue the next one if it is full; False if the call is to end.

        Raises NotReplicatedError, with all refusals.
        """
        if not await self._end_before():
            return False
        if len(self._chunk) == self._size:
            jobs, self._chunk = self._chunk, []
            try:
                self._under_way = self._begin(jobs)
            except RuntimeError:  # an interpreter that ends starts no thread
                return await self._note(partial(self._enqueue, jobs))
        return True

    async def finish(self, error: BaseException | None = None) -> None:
        """Enqueue the rest. Raises OverloadedError if some were refused; otherwise as `go_on`.

        error: it ends the call. Ctrl-C and a cancellation wait for no Redis, and nothing is raised in their place.
        """
        if error is not None and not isinstance(error, Exception):
            if self._under_way is not None:
                self._under_way.cancel()
            return
        try:
            if await self._end_before() and self._chunk:
                jobs, self._chunk = self._chunk, []
                await self._note(partial(self._enqueue, jobs))
        except Exception as failed:
            if not self._over:
                raise
            raise OverloadedError(self._over, self.tried) from failed
        if self._over:
            raise OverloadedError(self._over, self.tried)

    async def _end_before(self) -> bool:
        before, self._under_way = self._under_way, None
        if before is None:
            return True
        jobs, self._chunk = self._chunk, []  # if the previous chunk ends the call, these are not tried
        if not await self._note(lambda: before if hasattr(before, "__await__") else before.result()):
            return False
        self._chunk = jobs
        return True

    async def _note(self, job_ids_of: Callable[[], Any]) -> bool:
        try:
            job_ids: list[str] = await settled(job_ids_of())
            self.tried += len(job_ids)
            if not self._over and self._on_accepted is not None:
                await settled(self._on_accepted(job_ids))
        except (OverloadedError, NotReplicatedError) as error:
            return self._refused(error)
        return True

    def _refused(self, error: OverloadedError | NotReplicatedError) -> bool:
        """Note a chunk's refusals. True if the call may go on: only a user's own limit leaves room for others."""
        self._over += [replace(each, place=self.tried + each.place) for each in error.refused]
        if isinstance(error, NotReplicatedError):
            over, self._over = self._over, []
            raise NotReplicatedError(error.job_ids, error.why, over) from error
        self.tried += error.tried
        return self._over[-1].limit == "user"


def _checked(job_id: str | None) -> str | None:
    if job_id is None:
        return None
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        raise InvalidNotificationError("job_id", "must be 1 to 64 letters, digits, '_' and '-'")
    return job_id
