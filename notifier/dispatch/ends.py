"""What each end of a notification leaves behind: an event, and a record of the history. See `ends.lua`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from notifier.settings import Settings


class Ends(NamedTuple):
    """How long the event of each end is kept, and its record, in µs; with 0 there is none. max_records: of a user."""

    events_us: int = 0
    history_us: int = 0
    max_records: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """By these settings."""
        return cls(settings.events.keep_us, settings.history.keep_us, settings.history.max)

    def encode(self, keep_failed_us: int) -> str | int:
        """As the scripts take it, beside how long the failed are kept."""
        failed_s = -(-keep_failed_us // 1_000_000)
        if not (self.events_us or self.history_us):
            return failed_s
        return f"{failed_s} {-(-self.events_us // 1000)} {-(-self.history_us // 1000)} {self.max_records}"


NOTHING: Final = Ends()
