"""The runbook: a page for each symptom, from the files of `notifier/server/help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

from notifier.server.answers import ProblemError
from notifier.server.html import Html, tag, text
from notifier.server.pages.layout import View, document

NAME: Final = re.compile(r"[a-z-]{1,40}")
INLINE: Final = re.compile(r"`([^`]+)`|\*([^*]+)\*|\[([^\]]+)\]\(([a-z-]+)\.md\)")
ITEM: Final = re.compile(r"^(?:- |\d+\. )")


def read_help(name: str) -> str:
    """Return the Markdown of a page; without a name, a list of all. Raises ProblemError."""
    folder = resources.files("notifier.server").joinpath("help")
    if not name:
        titles = sorted(
            (each.read_text(encoding="utf-8").partition("\n")[0][2:], each.name) for each in folder.iterdir()
        )
        return "\n".join(["# Runbook\n", *(f"- [{title}]({page})" for title, page in titles)])
    if not NAME.fullmatch(name) or not folder.joinpath(f"{name}.md").is_file():
        raise ProblemError(404, "Unknown", "there is no such page of the runbook")
    return folder.joinpath(f"{name}.md").read_text(encoding="utf-8")


def help_page(told: dict[str, Any], view: View) -> str:
    source: str = told["text"]
    return document(view, source.partition("\n")[0].removeprefix("# "), tag("article", list(_blocks(source))))


def _blocks(source: str) -> Iterator[Html]:
    for part in re.split(r"\n{2,}", source.strip()):
        if part.startswith("```"):
            yield tag("pre", part.partition("\n")[2].rpartition("\n")[0])
        elif part.startswith("#"):
            marks, _, title = part.partition(" ")
            yield tag(f"h{len(marks)}", title)
        elif ITEM.match(part):
            items = re.split(r"\n(?=- |\d+\. )", part)
            yield tag("ol" if part[0].isdigit() else "ul", [tag("li", _inline(ITEM.sub("", each))) for each in items])
        else:
            yield tag("p", _inline(part))


def _inline(line: str) -> Html:
    made, at = [], 0
    for found in INLINE.finditer(line):
        code, strong, shown, to = found.groups()
        made.append(line[at : found.start()])
        made.append(tag("code", code) if code else tag("em", strong) if strong else tag("a", shown, href=f"/help/{to}"))
        at = found.end()
    return text([*made, line[at:]])
