"""Read and change the preferences of users: `notifier.users`, on which an app builds its screen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

from notifier.errors import InvalidNotificationError, InvalidPreferenceError
from notifier.notification.notification import check_user
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import Hours, text_of
from notifier.rules.policies import Policies
from notifier.rules.policy import Window
from notifier.rules.preferences import FOREVER, MAX_MUTES, Preferences, What, mute_of, names_of
from notifier.units import shown

T = TypeVar("T")
PreferencesT = TypeVar("PreferencesT")  # at once, or to be awaited
EachT = TypeVar("EachT")
Chosen = tuple[str, Preferences]  # a user, and the user's choices
Edit = Callable[[Preferences, datetime], Preferences]  # of the present choices, and the time by Redis's clock
Asked = Callable[[], tuple[str, Edit]]  # returns a user and an edit, checked by the rules in force at the call
Windows = Iterable[str | Window | CalendarWindow]
HoursGiven = str | Sequence[str | Hours] | Mapping[str, str | Sequence[str]]
KEEP: Final[Any] = object()  # a choice that is not given stays as it is


class Edits:
    """Makes edits of preferences, checked by the rules in force, which `policies` returns."""

    def __init__(self, policies: Callable[[], Policies]) -> None:
        self._policies = policies

    def set(self, user: str, given: Mapping[str, Any]) -> Edit:
        """Replace the choices that are given; None removes one. Raises InvalidPreferenceError."""
        given = {name: value for name, value in given.items() if value is not KEEP}
        wanted = self._checked(user, given)
        parts = {"gap_us" if name == "gap" else name for name in given}

        def edit(old: Preferences, _now: datetime) -> Preferences:
            both = wanted, Preferences()
            new, kept = (replace(old, **{name: getattr(each, name) for name in parts}) for each in both)
            self._check_time(user, new, old, kept)
            return new

        return edit

    def apply(self, user: str, given: Mapping[str, Any]) -> Edit:
        """Replace all choices of a user by these. Raises InvalidPreferenceError."""
        wanted = self._checked(user, given)
        self._check_time(user, wanted, Preferences())
        return lambda *_: wanted

    def mute(self, user: str, until: Any, categories: Iterable[str] | None, what: str) -> Edit:
        """Add a mute. Raises InvalidPreferenceError; if the mute is over already, the edit raises it."""
        lasting = until if isinstance(until, timedelta) else None
        mute = _read(mute_of, None if lasting is not None else until, categories, what)
        check_user(user)
        self._check_known(mute.categories, ())
        for name in mute.categories or ():
            if self._policies().category(name).bypass:
                raise InvalidPreferenceError("categories", f"{name!r} has bypass, so nobody can mute it")

        def edit(old: Preferences, now: datetime) -> Preferences:
            ends = mute.until if lasting is None else now + max(timedelta(), min(lasting, FOREVER - now))
            if ends <= now:
                raise InvalidPreferenceError("until", f"{ends.isoformat()} is over; `unmute` ends a mute")
            new = old.muted(replace(mute, until=ends), now)
            if len(new.mutes) > MAX_MUTES:
                raise InvalidPreferenceError("mutes", f"are more than {MAX_MUTES}; unmute some first")
            return new

        return edit

    def unmute(self, user: str, categories: Iterable[str] | None) -> Edit:
        """Take mutes away. Raises InvalidPreferenceError."""
        check_user(user)
        gone = _read(names_of, categories)

        def edit(old: Preferences, _now: datetime) -> Preferences:
            # A category that has left the configuration may still be muted.
            self._check_known(gone, {name for mute in old.mutes for name in mute.categories or ()})
            return old.unmuted(gone)

        return edit

    def _check_known(self, names: Iterable[str] | None, others: Container[str]) -> None:
        for name in names or ():
            if not self._policies().knows(name) and name not in others:
                known = ", ".join(sorted(self._policies().categories))
                raise InvalidPreferenceError("categories", f"{shown(name)} is unknown; known are {known}")

    def _checked(self, user: str, given: Mapping[str, Any]) -> Preferences:
        check_user(user)
        wanted = _read(Preferences.of, given)
        tiers = self._policies().may_choose
        if wanted.tier is not None and wanted.tier not in tiers:
            known = ", ".join(sorted(tiers)) or "none"
            may_not = f"users may not choose {shown(wanted.tier)}"
            raise InvalidPreferenceError("tier", f"{may_not}; users_may.tier allows {known}")
        return wanted

    def _check_time(self, user: str, wanted: Preferences, *others: Preferences) -> None:
        """Raise InvalidPreferenceError if the quiet hours leave no time to send, unless they also do in all others."""
        is_void = partial(self._policies().is_void, user)
        if wanted.quiet_hours is not None and is_void(wanted) and not all(map(is_void, others)):
            why = f"{text_of(wanted.quiet_hours)}, beside what is configured, leave no time to send"
            raise InvalidPreferenceError("quiet_hours", why)


def unchanged(old: Preferences, _now: datetime) -> Preferences:
    return old


def nothing(_old: Preferences, _now: datetime) -> Preferences:
    return Preferences()


class Choices(Generic[PreferencesT, EachT]):
    """The common part of `Users` and `AsyncUsers`."""

    def __init__(
        self, prefer: Callable[[Asked, str], PreferencesT], preferences: Callable[[], EachT], edits: Edits
    ) -> None:
        self._prefer = prefer
        self._preferences = preferences
        self._edits = edits

    def set(
        self,
        user: str,
        *,
        tier: str | None = KEEP,
        windows: Windows | None = KEEP,
        gap: str | timedelta | None = KEEP,
        quiet_hours: HoursGiven | None = KEEP,
        zone: str | None = KEEP,
        who: str = "",
    ) -> PreferencesT:
        """Choose rules. Only those that you give change; None removes one. Returns all choices of the user.

        tier: one of the configuration's. windows: such as ``["5/hour", "20/calendar-day"]``. gap: such as ``"10m"``.
        quiet_hours: such as ``"22:00-08:00"``, or ``{"mon-fri": "22:00-07:00", "sat-sun": "22:00-10:00"}``. zone: whose
        clock decides where a notification names none.
        """
        given = {"tier": tier, "windows": windows, "gap": gap, "quiet_hours": quiet_hours, "zone": zone}
        return self._prefer(lambda: (user, self._edits.set(user, given)), who)

    def mute(
        self,
        user: str,
        *,
        until: datetime | timedelta | None = None,
        categories: Iterable[str] | None = None,
        what: What = "hold",
        who: str = "",
    ) -> PreferencesT:
        """Mute these categories (None: all) until a time, or for a duration (None: without end).

        what: `hold` lets them wait until then, `drop` ends them at once. Categories with `bypass` cannot be muted.
        """
        return self._prefer(lambda: (user, self._edits.mute(user, until, categories, what)), who)

    def unmute(self, user: str, *, categories: Iterable[str] | None = None, who: str = "") -> PreferencesT:
        """Remove the mutes of these categories; None is all."""
        return self._prefer(lambda: (user, self._edits.unmute(user, categories)), who)

    def get(self, user: str) -> PreferencesT:
        """Return a user's preferences."""
        return self._prefer(lambda: (user, unchanged), "")

    def clear(self, user: str, *, who: str = "") -> PreferencesT:
        """Remove all choices of a user: then only the configuration holds."""
        return self._prefer(lambda: (user, nothing), who)


