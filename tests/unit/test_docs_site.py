"""What the pages of docs refer to is there. `make docs` builds the site of them, and holds the rest."""

import re
from pathlib import Path

import pytest

import notifier
import notifier.limiter
import notifier.testing
import workers

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ITEM = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link may name on a page, as GitHub and the site spell headings."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Each link within the repository names a file, and a heading of it; so it works on GitHub and on the site."""
    for path, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / path if path else page
        assert target.is_file(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("package", [notifier, notifier.limiter, notifier.testing, workers], ids=lambda it: it.__name__)
def test_every_public_name_is_in_the_reference(package: object) -> None:
    """The reference of the Python API has each name of `__all__`, once, whichever package lists it."""
    items = ITEM.findall((ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8"))
    shown = [item.rpartition(".")[2] for item in items]
    assert len(shown) == len(set(shown))
    assert set(package.__all__) <= set(shown)
