"""The objects that a provider is built with, in addition to its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from notifier.notification import Device
from notifier.providers.apns.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Late:
    """A token that its platform reported dead only after it had taken a message. reason: the platform's own word.

    user, job_id: of that message.
    """

    device: Device
    reason: str
    user: str
    job_id: str


Report: TypeAlias = Callable[[Late, str | None], None]  # the second argument is the app


def keep_silent(late: Late, app: str | None) -> None:
    del late, app


@dataclass(frozen=True, slots=True)
class Build:
    """The objects that all providers of one worker get.

    environ: environment variables, which may hold secrets. shared: objects that several apps of a platform use, such as
    a connection; a key is the platform's name and all settings that the apps have in common. tokens: the store in which
    all workers share a provider token; None if each has its own. report: called with a token that a platform reports
    dead after its answer, and the app.
    """

    environ: Mapping[str, str]
    shared: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    tokens: TokenStore | None = None
    report: Report = keep_silent
