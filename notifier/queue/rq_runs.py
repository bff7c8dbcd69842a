"""The call about a throttled function while RQ runs it: its permit stands ahead, and is closed when it has ended."""

from __future__ import annotations

from typing import Final

from notifier.scripts.loader import Call, script
from notifier.scripts.records import RunFields

ROUTE: Final = "rq"  # in the history and the numbers, where a notification has its provider


def rq_run(args: RunFields) -> Call[bool]:
    """Date its permit ahead, which the limits take for a send to come; or close it, and count what became of it."""
    return Call(script("rq_run"), [], args, bool)


def encode_run(outcome: str, took_us: int) -> str:
    """Describe a run that has ended, as `RunFields.handed` has it."""
    answer = "" if outcome == "delivered" else f",{outcome}"
    return f"{took_us} {ROUTE},,{took_us / 1000:.0f}{answer}"
