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

MARGIN_S: Final = 0.5  # between the latest possible answer and the end of the lease


@dataclass(frozen=True, slots=True)
class Tuning:
    """One worker's limits: counts of jobs, and times in microseconds."""

    batch: int
    in_flight: int
    lease_us: int
    timeout_us: int
    grace_us: int
    keep: Retention = KEEP_NOTHING
    partitions: int = 1  # of the fleet

    @property
    def send_within_s(self) -> float:
        """How long after the pull a notification may be handed over, so that the answer comes before the lease ends."""
        return (self.lease_us - self.timeout_us) / 1e6 - MARGIN_S


@dataclass(frozen=True, slots=True)
class RqJob:
    """A job of another function that this worker leased. If it is limited, it has a user and a category."""

    job_id: str
    permit: str
    user: str = ""
    category: str = ""

    def settlement(self, state: State, word: str = "", detail: str = "") -> Settlement:
        """Return the settlement that moves the job to `state`. A job that RQ runs keeps its permit, see `rq_run`."""
        reached = state == "handed_to_rq"
        return Settlement(self.job_id, self.permit, self.user, self.category, reached, state, word, detail)

    def given_back(self) -> Settlement:
        """Return the settlement that puts a job that never ran back into its backlog, or at the head of its queue."""
        return self.settlement("backlog" if self.user else "queue")


class RqJobs(Protocol):
    """Runs the jobs of other functions as RQ does. version: that of the rates in force."""

    version: str

    def read(self, job: Plain, knows: Callable[[str], bool]) -> str:
        """Return the meta that limits a job, or '' if nothing does. knows: whether a category is configured."""
        ...

    def inspect(self, rq_job: RqJob) -> Settlement:
        """Decide on a leased job: 'handed_to_rq' if it is to run, 'backlog' if it lacked its meta, or another state."""
        ...

    def run(self, job_id: str, behind: Call[Any], patience_s: float) -> bool:
        """Run a job as RQ does, and block until it ends. After `patience_s`, call `behind`; return whether it did."""
        ...

    def drop(self, job_id: str) -> None:
        """Forget an inspected job that another worker has taken over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a worker's engine. name: the worker's; lanes: the most urgent first."""

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
