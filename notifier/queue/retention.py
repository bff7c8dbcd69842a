"""Retention: how long ended notifications, their events and their records are kept. See `ends.lua`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from notifier.settings import Settings


class Retention(NamedTuple):
    """How long is kept, in µs: undelivered and delivered jobs, dead tokens, and the event and the record of each
    end; 0 writes no event or record. max_records: of a user.
    """

    failed_us: int = 0
    delivered_us: int = 0
    feedback_us: int = 0
    events_us: int = 0
    history_us: int = 0
    max_records: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        kept = settings.keep_failed_us, settings.keep_delivered_us, settings.keep_feedback_us
        return cls(*kept, settings.events.keep_us, settings.history.keep_us, settings.history.max)

    @cache  # noqa: B019 - one for each configuration
    def encode(self) -> str:
        """The text for the scripts, without feedback_us."""
        failed_s, events_ms = -(-self.failed_us // 1_000_000), -(-self.events_us // 1000)
        return f"{failed_s} {self.delivered_us} {events_ms} {-(-self.history_us // 1000)} {self.max_records}"


KEEP_NOTHING: Final = Retention()
