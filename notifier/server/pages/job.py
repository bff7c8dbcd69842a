"""The page Job: what became of a notification, or why it waits."""

from __future__ import annotations

from typing import Any, Final

from notifier.server.html import facts, moment, tag
from notifier.server.pages.history import record_facts
from notifier.server.pages.layout import View, act, document, link
from notifier.server.pages.user import why

CANCELLABLE: Final = frozenset({"queued", "waiting"})
NOW: Final = {"queued": "no worker has looked at it yet", "sending": "a worker is sending it"}


def job_page(told: dict[str, Any], view: View) -> str:
    now, job_id, state = told["at"], told["job_id"], told["state"]
    waits = state == "waiting"
    user = told.get("user")
    body = [
        tag("h1", "Job ", tag("span", job_id, class_="id")),
        facts(
            [
                ("State", tag("strong", state)),
                ("Why it waits", why(told, now) if waits else NOW.get(state)),
                ("Expected", moment(told["expected_at"], now)),
                ("Why", told["reason"]),
                ("Delivered", moment(told["settled_at"], now)),
                ("Superseded by", _job(told["superseded_by"])),
                ("User", None if user is None else link("/user", user, id=user)),
                ("Category", told.get("category")),
                ("Accepted", moment(told.get("accepted_at"), now)),
                *record_facts(told["record"], now),
                ("Attempts", told["attempts"] or None),
            ]
        ),
    ]
    if state in CANCELLABLE and view.may_act:
        body.append(act("/job/cancel", "Cancel it", id=job_id))
    return document(view, f"Job {job_id}", body, renew=state in {*CANCELLABLE, "sending"})


def _job(job_id: str | None) -> Any:
    return None if job_id is None else link("/job", job_id, id=job_id)
