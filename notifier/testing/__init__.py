"""For tests: `FakeNotifier`, a pytest plugin, and a Redis of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notifier.testing.fake import FakeNotifier, Sent

__all__ = ["FakeNotifier", "Sent"]


def __getattr__(name: str) -> Any:
    # Who wants the embedded Redis alone need not load all that a producer needs.
    if name in __all__:
        from notifier.testing import fake  # noqa: PLC0415

        return getattr(fake, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
