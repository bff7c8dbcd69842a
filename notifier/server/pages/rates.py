"""The page Rates: the rates in force, the workers that follow them, and a form to preview and apply new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from notifier.operations.preview.report import Report
from notifier.server.html import Html, facts, hint, moment, table, tag, verbatim
from notifier.server.pages.layout import View, act, document, wrong
from notifier.units import counted

MINUTES = (1, 5, 15, 60)
MAX_LINES = 100


def rates_page(told: dict[str, Any], view: View, *, given: str | None = None, problem: str = "") -> str:
    """The page. given: pasted rates. problem: their mistakes."""
    shown = told["rates"] if given is None else given
    body = [
        tag("h1", "Rates"),
        wrong(problem) if problem else None,
        facts(_facts(told)),
        tag("h2", "Who follows them"),
        table(
            ("worker", "host", "rates", "from", "refused"),
            [(w["name"], w["host"], _version(w, told), w["source"], _bad(w["problem"])) for w in told["workers"]],
            "No worker is running.",
        ),
        act("/rates/withdraw", "Take back what was applied", mild=True)
        if view.may_act and told["source"] == "applied"
        else None,
        tag("h2", "Traffic to try rates on"),
        _traffic(told["traffic"], view, told["at"]),
        tag("h2", "New rates"),
        _form(shown, told, view),
    ]
    return document(view, "Rates", body)


def preview_page(told: dict[str, Any], view: View) -> str:
    lines, report, lost = told["changes"], told["report"], " and ".join(told["lost"])
    untried = "No traffic is recorded, so nobody knows how long notifications would wait."
    body = [
        tag("h1", "Preview"),
        tag("p", f"The new rates are {told['version']}; those in force are {told['before']}."),
        tag("h2", "What changes"),
        tag("ul", [_change(line) for line in lines[:MAX_LINES]], class_="changes")
        if lines
        else tag("p", "Nothing.", class_="none"),
        hint(f"and {len(lines) - MAX_LINES:,} more") if len(lines) > MAX_LINES else None,
        hint(untried) if report is None else _report(report, told["plot"]),
        tag("h2", "Apply them"),
        wrong(f"The new rates have no {lost}, but such rates are in force. To apply them removes these.")
        if lost
        else None,
        act(
            "/rates/apply",
            "Remove these, and apply to all workers" if lost else "Apply to all workers",
            tag("label", "Why ", tag("input", type="text", name="message", autocomplete="off")),
            tag("input", type="hidden", name="rates", value=told["rates"]),  # too long for a path
            before=told["before"],
            replace="1" if lost else "",
        )
        if view.may_act and lines
        else None,
        tag("p", tag("a", "Back to the rates in force", href="/rates")),
    ]
    return document(view, "Preview", body)


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "In force", tag("code", told["version"])
    yield "From", "applied through Redis" if told["source"] == "applied" else told["source"]
    yield "Since", moment(told["applied_at"], told["at"])
    counts = told["counts"]
    users = f"{counted(counts['users'], 'user')} with rules of their own"
    yield (
        "Holds",
        f"{counted(counts['categories'], 'category', 'categories')}, {counted(counts['tiers'], 'tier')}, {users}",
    )


def _version(worker: dict[str, Any], told: dict[str, Any]) -> Html:
    same = worker["version"] == told["version"]
    return tag("code", worker["version"], class_=None if same else "bad")


def _bad(problem: str) -> Any:
    return tag("span", problem, class_="bad") if problem else None


def _traffic(traffic: dict[str, Any], view: View, now: Any) -> list[Any]:
    of_users = f"{counted(traffic['events'], 'notification')} of {counted(traffic['users'], 'user')}"
    said: list[Any] = []
    if traffic["problem"]:
        said.append(wrong(traffic["problem"]))
    if traffic["is_running"]:
        said.append(tag("p", f"Recording, {of_users} so far; it ends ", moment(traffic["until"], now), "."))
        said += [act("/rates/record", "End it now", mild=True, minutes="0")] if view.may_act else []
        return said
    said.append(tag("p", f"Recorded: {of_users}." if traffic["began_at"] else "None is recorded."))
    if view.may_act:
        options = [tag("option", f"{n} min", value=n) for n in MINUTES]
        said.append(
            tag(
                "form",
                tag("label", "Record what is accepted for ", for_="minutes"),
                tag("select", options, name="minutes", id="minutes"),
                tag("button", "Record", type="submit", class_="mild"),
                method="post",
                action="/rates/record",
                class_="line",
            )
        )
    return said


def _form(shown: str | None, told: dict[str, Any], view: View) -> Any:
    says = (
        "All rates: user, tiers, users, categories, zone. Other sections of a configuration count for nothing here."
        if shown is not None
        else f"There are {told['counts']['users']:,} users with rates of their own, too many to show: paste all rates."
    )
    if not view.may_act:
        return tag("pre", shown) if shown else hint(says)
    return tag(
        "form",
        tag("p", tag("label", "YAML", for_="rates"), " ", tag("span", says, class_="hint")),
        # A browser drops the first line break of a textarea.
        tag("textarea", verbatim("\n" + (shown or "")), name="rates", id="rates", spellcheck="false", required=True),
        tag("p", tag("button", "Preview", type="submit")),
        method="post",
        action="/rates/preview",
    )


def _report(report: Report, plot: Html) -> list[Any]:
    return [
        tag("h2", "On the recorded traffic, old → new"),
        tag("p", f"{report.traffic()}. {report.moved()}."),
        table(*report.by_category()),
        tag("div", plot, class_="plot"),
        tag("h2", "Whose mean wait grows most"),
        table(*report.by_user(), "Nobody's."),
    ]


def _change(line: str) -> Html:
    return tag("li", line, class_={"-": "minus", "+": "plus"}.get(line[:1]))
