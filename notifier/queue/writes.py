"""Single writes that a full Redis accepts too: workers and operators must be able to end what fills it."""

from __future__ import annotations

from typing import Any

from notifier.scripts.loader import Call, script


def write(command: str, key: str, *values: str | bytes | int) -> Call[Any]:
    """A command that writes, which a full Redis accepts too. The reply is the command's."""
    return Call(script("write"), [key], [command, *values], lambda reply: reply)