class Users(Choices[Preferences, Iterator[Chosen]]):
    """Preferences of users. A change holds from the next notification on, also for notifications that already wait.

    Every call raises InvalidPreferenceError, before anything is written, for a value that is not well formed, or a tier
    that `users_may` of the configuration does not name. It raises RedisUnusableError if Redis does not answer.

    who: the person who makes the change, for the log of changes, if that is not the user.
    """

    def export(self) -> Iterator[dict[str, Any]]:
        """Return the preferences of all users, as plain data that `apply` takes: ``{"user": "42", "gap": "10m", …}``.

        In no order; a user who changes something at that time may come twice.
        """
        for user, preferences in self._preferences():
            yield {"user": user, **preferences.as_dict()}

    def apply(self, entries: Iterable[Mapping[str, Any]], *, who: str = "") -> int:
        """Set the choices of these users to exactly what their entries say; returns how many. Others stay as they are.

        Raises InvalidPreferenceError with the position, such as ``entries[17].gap``. Then all before this one were
        applied.
        """
        count = 0
        for count, entry in enumerate(entries, 1):
            self._prefer(partial(_entry_of, self._edits, entry, count - 1), who)
        return count


class AsyncUsers(Choices[Coroutine[Any, Any, Preferences], AsyncIterator[Chosen]]):
    """`Users` for asyncio: every method is awaited, and `export` is an async iterator."""

    async def export(self) -> AsyncIterator[dict[str, Any]]:
        async for user, preferences in self._preferences():
            yield {"user": user, **preferences.as_dict()}

    async def apply(self, entries: Iterable[Mapping[str, Any]], *, who: str = "") -> int:
        count = 0
        for count, entry in enumerate(entries, 1):
            await self._prefer(partial(_entry_of, self._edits, entry, count - 1), who)
        return count


def _entry_of(edits: Edits, entry: Mapping[str, Any], place: int) -> tuple[str, Edit]:
    """The user and the edit of an entry of `apply`. Raises InvalidPreferenceError with its place."""
    if not isinstance(entry, Mapping):
        raise InvalidPreferenceError(f"entries[{place}]", f"must be a mapping, is {type(entry).__name__}")
    given = dict(entry)
    user = given.pop("user", None)
    try:
        return user, edits.apply(user, given)
    except InvalidNotificationError as error:
        raise InvalidPreferenceError(f"entries[{place}].{error.field}", error.why) from None


def _read(make: Callable[..., T], *given: Any) -> T:
    try:
        return make(*given)
    except (ValueError, TypeError) as error:
        field, _, why = str(error).partition(": ")
        raise InvalidPreferenceError(field, why) from None
