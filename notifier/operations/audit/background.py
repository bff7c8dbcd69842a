"""An audit that runs while other things go on: one at a time, and what it has found so far."""

from __future__ import annotations

import threading
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from notifier.errors import NotifierError
from notifier.operations.audit.audit import Audit
from notifier.operations.audit.calls import Finding
from notifier.scripts.keys import under
from notifier.store.partitions import Partitions
from notifier.units import ranges

MAX_KEPT: Final = 200


class AuditError(NotifierError):
    """An audit cannot be started; the text says why."""


@dataclass(slots=True)
class AuditRun:
    """One run. done, of: about how many keys were looked at. found: how many findings in all.

    findings: the first of them.
    """

    repair: bool
    began_at: datetime
    ended_at: datetime | None = None
    done: int = 0
    of: int = 0
    jobs: int = 0
    users: int = 0
    found: int = 0
    left: int = 0
    findings: list[Finding] = field(default_factory=list)
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        told = {name: getattr(self, name) for name in AuditRun.__slots__ if name != "findings"}
        kept = list(self.findings)
        return told | {"findings": [asdict(each) | {"left": each.left} for each in kept]}


class BackgroundAudit:
    """Runs audits, one at a time. run: the last one; None where none was started. For any thread."""

    def __init__(self, redis: Any) -> None:
        self._partitions = Partitions.around(redis)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.run: AuditRun | None = None

    def start(self, lease_us: int, *, repair: bool) -> AuditRun:
        """Begin one. lease_us: how long a worker holds what it takes. Raises AuditError where one runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise AuditError("an audit is running; wait until it ends")
            run = self.run = AuditRun(repair, datetime.now(UTC))
            self._thread = threading.Thread(target=copy_context().run, args=(self._audit, run, lease_us), daemon=True)
            self._thread.start()
        return run

    def _audit(self, run: AuditRun, lease_us: int) -> None:
        count, away = len(self._partitions), []
        for n, at in enumerate(self._partitions):
            try:
                with under(at.prefixes):
                    self._look(at.client, run, lease_us, count - n)
            except NotifierError as error:
                run.problem = str(error)
                away.append(at.number)
        if away and count > 1:
            run.problem += f"; asked for partitions {ranges(away)} of {count}"
        run.ended_at = datetime.now(UTC)

    def _look(self, redis: Any, run: AuditRun, lease_us: int, left: int) -> None:
        """left: how many partitions there are with this one."""
        done, jobs, users = run.done, run.jobs, run.users

        def move(of_this: int, of: int) -> None:
            run.done, run.of = done + of_this, done + of * left  # the others have about as much

        work = Audit(redis, lease_us=lease_us, repair=run.repair, on_progress=move)
        for finding in work.findings():
            run.found += 1
            run.left += finding.left
            if len(run.findings) < MAX_KEPT:
                run.findings.append(finding)
            run.jobs, run.users = jobs + work.jobs, users + work.users
        run.jobs, run.users = jobs + work.jobs, users + work.users
