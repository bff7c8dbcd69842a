"""The things a provider is built with beside its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from notifier.notification import Device
from notifier.providers.apns.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Late:
    """A token that its platform called dead after it had taken a message. reason: the platform's own word.

    user, job_id: of the message that found it out.
    """

    device: Device
    reason: str
    user: str
    job_id: str


Report: TypeAlias = Callable[[Late, str | None], None]  # and of which app


def keep_silent(late: Late, app: str | None) -> None:
    del late, app


@dataclass(frozen=True, slots=True)
class Build:
    """The surroundings of the providers of one worker.

    environ: the variables that may hold secrets. shared: what serves several apps of a platform, such as one
    connection, under all that these have in common; a platform begins its keys with its name. tokens: where all workers
    share the token that they send with; None is each by itself. report: is told of what a platform finds out after its
    answer, and of which app.
    """

    environ: Mapping[str, str]
    shared: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    tokens: TokenStore | None = None
    report: Report = keep_silent

    def for_app(self, app: str | None) -> Callable[[Late], None]:
        return lambda late: self.report(late, app)
