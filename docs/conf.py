"""The site of the docs: `make docs`. Its sources are the repository's files, so links hold on GitHub and here."""

import re
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from notifier.scripts.key_types import TOLD
from notifier.scripts.keys import CATALOGUE

project = "push-throttle"
author = "the authors of push-throttle"
version = release = version_of("push-throttle")
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/README"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "examples/README.md",
    "notifier/server/help/*.md",
]
exclude_patterns = ["docs/*.py"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"push-throttle {version}"
html_copy_source = False
html_theme_options = {"footer_icons": []}
pygments_style = "friendly"
highlight_language = "none"  # of a block that says none: commands and what they print
copybutton_exclude = ".linenos, .gp, .go"  # of a console's lines, the commands alone

PART = re.compile(r"^## (.+)$", re.MULTILINE)
FOLDERS = ("tutorials", "how-to", "reference", "explanation")  # each is of the part of its name
LINK = re.compile(r"\]\(([^)#:\s]+\.md)[)#]")


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """The tree of pages is the list that docs/README.md shows: a part for each heading, its pages in their order."""
    if docname == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:glob:\n\n0*\n```\n"
    if docname == "docs/reference/metrics":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n/notifier/server/help/*\n```\n"
    if docname != root_doc:
        return
    parts = ["", *PART.split(source[0])]
    seen: set[str] = set()
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        elsewhere = tuple(f"{part}/" for part in FOLDERS if part != caption.lower())
        found = [page for page in dict.fromkeys(LINK.findall(text)) if not page.startswith(elsewhere)]
        pages = [page for page in found if page not in seen]
        seen.update(pages)
        listed = "\n".join(page.removesuffix(".md") for page in pages)
        titled = f":caption: {caption}\n" if caption else ""
        source[0] += f"\n```{{toctree}}\n:hidden:\n{titled}\n{listed}\n```\n"


class RedisKeys(SphinxDirective):
    """The names of our keys in Redis, as the catalogue of them says."""

    def run(self) -> list[nodes.Node]:
        """A table: the key, and what it is."""
        rows = []
        for name, text in CATALOGUE.items():
            told = TOLD.fullmatch(text)
            assert told is not None
            rows.append(f"| `notifier:{name}{told['rest']}` | {told['types']} | {told['meaning']} |")
        return self.parse_text_to_nodes("\n".join(["| key | type | what it is |", "|---|---|---|", *rows]))


def redirect(app: Sphinx, exception: Exception | None) -> None:
    """The site's first address leads to its first page."""
    if exception is None and app.builder.name == "html":
        refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        page = f"<!doctype html>{refresh}<title>{project}</title>\n"
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_toctrees)
    app.connect("build-finished", redirect)
    app.add_directive("redis-keys", RedisKeys)
