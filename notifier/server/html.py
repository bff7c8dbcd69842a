"""Make HTML by calls. All text but `Html` is escaped: no value becomes a tag, leaves its attribute or turns a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from notifier import texts

VOID: Final = frozenset({"br", "input", "link", "meta"})


class Html(str):
    """Text that is HTML already. Only this module makes it of plain text, and `preview` of its SVG."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. children: text, Html, None for nothing, or several in a list. attributes: `class_` is class.

    An attribute that is None or False is left out; one that is True has no value.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{text(children)}</{name}>")


def text(children: Any) -> Html:
    if children is None:
        return Html()
    if isinstance(children, Html):
        return children
    if isinstance(children, list | tuple):
        return Html("".join(text(child) for child in children))
    return Html(escape(texts.without_controls(str(children))))


def verbatim(content: str) -> Html:
    """The text of a field of a form, which sends it back: control characters stay what they are."""
    return Html(escape(content))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "", *, slim: bool = False) -> Html:
    """A table; if it has no rows, the text `empty`.

    On a phone each row becomes a list of its cells with their columns, unless the table is slim.
    """
    lines = [tag("tr", [_cell(column, value) for column, value in zip(columns, row, strict=True)]) for row in rows]
    if not lines:
        return tag("p", empty, class_="none")
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in columns]))
    return tag("table", head, tag("tbody", lines), class_="slim" if slim else None)


def _cell(column: str, value: Any) -> Html:
    shown = text(value)
    return tag("td", tag("div", shown) if shown else None, data_label=column)


def hint(*children: Any) -> Html:
    return tag("p", *children, class_="hint")


def facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    """Names and values; a pair without a value is left out."""
    given = [(name, value) for name, value in pairs if value is not None and value != ""]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in given])


def bar(used: int, limit: int) -> Html:
    """How much of a limit is used, as a bar with its number."""
    share = min(100, round(100 * used / limit))
    level = "full" if used >= limit else "near" if share >= 80 else "some"  # noqa: PLR2004 - per cent
    return _bar(share, level, f"{used:,} of {limit:,}")


def column(number: int, most: int, level: str = "some") -> Html:
    """A number with a bar for its share of the largest number."""
    return _bar(round(100 * number / most) if most else 0, level, f"{number:,}")


def _bar(share: int, level: str, says: str) -> Html:
    drawn = tag(
        "svg",
        tag("rect", class_="track", width=100, height=10),
        tag("rect", class_=level, width=share, height=10),
        class_="bar",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return tag("span", drawn, " ", tag("span", says, class_="whole"))


def moment(at: datetime | None, now: datetime | None = None) -> Html | None:
    """A time in UTC. If `now` is given, also how long until then, or since then."""
    if at is None:
        return None
    shown = at.strftime("%H:%M:%S") if now is not None and at.date() == now.date() else at.strftime("%Y-%m-%d %H:%M:%S")
    if now is not None:
        left = (at - now).total_seconds()
        shown = f"in {span(left)} ({shown})" if left > 0 else f"{span(-left)} ago ({shown})"
    return tag("time", shown, datetime=at.isoformat(), title="UTC")


def span(seconds: float) -> str:
    """As `texts.seconds_text`, but no line can break in it."""
    return texts.seconds_text(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def at_most(seconds: float | None) -> str:
    """As `texts.at_most`, but no line can break in it."""
    return texts.at_most(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def rate(per_second: float) -> str:
    """A rate for people: a second, or a minute if it is below 1/s."""
    if 0 < per_second < 1:
        return f"{per_second * 60:.0f}/min"
    return f"{per_second:,.0f}/s"


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
