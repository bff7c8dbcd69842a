"""The parts of a worker's loop, and its interface to RQ's own jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from notifier.queue.calls import Plain, Settlement, State
from notifier.queue.retention import KEEP_NOTHING, Retention
from notifier.scripts.loader import Call
from workers.loop.idle import IdleWorker
from workers.loop.turns import Turns
from workers.sending.circuits import Circuits
from workers.sending.sender import Sender
from workers.sending.tracing import Tracing

MARGIN_S: Final = 0.5  # between the last moment of an answer and the end of the lease


@dataclass(frozen=True, slots=True)
class Tuning:
    """How much at once, in jobs, and how long, in microseconds."""

    batch: int
    in_flight: int
    lease_us: int
    timeout_us: int
    grace_us: int
    keep: Retention = KEEP_NOTHING
    partitions: int = 1  # of the fleet

    @property
    def send_within_s(self) -> float:
        """How long after it was leased something may be handed over, so that its answer comes within the lease."""
        return (self.lease_us - self.timeout_us) / 1e6 - MARGIN_S


@dataclass(frozen=True, slots=True)
class RqJob:
    """A job of another function under this worker's lease. One that is limited has a user, a category and a permit."""

    job_id: str
    permit: str
    user: str = ""
    category: str = ""

    def settlement(self, state: State, word: str = "", detail: str = "") -> Settlement:
        """The settlement that moves it to `state`. What RQ gets keeps its permit, see `rq_run`."""
        reached = state == "handed_to_rq"
        return Settlement(self.job_id, self.permit, self.user, self.category, reached, state, word, detail)

    def given_back(self) -> Settlement:
        """The settlement of one that was not begun: to its backlog, or to the head of its queue."""
        return self.settlement("backlog" if self.user else "queue")


class RqJobs(Protocol):
    """RQ's own path, for the jobs that are not notifications of ours. version: of the rates that are followed."""

    version: str

    def read(self, job: Plain, knows: Callable[[str], bool]) -> str:
        """The meta that a job's data tells; '' where it is no notification. knows: whether a category is configured."""
        ...

    def inspect(self, rq_job: RqJob) -> Settlement:
        """Decide about it: 'held' to have it run, 'backlog' for a notification that lacked its meta, or 'failed'."""
        ...

    def run(self, job_id: str, behind: Call[Any], patience_s: float) -> bool:
        """Run it as RQ does; blocks until it has ended. If it lasts longer than that, call `behind`; return if so."""
        ...

    def drop(self, job_id: str) -> None:
        """Forget an inspected job that another worker has taken over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a worker. name: its own; lanes: those it serves, the most urgent first."""

    name: str
    lanes: Sequence[str]
    redis: Any
    idle: IdleWorker
    sender: Sender
    circuits: Circuits
    turns: Turns
    rq_jobs: RqJobs
    tuning: Tuning
    tracing: Tracing | None = None
