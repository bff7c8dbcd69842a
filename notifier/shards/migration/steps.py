"""The calls by which users move from one shard to another. The contracts stand in the scripts of the same names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from notifier.scripts.loader import Call, script
from notifier.scripts.ownership import _text


def leave(users: Mapping[str, str], lanes: Sequence[str]) -> Call[list[str]]:
    """Close a shard to users, each given with the shard it moves to; the reply: the last jobs that were queued then."""
    flat = [text for pair in users.items() for text in pair]
    return Call(script("leave"), [], [json.dumps(list(lanes)), *flat], lambda reply: [_text(i) for i in reply if i])


@dataclass(frozen=True, slots=True)
class Moving:
    """A job on its way: the fields of its hash, and its own time in µs, if it waits for one."""

    id: str
    fields: Mapping[bytes, bytes]
    at_us: int | None = None


def depart(user: str, category: str, *, max_jobs: int) -> Call[list[Moving]]:
    """Give out the first of a backlog's jobs; none where the backlog has come to its end."""
    return Call(
        script("depart"),
        [],
        [user, category, max_jobs],
        lambda reply: [Moving(_text(job[0]), dict(zip(job[1::2], job[2::2], strict=True))) for job in reply],
    )


def arrive(shard: str, jobs: Sequence[Moving]) -> Call[int]:
    """Take over jobs of another shard; the reply: how many were new."""
    args: list[str | bytes | int] = [shard]
    for job in jobs:
        args += [job.id, "" if job.at_us is None else job.at_us, len(job.fields)]
        args += [part for field in job.fields.items() for part in field]
    return Call(script("arrive"), [], args, int)


def departed(user: str, job_ids: Sequence[str]) -> Call[list[str]]:
    """Remove jobs that have arrived; the reply: those that were cancelled meanwhile."""
    return Call(script("departed"), [], [user, *job_ids], lambda reply: [_text(job_id) for job_id in reply])
