"""What users' programs do in a run: they accept notifications, cancel some, and requeue what failed."""

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from notifier import Device, Notification, Notifier
from notifier.errors import NotifierError
from notifier.rules.category import LANES
from notifier.store.tags import number_of
from tests.nemesis.history import History, wall_us
from tests.nemesis.machines import Machines
from tests.nemesis.rates_book import HUNGRY

BUSY_USERS: Final = 10
CROWD: Final = 150
CATEGORIES: Final = ("chat", "default", "default", "marketing", "news")
LANE_OF: Final = {"chat": "urgent", "default": "default", "marketing": "bulk", "news": "bulk"}
MEAL: Final = 8  # notifications for a hungry user


@dataclass
class Accepted:
    """A notification that was, or may have been, accepted. number: its place among all; the simulators see it as n.

    certain: whether the producer knows that it was accepted. at_us: when the call had returned.
    """

    number: int
    job_id: str
    user: str
    category: str
    tokens: tuple[str, ...]
    high: bool = False
    send_at_us: int | None = None
    expires_us: int | None = None
    plain: bool = False
    asked_us: int = 0
    at_us: int = 0
    certain: bool = True
    cancelled: list[tuple[int, str]] = field(default_factory=list)
    requeued: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        marks = [word for word, here in (("high", self.high), ("plain", self.plain)) if here]
        marks += ["send_at"] if self.send_at_us else []
        return " ".join([f"n{self.number}", self.user, self.category, *marks])


class Traffic:
    """A thread that behaves like producers until `stop`. All that it accepted is in `accepted`."""

    def __init__(self, machines: Machines, history: History, seed: int, per_s: float) -> None:
        self._machines, self._history, self._per_s = machines, history, per_s
        self._chance = random.Random(f"traffic {seed}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")
        self.accepted: list[Accepted] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Accept nothing more; what has been begun is finished."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Notifier.of(self._machines.settings) as notifier, self._machines.clients() as own:
                while not self._stop.is_set():
                    self._act(notifier, own[0].client)
                    self._stop.wait(self._chance.expovariate(self._per_s / 4))
        except BaseException as error:  # noqa: BLE001 - told at the end of the run
            self.error = error

    def _act(self, notifier: Notifier, redis: Any) -> None:
        if self._chance.random() < 0.35:
            user = self._chance.choice(list(HUNGRY))
            self._send([self._hungry(user) for _ in range(MEAL)], notifier)
        draw = self._chance.random()
        if draw < 0.06:
            self._cancel(notifier)
        elif draw < 0.10:
            self._requeue(redis)
        elif draw < 0.16:
            self._plain(redis)
        elif draw < 0.22:
            self._send([self._make(f"c{self._chance.randrange(CROWD)}") for _ in range(40)], notifier)
        elif draw < 0.28:
            at_us = wall_us() + self._chance.randint(300_000, 3_000_000)
            user = self._busy_user()
            self._send([self._make(user, send_at_us=at_us, category="default") for _ in range(4)], notifier)
        else:
            user = self._busy_user()
            self._send([self._make(user) for _ in range(self._chance.choice((1, 1, 2, 3, 4, 8)))], notifier)

    def _busy_user(self) -> str:
        return f"u{self._chance.randrange(BUSY_USERS)}"

    def _make(self, user: str, *, send_at_us: int | None = None, category: str | None = None) -> Accepted:
        number = len(self.accepted)
        category = category or self._chance.choice(CATEGORIES)
        place = int(user[1:])
        platforms = ("apns", "fcm") if place % 5 == 4 else ("fcm",) if place % 2 else ("apns",)
        apns = user.encode().hex().rjust(64, "0")
        tokens = tuple(apns if platform == "apns" else f"fcm-registration-{user}" for platform in platforms)
        expires = None
        if send_at_us is None and self._chance.random() < 0.08:
            expires = self._chance.choice((1_000_000, 4_000_000))
        made = Accepted(number, f"n{number}", user, category, tokens, send_at_us=send_at_us, expires_us=expires)
        made.high = category != "news" and send_at_us is None and self._chance.random() < 0.1
        self.accepted.append(made)
        return made

    def _hungry(self, user: str) -> Accepted:
        one = self._make(user, category=HUNGRY[user])
        one.expires_us, one.high = self._chance.choice((1_000_000, 2_000_000, 4_000_000)), False
        return one

    def _send(self, made: list[Accepted], notifier: Notifier) -> None:
        """Accept these in order, however often it must be asked."""
        for one in made:
            notification = self._notification(one)
            one.asked_us = wall_us()
            while True:
                try:
                    notifier.send(notification, job_id=one.job_id)
                except NotifierError as error:
                    if self._stop.is_set() and wall_us() - one.asked_us > 30_000_000:
                        one.certain = False
                        self._history.add(f"n{one.number} was given up: {error}")
                        break
                    time.sleep(0.1)
                    continue
                break
            one.at_us = wall_us()

    @staticmethod
    def _notification(one: Accepted) -> Notification:
        devices = [Device("fcm" if token.startswith("fcm") else "apns", token) for token in one.tokens]
        when = None if one.send_at_us is None else datetime.fromtimestamp(one.send_at_us / 1e6, UTC)
        expires = None if one.expires_us is None else timedelta(microseconds=one.expires_us)
        return Notification(
            user=one.user,
            devices=devices,
            title=one.job_id,
            category=one.category,
            priority="high" if one.high else None,
            send_at=when,
            expires_in=expires,
            collapse_id=f"{one.user}-{one.number % 2}" if one.category == "news" else None,
            data={"n": str(one.number)},
        )

    def _plain(self, redis: Any) -> None:
        """As a program does that has RQ, its prefix for the first partition, and nothing of ours."""
        busy = [f"u{n}" for n in range(BUSY_USERS)]
        users = [user for user in busy if number_of(user, self._machines.partitions) == 0]
        one = self._make(self._chance.choice(users), category=self._chance.choice(("chat", "default")))
        one.plain, one.high, one.expires_us = True, False, None
        kwargs = self._notification(one).to_kwargs()
        meta = {"user": one.user, "category": one.category}
        one.asked_us = wall_us()
        try:
            queue = Queue(LANE_OF[one.category], connection=redis, serializer=JSONSerializer)
            queue.enqueue("notifier.deliver", kwargs=kwargs, meta=meta, job_id=one.job_id)
        except RedisError:  # asking once more would enqueue it twice
            one.certain = False
        one.at_us = wall_us()

    def _cancel(self, notifier: Notifier) -> None:
        recent = [one for one in self.accepted[-60:] if one.certain and not one.cancelled]
        if not recent:
            return
        one = self._chance.choice(recent)
        try:
            answer = notifier.cancel(one.job_id)
        except NotifierError:
            answer = "not known"
        one.cancelled.append((wall_us(), answer))
        self._history.add(f"cancel {one}: {answer}")

    def _requeue(self, redis: Any) -> None:
        lane = self._chance.choice(LANES)
        queue = Queue(lane, connection=redis, serializer=JSONSerializer)
        with contextlib.suppress(RedisError, InvalidJobOperation, NoSuchJobError):
            registry = FailedJobRegistry(queue=queue)
            ids = registry.get_job_ids()
            if not ids:
                return
            job_id = self._chance.choice(ids)
            one = self.accepted[int(job_id[1:])]
            one.requeued.append(wall_us())
            one.certain, before = False, one.certain  # RQ does it in several steps: it may break off in the middle
            registry.requeue(job_id)
            one.certain = before
            self._history.add(f"requeue {one}")
