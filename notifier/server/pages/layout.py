"""Build the parts that all pages share: the head, links to the others, and messages on results and errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from notifier.server.html import Html, moment, table, tag

PAGES: Final = (
    ("/", "Now"),
    ("/routes", "Routes"),
    ("/rates", "Rates"),
    ("/problems", "Problems"),
    ("/pause", "Pause"),
    ("/log", "Log"),
    ("/limits", "Limits"),
)
RENEW_S: Final = 5
# The results of forms. A query has only the word, so that no link can put another text into a page.
DONE: Final = {
    "cancelled": (True, "Cancelled. It will not be sent."),
    "sending": (False, "Not cancelled: a worker is sending it now."),
    "ended": (False, "Not cancelled: it has ended already."),
    "unknown": (False, "Not cancelled: no notification of this id is known."),
    "all_cancelled": (True, "Cancelled. What waited for this user will not be sent."),
    "all_but_some": (False, "Cancelled, but a worker has some already."),
    "paused": (True, "Paused. It waits until it is resumed, or until the time is over."),
    "resumed": (True, "Resumed. What waited is let go in order."),
    "not_paused": (False, "It was not paused."),
    "applied": (True, "Applied. All workers follow in about two seconds; what waits follows the new rates too."),
    "withdrawn": (True, "Taken back. Each worker follows its own file again."),
    "none": (False, "No rates were applied, so none were taken back."),
    "recording": (True, "Recording. Preview new rates on it at any time."),
    "stopped": (True, "The recording has ended."),
}


@dataclass(frozen=True, slots=True)
class View:
    """How to show a page. at: its path. may_act: whether the token allows actions. done: a word of DONE.

    is_long: show all rows, not only the first. in_parts: Redis has partitions. answered: when Redis last answered; None
    if never, or if in_parts. refused: the mistakes of the configuration file; the last good one stays in force.
    """

    at: str
    may_act: bool
    done: str = ""
    is_long: bool = False
    in_parts: bool = False
    answered: datetime | None = None
    refused: str = ""


def document(view: View, title: str, *body: Any, renew: bool = False, plots: bool = False) -> str:
    """A whole page. renew: page.js renews it. plots: live.js draws in it."""
    shown = f"{title} · push-throttle"
    head = [
        tag("meta", charset="utf-8"),
        tag("title", shown),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="/icon.svg"),
        tag("link", rel="stylesheet", href="/style.css"),
        tag("script", src="/page.js", defer=True),
        [
            tag("link", rel="stylesheet", href="/uplot/uPlot.css"),
            tag("script", src="/uplot/uPlot.js", defer=True),
            tag("script", src="/live.js", defer=True),
        ]
        if plots
        else None,
    ]
    links = [tag("a", name, href=path, aria_current="page" if path == view.at else None) for path, name in PAGES]
    html = tag(
        "html",
        tag("head", head),
        tag(
            "body",
            tag("a", "To the content", href="#main", class_="skip"),
            tag(
                "header",
                tag("div", tag("strong", "push-throttle"), tag("nav", links, aria_label="Pages"), _find()),
            ),
            tag("main", _done(view.done), _refused(view.refused), body, id="main", tabindex=-1),
            tag("footer", _footer(view)),
            data_renew=RENEW_S if renew else None,
        ),
        lang="en",
    )
    return "<!doctype html>" + html


def problem_page(view: View, title: str, detail: str, help_: str | None = None, *more: Any, renew: bool = False) -> str:
    """Show an error. renew: page.js tries again. help_: the path of a page of the runbook."""
    if help_ is None:
        return document(view, title, tag("h1", title), tag("p", lines(detail)), *more, renew=renew)
    says = detail if detail.startswith(title) else f"{title}: {detail}"
    ago = moment(view.answered, datetime.now(UTC))
    last = [" It answered last ", ago, "."] if ago else None
    whose = " for the users of its partitions" if view.in_parts else ""
    stops = f". Nothing is sent and nothing is accepted{whose} until it does."
    said = tag("p", tag("strong", "✖ ", says), stops, last)
    helps = tag("div", link(help_, "What to do"), class_="do")
    alert = tag("div", said, helps, class_="said wrong", role="alert", data_about=title)
    return document(view, title, alert, *more, renew=renew)


def wrong(detail: str, *before: Html) -> Html:
    """Show the mistakes of an input, one a line. before: the elements above them."""
    each = tag("ul", [tag("li", line) for line in detail.splitlines()])
    return tag("div", *before, each, class_="said wrong", role="alert")


def lines(of: str) -> list[Any]:
    return [part for line in of.splitlines() for part in (line, tag("br"))]


def link(path: str, shown: Any, **query: str) -> Html:
    return tag("a", shown, href=f"{path}?{urlencode(query)}" if query else path)


def job_link(job_id: str, **query: str) -> Html:
    """A link to the page of a job, for a table: the style sheet shortens a long id."""
    return tag("a", job_id, href=f"/job?{urlencode({'id': job_id, **query})}", title=job_id, class_="job")


def act(path: str, label: str, *more: Html, mild: bool = False, says: str | None = None, **fields: str) -> Html:
    """A form with one button. more: its inputs. says: the button's name for screen readers, if the label is too short.

    fields: sent in the query, because a browser changes line breaks and NUL in the inputs of a form.
    """
    button = tag("button", label, type="submit", class_="mild" if mild else None, aria_label=says)
    action = f"{path}?{urlencode(fields)}" if fields else path
    return tag("form", list(more), button, method="post", action=action, class_="line")


def _find() -> Html:
    box = tag(
        "input", type="search", name="id", placeholder="user or job", aria_label="Find a user or a job", required=True
    )
    return tag("form", box, tag("button", "Find", type="submit"), action="/find", role="search", class_="find")


def log_table(actions: list[dict[str, Any]], now: datetime) -> Html:
    rows = [(moment(a["at"], now), a["who"], a["address"], a["action"], a["of"], a["answer"]) for a in actions]
    return table(("when", "who", "from", "what", "of", "answer"), rows, "Nothing yet.")


def _done(word: str) -> Html | None:
    if word not in DONE:
        return None
    well, says = DONE[word]
    return tag("p", says, class_="said" if well else "said wrong", role="status")


def _refused(why: str) -> Html | None:
    if not why:
        return None
    says = tag("p", "The configuration is wrong now. What held before holds on, here and in running workers:")
    return wrong(why, says)


def _footer(view: View) -> Any:
    how = "" if view.may_act else " To act here, ask with a token that may act: NOTIFIER_SERVER_TOKEN."
    return tag("p", f"Times are UTC.{how} ", link("/help", "Runbook"))
