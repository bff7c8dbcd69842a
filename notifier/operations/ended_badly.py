"""List the newest notifications that were rejected, failed or expired, and the dead tokens. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from notifier.notification.job import decode_reason, decode_targets
from notifier.notification.json_values import fields_of
from notifier.notification.notification import route, route_of_all
from notifier.operations.in_force import Known
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.scripts.keys import job_key, redis_key, rq_key
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all
from notifier.texts import mask
from notifier.units import UNITS, moment

MAX_READ: Final = 500  # of each lane, of jobs kept longer there, and of dead tokens
PAGE: Final = 50
UNKNOWN: Final = "no reason is kept"


@dataclass(frozen=True, slots=True)
class Bad:
    """A notification that ended badly, or a dead token. outcome: 'rejected', 'failed', 'expired' or 'dead token'.

    token: the dead token, masked.
    """

    job_id: str
    user: str
    category: str
    route: str
    outcome: str
    reason: str
    at: datetime | None
    token: str = ""


def view_bad(redis: Any, known: Known, part: str = "", outcome: str = "", page: int = 0) -> dict[str, Any]:
    """List bad ends and dead tokens as plain data, the newest first. part: of a job id or a user. page: from 0.

    known: has the app of each category, and how long failed jobs are kept.
    counts: of all entries read, by outcome, reason, route and category, the largest first. other_counts: the number of
    entries in no listed count. found: one page. is_all: whether all were read. more: whether there is another page.
    Raises RedisUnusableError if no partition answers.
    """
    answers = ask_all(Partitions.around(redis), partial(_find, known))
    met = [
        each
        for found, _ in answers.all
        for each in found
        if (part in each.job_id or part in each.user) and outcome in {"", each.outcome}
    ]
    met.sort(key=lambda each: 0.0 if each.at is None else each.at.timestamp(), reverse=True)
    counts = Counter((each.outcome, each.reason, each.route, each.category) for each in met)
    names = ("outcome", "reason", "route", "category")
    most = counts.most_common(PAGE)
    return {
        "counts": [dict(zip(names, of, strict=True)) | {"count": n} for of, n in most],
        "other_counts": len(met) - sum(n for _, n in most),
        "found": [asdict(each) for each in met[page * PAGE : (page + 1) * PAGE]],
        "is_all": not answers.away and all(is_all for _, is_all in answers.all),
        "more": len(met) > (page + 1) * PAGE,
    }


def _find(known: Known) -> Exchange[tuple[list[Bad], bool]]:
    failed, all_failed = yield from _failed(known)
    dead, all_dead = yield from _dead()
    return [*failed, *dead], all_failed and all_dead


def _failed(known: Known) -> Exchange[tuple[list[Bad], bool]]:
    ((now_s, _),) = yield Commands(lambda pipe: pipe.time())
    # A registry's score is when an entry ends. So entries that are kept longer, as RQ's for a year, are read apart.
    usual = now_s + -(-known.settings.keep_failed_us // UNITS["s"])
    spans = (usual, f"({now_s}"), ("+inf", f"({usual}")
    keys = [rq_key("failed", lane) for lane in LANES]
    newest = {"desc": True, "byscore": True, "offset": 0, "num": MAX_READ + 1}
    parts = yield Commands(lambda pipe: [pipe.zrange(key, *span, **newest) for key in keys for span in spans])
    ids = [each for part in parts for each in part[:MAX_READ]]

    def ask(pipe: Any) -> None:
        for job_id in ids:
            pipe.hmget(job_key(job_id), "meta", "push_outcome", "push_targets")
            pipe.xrevrange(rq_key("results", "").encode() + job_id, count=1)

    replies = yield Commands(ask)
    found = [_bad(known.policies, job_id, replies[2 * n], *_last(replies[2 * n + 1])) for n, job_id in enumerate(ids)]
    return found, all(len(part) <= MAX_READ for part in parts)


def _bad(policies: Policies, job_id: bytes, job: Sequence[bytes | None], why: str, at: datetime | None) -> Bad:
    meta, outcome, targets = job
    fields = fields_of(meta)
    category = str(fields.get("category", ""))
    own, devices = decode_targets((targets or b"").decode(errors="replace"))
    app = own or policies.category(category).app
    return Bad(
        job_id.decode(errors="replace"),
        str(fields.get("user", "")),
        category,
        route_of_all(route(platform, app) for platform, *_ in devices),
        (outcome or b"failed").decode(),
        why or UNKNOWN,
        at,
    )


def _dead() -> Exchange[tuple[list[Bad], bool]]:
    (entries,) = yield Commands(lambda pipe: pipe.xrevrange(redis_key("feedback"), count=MAX_READ + 1))
    found = []
    for entry_id, raw in entries[:MAX_READ]:
        entry = {name.decode(): value.decode(errors="replace") for name, value in raw.items()}
        route = entry.get("platform", "") + (f"/{entry['app']}" if entry.get("app") else "")
        ended = "dead token", entry.get("reason") or UNKNOWN, _at(entry_id), mask(entry.get("token", ""))
        found.append(Bad(entry.get("job_id", ""), entry.get("user", ""), "", route, *ended))
    return found, len(entries) <= MAX_READ


def _last(results: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> tuple[str, datetime | None]:
    """Return the last line of the newest result, as the reason, and the time of that result."""
    why, at = "", None
    for entry_id, fields in results:
        with suppress(ValueError, OverflowError, OSError):  # anybody may write there
            at = _at(entry_id)
            why = decode_reason(fields.get(b"exc_string", b"")).strip().rpartition("\n")[2][:200]
    return why, at


def _at(entry_id: bytes) -> datetime:
    return moment(int(entry_id.partition(b"-")[0]) * 1000)
