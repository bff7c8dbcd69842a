"""For tests: `FakeNotifier`, a pytest plugin, and an embedded Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.testing.fake import FakeNotifier as FakeNotifier, Sent as Sent

__getattr__, __dir__ = lazily(__name__, {"notifier.testing.fake": "FakeNotifier Sent"})
