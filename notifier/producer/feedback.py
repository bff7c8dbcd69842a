"""The feedback: dead tokens, for the program that keeps users' devices. *settle* writes it; this module reads it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from notifier.producer.stream import Entry
from notifier.texts import mask

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Gone:
    """A dead token: do not send to it any more.

    gone_at: since when, if the provider says it (APNs does), or else the time of the answer. If a device was registered
    after that, it works again: compare before you remove it. app, user, job_id: those of the notification that got the
    answer.
    reason: the provider's own word.
    """

    token: str
    platform: str
    app: str | None
    user: str
    reason: str
    gone_at: datetime
    job_id: str

    def __repr__(self) -> str:
        return (
            f"Gone({self.platform!r}, {mask(self.token)!r}, app={self.app!r}, user={self.user!r}, "
            f"reason={self.reason!r}, gone_at={self.gone_at.isoformat()!r})"
        )


def read_gone(entry: Entry) -> Gone:
    """Read an entry of the stream `feedback`."""
    text = {name.decode(): value.decode() for name, value in entry[1].items()}
    return Gone(
        token=text["token"],
        platform=text["platform"],
        app=text["app"] or None,
        user=text["user"],
        reason=text["reason"],
        gone_at=EPOCH + timedelta(microseconds=int(text["gone_at"])),
        job_id=text["job_id"],
    )
