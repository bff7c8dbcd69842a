"""The page Now: problems, how many wait and why, when nothing will wait any more, and the last change."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

from notifier.operations.problems import Problem, find_problems
from notifier.operations.stats import COUNTS, counts_of
from notifier.server.html import Html, at_most, column, facts, hint, moment, rate, span, table, tag
from notifier.server.pages.layout import View, act, document, link

SIGNS: Final = {"stopped": "✖", "slow": "⚠", "working": "✔", "unknown": "?"}


def now_page(told: dict[str, Any], view: View) -> str:
    body: list[Any] = [
        tag("h1", "Now", class_="unseen"),
        _problems(told, view),
        _changed(told),
        _figures(told),
        tag("div", tag("section", _waits(told)), tag("section", _behind(told)), class_="halves"),
        _plots(),
        tag("div", tag("section", _routes(told)), tag("section", _workers(told)), class_="halves"),
        tag("h2", "Who waits most"),
        _throttled(told["throttled"], told["at"]),
        _details(told),
    ]
    return document(view, "Now", body, renew=True, plots=True)


def _problems(told: dict[str, Any], view: View) -> list[Html]:
    found = find_problems(told["now"])
    if not found:
        said = tag("strong", "✔ All is well."), " Everything that may go goes."
        return [tag("p", *said, class_="said", role="status", data_about="well")]
    return [_problem(each, told["at"], view) for each in found]


def _problem(each: Problem, now: datetime, view: View) -> Html:
    is_stopped = each.level == "stopped"
    act_on: Any = None
    if view.may_act and each.what:
        paused = each.page == "paused"
        act_on = act("/resume", "Resume", what=each.what) if paused else link("/pause", "Pause", what=each.what)
    said = [tag("strong", "✖ " if is_stopped else "⚠ "), each.text(now)]
    help_ = link(f"/help/{each.page}", "What to do")
    return tag(
        "div",
        tag("p", said),
        tag("div", help_, act_on, class_="do"),
        class_="said wrong" if is_stopped else "said near",
        role="alert",
        data_about=each.subject,
    )


def _figures(told: dict[str, Any]) -> Html:
    now = told["now"]
    shown = (
        ("in", rate(now["in_s"])),
        ("out", rate(now["out_s"])),
        ("waiting", f"{sum(each['waiting'] for each in now['waits']):,}"),
        ("being sent", f"{now['in_flight']:,}"),
        ("late when sent, p99", at_most(now["late_p99"]) or "\N{EN DASH}"),
        ("updated", tag("span", told["at"].strftime("%H:%M:%S"), id="updated")),
    )
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in shown], class_="figures")


def _waits(told: dict[str, Any]) -> list[Html]:
    """How many wait for each reason: the one that was last decided for their backlog."""
    found = sorted(told["now"]["waits"], key=itemgetter("waiting"), reverse=True)
    rows = [(each["what"], column(each["waiting"], found[0]["waiting"], _level(each))) for each in found]
    return [tag("h2", "Why they wait"), table(("for", "how many"), rows, "Nothing waits.", slim=True)]


def _level(waits: dict[str, Any]) -> str:
    """The class of a bar, which gives its colour. A slow route has the colour of a warning."""
    return "near" if waits["what"].endswith(" slow") else f"why-{waits['kind']}"


def _behind(told: dict[str, Any]) -> list[Html]:
    now = told["now"]
    return [
        tag("h2", "Behind"),
        facts(
            [
                ("Oldest overdue", span(now["oldest_due"]) if now["overdue"] else "none"),
                ("Oldest queued", span(now["oldest_queued"]) if now["queued"] else "none"),
                ("Overdue", f"{now['overdue']:,}"),
                ("Empty", now["empty"]),
            ]
        ),
    ]


def _plots() -> Html:
    """The places in which live.js draws; hidden until it does."""
    drawn = (
        ("throughput", "Notifications a minute", "Notifications accepted and ended by minute, in the last hour"),
        (
            "lateness",
            "How late when sent, by minute",
            "How late notifications were by minute, in the last hour: p50 and p99",
        ),
    )
    figures = [
        tag("figure", tag("figcaption", title), tag("div", id=f"plot-{name}", role="img", aria_label=says))
        for name, title, says in drawn
    ]
    return tag("div", figures, id="plots", class_="plots", hidden=True)


def _routes(told: dict[str, Any]) -> list[Any]:
    shown = []
    for each in told["routes"]:
        state = tag("span", f"{SIGNS[each['state']]} {each['state']}", class_=f"is-{each['state']}")
        took = told["provider_latency"].get(each["route"])
        answers = f", answers p99 {at_most(took['p99'])}" if took and each["state"] != "stopped" else None
        if each["state"] == "unknown":
            answers = f": {each['why']}"
        shown.append(tag("li", link("/routes", each["route"]), " ", state, answers))
    none = tag("p", "The configuration names no platform.", class_="none")
    return [tag("h2", "Routes"), tag("ul", shown, class_="row") if shown else none]


def _workers(told: dict[str, Any]) -> list[Any]:
    workers = told["now"]["workers"]
    healthy = sum(each["healthy"] for each in workers)
    state = "suspended" if told["now"]["suspended"] and not told["now"]["works"] else "working"
    shown = [f"{healthy} of {len(workers)} {state}", _versions("version", workers), _versions("rates", workers)]
    return [tag("h2", "Workers"), tag("ul", [tag("li", each) for each in shown if each], class_="row")]


def _changed(told: dict[str, Any]) -> Html:
    change = told["changed"]
    changed: Any = "nothing yet"
    if change is not None:
        of = "" if change["action"].endswith(" rates") else change["of"]
        what = f"{change['action']} {of}".rstrip() + f" by {change['who'] or 'somebody'} "
        changed = [what, moment(change["at"], told["at"]), f": {change['answer']}" if change["answer"] else ""]
    return hint(link("/log", "Changed last"), ": ", changed)


def _versions(of: str, workers: list[dict[str, Any]]) -> str:
    found = Counter(each[of] for each in workers if each[of])
    some = ", ".join(f"{version} \N{MULTIPLICATION SIGN}{n}" for version, n in found.most_common())
    return f"{of} {some}" if some else ""


def _throttled(told: dict[str, Any], now: datetime) -> list[Any]:
    rows = [
        (
            link("/user", each["user"], id=each["user"]),
            f"{each['waiting']:,}",
            each["why"] or ", ".join(f"{name} {n:,}" for name, n in each["categories"].items()),
            each["until"] if each["next_at"] is None else moment(datetime.fromtimestamp(each["next_at"], tz=UTC), now),
        )
        for each in told["users"]
    ]
    said = hint(told["says"]) if rows else None
    return [said, table(("user", "waiting", "what for", "next"), rows, "No user has a backlog.")]


def _details(told: dict[str, Any]) -> Html:
    now = told["now"]
    body = [
        tag("h2", "Lanes"),
        _lanes(now),
        tag("h2", "Each worker"),
        _each_worker(now, told["at"]),
        tag("h2", "Minutes"),
        _minutes(told),
    ]
    return tag("div", body, id="details")


def _lanes(now: dict[str, Any]) -> Html:
    rows = [
        (name, f"{each['queued']:,}", span(each["oldest_queued_s"]) if each["queued"] else "", f"{each['waiting']:,}")
        for name, each in now["lanes"].items()
    ]
    return table(("lane", "queued", "oldest queued", "scheduled"), rows, slim=True)


def _each_worker(now: dict[str, Any], at: datetime) -> Html:
    rows = [
        (
            each["name"],
            each["host"],
            tag("span", "yes", class_="good") if each["healthy"] else tag("span", "NO", class_="bad"),
            f"{span(each['age_us'] / 1e6)} ago",
            f"{each['in_flight']:,}",
            moment(each["since"], at),
            each["version"],
            each["rates"],
        )
        for each in now["workers"]
    ]
    columns = ("worker", "host", "healthy", "looked for work", "being sent", "since", "version", "rates")
    return table(columns, rows, "No worker is known, so nothing is sent: start notifier worker.")


def _minutes(told: dict[str, Any]) -> Html:
    rows = []
    for each in reversed(told["minutes"]):
        numbers = [f"{n:,}" for n in counts_of(each)]
        at = datetime.fromtimestamp(each["at"], tz=UTC).strftime("%H:%M")
        rows.append((at, *numbers, at_most(each["lateness"]["p99"])))
    return table(("minute", *COUNTS, "late, p99"), rows, slim=True)
