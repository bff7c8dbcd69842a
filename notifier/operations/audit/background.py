"""An audit that runs while other things go on: one at a time, over all shards, and what it has found so far."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from redis import Redis

from notifier.errors import NotifierError
from notifier.operations.audit.audit import Audit
from notifier.operations.audit.calls import Finding
from notifier.settings import Settings
from notifier.shards.map import on_shard

MAX_KEPT: Final = 200


class AuditError(NotifierError):
    """An audit cannot be started; the text says why."""


@dataclass(slots=True)
class AuditRun:
    """One run. done, of: about how many keys of the shard were looked at. found: how many findings in all.

    findings: the first of them, with the shard.
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
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        told = {name: getattr(self, name) for name in AuditRun.__slots__ if name != "findings"}
        kept = list(self.findings)
        return told | {"findings": [asdict(each) | {"shard": shard, "left": each.left} for shard, each in kept]}


class BackgroundAudit:
    """Runs audits, one at a time. run: the last one; None where none was started. For any thread."""

    def __init__(self, clients: Mapping[str, Redis]) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.run: AuditRun | None = None

    def start(self, settings: Settings, *, repair: bool) -> AuditRun:
        """Begin one. Raises AuditError where one runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise AuditError("an audit is running; wait until it ends")
            run = self.run = AuditRun(repair, datetime.now(UTC))
            self._thread = threading.Thread(target=self._audit, args=(run, settings), daemon=True)
            self._thread.start()
        return run

    def _audit(self, run: AuditRun, settings: Settings) -> None:
        try:
            for shard, redis in self._clients.items():
                with on_shard(shard):
                    self._audit_one(run, shard, redis, settings)
        except NotifierError as error:
            run.problem = str(error)
        run.ended_at = datetime.now(UTC)

    def _audit_one(self, run: AuditRun, shard: str, redis: Redis, settings: Settings) -> None:
        def move(done: int, of: int) -> None:
            run.done, run.of = done, of

        before = run.jobs, run.users
        work = Audit(
            redis,
            keep_failed_us=settings.keep_failed_us,
            lease_us=settings.worker.lease_us,
            repair=run.repair,
            on_progress=move,
        )
        for finding in work.findings():
            run.found += 1
            run.left += finding.left
            if len(run.findings) < MAX_KEPT:
                run.findings.append((shard, finding))
            run.jobs, run.users = before[0] + work.jobs, before[1] + work.users
        run.jobs, run.users = before[0] + work.jobs, before[1] + work.users
