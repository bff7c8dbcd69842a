"""What the pages of docs refer to is there. `make docs` builds the site of them, and holds the rest."""

import pkgutil
import re
import sys
from pathlib import Path

import pytest

import notifier
import notifier.limiter
import notifier.testing
import workers
from docs import generate

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
NOT_EVERYWHERE = re.compile(r"^(?!\$ )[\w./]+ .*\S +# |\bsed -i |\$\(jobs -p\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link may name on a page, as GitHub and the site spell headings."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Each link within the repository names a file, and a heading of it; so it works on GitHub and on the site."""
    for path, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / path if path else page
        if "/notifier/" in path:  # of the package, which a wheel has elsewhere
            target = Path(notifier.__file__).parent / path.partition("/notifier/")[2]
        assert target.is_file(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_work_in_the_shell_of_macos_too(page: Path) -> None:
    """zsh hands a comment to the command; BSD's sed wants more after -i; zsh's jobs -p prints lines."""
    parts = re.split(r"^```(\w*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    typed = [
        line
        for kind, block in zip(parts[1::4], parts[2::4], strict=True)
        if kind in {"", "sh"}
        for line in block.splitlines()
    ]
    assert [line for line in typed if NOT_EVERYWHERE.search(line)] == []


@pytest.mark.parametrize("package", [notifier, notifier.limiter, notifier.testing, workers], ids=lambda it: it.__name__)
def test_every_public_name_is_in_the_reference(package: object) -> None:
    """The reference of the Python API has each name of `__all__`, once, whichever package lists it."""
    shown = [item for names in generate.PYTHON.values() for item in names]
    assert len(shown) == len({id(pkgutil.resolve_name(item)) for item in shown})
    assert set(package.__all__) <= {item.rpartition(".")[2] for item in shown}


def test_every_public_name_says_what_it_is() -> None:
    """No name of the reference has a signature alone: no linter asks for its docstring."""
    _, *items = re.split(r"^#{3,4} ", generate.python(), flags=re.MULTILINE)
    silent = [
        item.partition("\n")[0] for item in items if not item.partition("\n```\n")[2].partition("\n## ")[0].strip()
    ]
    assert silent == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python spell signatures otherwise")
@pytest.mark.parametrize("page", generate.PAGES)
def test_what_is_made_from_the_code_is_up_to_date(page: str) -> None:
    """The reference and the schema are what the code says: `make reference` renews them."""
    written = (ROOT / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page](), "make reference"
