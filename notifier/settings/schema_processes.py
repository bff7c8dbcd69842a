"""The sections of `notifier.yaml` that say how processes run: worker, events, history, log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from notifier.settings import checks
from notifier.settings.checks import Duration, File, FunctionName, Lease, Positive, WebhookUrl, wrong_at
from notifier.settings.schema_types import Section
from notifier.units import UNITS, format_duration

SECOND: Final = UNITS["s"]
MINUTE: Final = UNITS["m"]
DAY: Final = UNITS["d"]
MAX_HISTORY: Final = 10_000  # records of one user


class BackoffSettings(Section):
    """How long to wait between the attempts of one notification: from `first`, doubling, to `most`."""

    first_us: Positive = Field(default=2 * SECOND, alias="first")
    max_us: Positive = Field(default=10 * MINUTE, alias="most")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_us > self.max_us:
            first, most = format_duration(self.first_us), format_duration(self.max_us)
            raise wrong_at("most", f"{most} is less than first, {first}; give at least {first}")
        return self


class WorkerSettings(Section):
    """How one worker process works."""

    batch: int = Field(default=50, ge=1, le=1_000)
    in_flight: int = Field(default=500, ge=1, le=10_000)
    lease_us: Lease = Field(default=10 * SECOND, alias="lease")
    grace_us: Positive = Field(default=8 * SECOND, alias="grace")
    functions: Annotated[tuple[FunctionName, ...], Field(strict=False)] = ()
    backoff: BackoffSettings = BackoffSettings()


class WebhookSettings(Section):
    """Where `notifier serve` posts the events to."""

    url: WebhookUrl = Field(description="The URL to post to.")
    secret_file: File | None = Field(
        default=None, description="A file with the secret that signs the posts, unless NOTIFIER_WEBHOOK_SECRET is set."
    )
    timeout_us: Positive = Field(default=10 * SECOND, alias="timeout", description="How long one request may take.")

    def read_secret(self, environ: Mapping[str, str]) -> str:
        """Return the signing secret: NOTIFIER_WEBHOOK_SECRET, else the file's. Raise SettingsError if there is none."""
        key = "events.webhook.secret_file"
        text = checks.from_environment_or_file(environ, "NOTIFIER_WEBHOOK_SECRET", self.secret_file, key)
        return checks.one_line(*text)


class EventsSettings(Section):
    """How each notification ended, as a stream to read."""

    keep_us: Duration = Field(default=0, alias="keep")
    webhook: WebhookSettings | None = None

    @model_validator(mode="after")
    def _webhook_has_events(self) -> Self:
        if self.webhook is not None and not self.keep_us:
            raise wrong_at("keep", "is 0s, so there are no events for the webhook; give 1d, say")
        return self


class HistorySettings(Section):
    """History of each user: what held each notification back and what became of it."""

    keep_us: Duration = Field(default=3 * DAY, alias="keep")
    max: int = Field(default=100, ge=1, le=MAX_HISTORY)


class LogSettings(Section):
    """How and how much is logged."""

    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"
