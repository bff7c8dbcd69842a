"""An audit that repairs while other things go on."""

from __future__ import annotations

import threading
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from notifier.errors import NotifierError
from notifier.operations.audit.audit import Audit


def repair_beside(redis: Any, lease_us: int) -> threading.Thread:
    """Begin an audit that repairs, in a thread that is returned. lease_us: how long a worker holds what it takes."""

    def repair() -> None:
        with suppress(NotifierError):  # Redis is away: the next that meets something unreadable asks again
            for _ in Audit(redis, lease_us=lease_us, repair=True).findings():
                pass

    thread = threading.Thread(target=copy_context().run, args=(repair,), daemon=True)
    thread.start()
    return thread
