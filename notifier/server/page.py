"""The page Now, made on the server: no script, and every value escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

STYLE = """:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #8884;
  font-variant-numeric: tabular-nums; }
.bad { color: #c22; font-weight: 600; }
@media (prefers-color-scheme: dark) { .bad { color: #f77; } }
"""


def now_page(told: dict[str, Any]) -> str:
    """The page, of what `Stats.as_json` tells."""
    body = ["<h1>push-throttle: now</h1>"]
    for shard, now in told["now"].items():
        of = "" if shard == "redis" else f" on {shard}"
        lanes = [
            (name, e["queued"], e["waiting"], e["due_users"], _s(e["oldest_due_s"])) for name, e in now["lanes"].items()
        ]
        body += _table(f"Lanes{of}", ("lane", "queued", "waiting", "users due", "oldest due"), lanes)
        held = [
            (h["route"], h["state"], h["reason"] or h["kind"] or "", h["waiting"], h["next_at"]) for h in now["routes"]
        ]
        body += _table(f"Closed routes{of}", ("route", "state", "why", "waiting", "next try"), held, "all are open")
        workers = [
            (w["name"], w["host"], "yes" if w["healthy"] else "NO", _s(w["age_us"] / 1e6), w["version"])
            for w in now["workers"]
        ]
        columns = ("worker", "host", "healthy", "looked for work", "rates")
        body += _table(f"Workers{of}", columns, workers, "none is known: nothing is sent")
    minutes = [
        (_clock(m["at"]), m["accepted"], m["ended"].get("delivered", 0), _others(m), m.get("retried", 0))
        for m in reversed(told["minutes"])
    ]
    body += _table("Minutes (UTC)", ("minute", "accepted", "delivered", "other ends", "retried"), minutes)
    for title, key in (("Late, by category", "lateness"), ("Providers' answers, by route", "provider_latency")):
        times = [(name, each["count"], _s(each["p50"]), _s(each["p99"])) for name, each in told[key].items()]
        body += _table(title, ("", "count", "p50", "p99"), times, "nothing was sent")
    ends = [(o["route"], o["category"], o["outcome"], o["count"]) for o in told["outcomes"]]
    body += _table("Ends, these minutes", ("route", "category", "outcome", "count"), ends, "nothing ended")
    return _document("\n".join(body))


def problem_page(title: str, detail: str) -> str:
    """What is wrong, for a person."""
    return _document(f"<h1>{escape(title)}</h1><p>{escape(detail)}</p>")


def _document(body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>push-throttle</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5">'
        f'<link rel="stylesheet" href="/style.css"></head><body><main>{body}</main></body></html>'
    )


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> list[str]:
    lines = [f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows]
    if not lines:
        return [f"<h2>{escape(title)}</h2><p>{escape(empty)}</p>"]
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return [f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{heads}</tr>', *lines, "</table></div>"]


def _cell(value: object) -> str:
    return f"<td{' class=bad' if value == 'NO' else ''}>{escape(str(value))}</td>"


def _others(minute: dict[str, Any]) -> int:
    return int(sum(minute["ended"].values()) - minute["ended"].get("delivered", 0))


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%H:%M")


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
