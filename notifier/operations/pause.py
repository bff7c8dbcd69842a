"""Pause and resume all sends, a category, a user, a lane or a route. The action log keeps who did it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from notifier.errors import NotifierError
from notifier.notification.notification import at_service
from notifier.operations.action_log import Log, logged
from notifier.operations.route_view import routes_of
from notifier.queue.circuits import paused_words
from notifier.queue.pauses import pause, pause_name, resume
from notifier.rules.category import DEFAULT_CATEGORY, LANES
from notifier.scripts.loader import run
from notifier.settings import Settings
from notifier.settings.checks import check_user
from notifier.store.partitions import Partitions
from notifier.store.pipelining import on_all
from notifier.units import format_duration

MAX_WHO: Final = 100  # characters: each notification that a pause holds notes who paused it
MAX_REASON: Final = 200


class PauseError(NotifierError):
    """Raised if there is nothing to pause by that name; the text lists the possible names."""


def check_what(what: str, settings: Settings | None, *, rates: bool = True) -> str:
    """Return the name of the pause, as `pause_name`, if its subject exists. Raises PauseError.

    settings: None to resume, as the subject may have left the settings since. rates: whether the settings have rates;
    without rates, any category is accepted.
    """
    try:
        name = pause_name(what)
        if what.startswith("user:"):
            check_user(what.partition(":")[2])
    except ValueError as error:
        raise PauseError(str(error)) from None
    if settings is None:
        return name
    known: dict[str, Collection[str]] = {
        "category": dict.fromkeys([*settings.categories, DEFAULT_CATEGORY]),
        "lane": LANES,
        "route": [by if _is_route(by, settings) else f"{by}@HOST" for by in routes_of(settings)],
    }
    scope, _, of = what.partition(":")
    there = _is_route(of, settings) if scope == "route" else of in known.get(scope, [of])
    if not there and (rates or scope != "category"):
        raise PauseError(f"there is no {scope} {of!r}; there is {', '.join(known[scope]) or 'none'}")
    return name


def _is_route(name: str, settings: Settings) -> bool:
    """Whether this is a route that sends: if a platform has several services, each has its own route."""
    by, _, host = name.partition("@")
    platform, _, app = by.partition("/")
    if by not in routes_of(settings) or name != at_service(by, host):
        return False
    return settings.providers.platforms()[platform].has_service(app or None, host)


def pause_it(redis: Any, name: str, who: str, reason: str, lasts_us: int, log: Log) -> None:  # noqa: PLR0917 - a pause
    """Pause a name from `check_what`. lasts_us: 0 is until somebody resumes it. who, reason: made one line, and cut.

    If a partition does not answer, pauses in all others, then raises RedisUnusableError.
    """
    who, reason = " ".join(who.split())[:MAX_WHO], " ".join(reason.split())[:MAX_REASON]
    lasting = f"for {format_duration(lasts_us)}" if lasts_us else "until it is resumed"
    with logged(log, "pause", paused_words(name)) as words:
        words.append(lasting + (f": {reason}" if reason else ""))
        on_all(Partitions.around(redis), lambda client: run(client, pause(name, who, reason, lasts_us)))


def resume_it(redis: Any, name: str, who: str, log: Log) -> bool:
    """Resume a name from `check_what`; False if it was not paused. Raises as `pause_it`."""
    with logged(log, "resume", paused_words(name)) as words:
        resumed = any(on_all(Partitions.around(redis), lambda client: run(client, resume(name, who))))
        words.append("resumed" if resumed else "it was not paused")
    return resumed
