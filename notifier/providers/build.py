"""What a provider is built with beside its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from notifier.providers.apns.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Build:
    """The surroundings of the providers of one worker.

    environ: the variables that may hold secrets. shared: what serves several apps of a platform, such as one
    connection, under all that these have in common; a platform begins its keys with its name. tokens: where all workers
    share the token that they send with; None is each by itself.
    """

    environ: Mapping[str, str]
    shared: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    tokens: TokenStore | None = None
