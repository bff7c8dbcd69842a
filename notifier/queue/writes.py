"""Writes by themselves that a full Redis takes: what workers and operators do there in the end must not end at them."""

from __future__ import annotations

from typing import Any

from notifier.scripts.loader import Call, script


def write(command: str, key: str, *values: str | bytes | int) -> Call[Any]:
    """A command that writes, and that a full Redis takes too; the reply is the command's."""
    return Call(script("write"), [key], [command, *values], lambda reply: reply)
