"""The page Audit: run one, and what it found."""

from __future__ import annotations

from typing import Any

from notifier.server.html import counted, facts, moment, table, tag
from notifier.server.pages.layout import View, act, document, wrong


def audit_page(told: dict[str, Any], view: View) -> str:
    """The page."""
    run, now = told["run"], told["at"]
    running = run is not None and run["ended_at"] is None
    body: list[Any] = [
        tag("h1", "Audit"),
        tag("p", "It checks Redis for inconsistent or orphaned entries, while the workers work."),
        _run(run, now) if run is not None else tag("p", "None has run since this server started.", class_="none"),
    ]
    if view.may_act and not running:
        body.append(act("/audit/run", "Run an audit"))
        if run is not None and run["left"]:
            body.append(act("/audit/run", "Run it, and repair what it finds", mild=True, repair="1"))
    return document(view, "Audit", body, renew=running)


def _run(run: dict[str, Any], now: Any) -> list[Any]:
    if run["ended_at"] is None:
        verdict = f"running: about {run['done']:,} of {run['of']:,} keys"
    elif run["problem"]:
        verdict = "broke off"
    elif not run["found"]:
        verdict = "all right"
    elif run["repair"]:
        verdict = f"{run['found'] - run['left']:,} repaired, {run['left']:,} left"
    else:
        verdict = f"{run['found']:,} found"
    rows = [(each["what"], each["saw"], each["right"], each["done"] or "nothing") for each in run["findings"]]
    return [
        wrong(run["problem"]) if run["problem"] else None,
        facts(
            [
                ("Verdict", tag("strong", verdict)),
                ("Began", moment(run["began_at"], now)),
                ("Ended", moment(run["ended_at"], now)),
                ("Looked at", f"{counted(run['jobs'], 'job')}, {counted(run['users'], 'user')} with something waiting"),
            ]
        ),
        table(("what", "stands", "right would be", "done"), rows) if rows else None,
        tag("p", f"The first {len(rows)} of {run['found']:,} are shown.", class_="hint")
        if run["found"] > len(rows)
        else None,
    ]
