"""The site of the docs: `make docs`. Its sources are the repository's files, so links hold on GitHub and here."""

import re
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.cli import get_docs_for_click
from typer.main import get_command

from notifier.cli.app import app as commands
from notifier.scripts.keys import CATALOGUE

project = "push-throttle"
author = "the authors of push-throttle"
version = release = version_of("push-throttle")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/README"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "examples/README.md",
]
exclude_patterns = ["docs/conf.py"]
default_role = "literal"  # docstrings write code as Markdown does
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["fastapi", "flask"]  # whose middleware is shown without them
html_theme = "furo"
html_title = f"push-throttle {version}"
html_copy_source = False
html_theme_options = {"footer_icons": []}
pygments_style = "friendly"

PART = re.compile(r"^## (.+)$", re.MULTILINE)
FOLDERS = ("tutorials", "how-to", "reference", "explanation")  # each is of the part of its name
LINK = re.compile(r"\]\(([^)#:\s]+\.md)[)#]")
ARGUMENT = re.compile(r"(\w+): (.*)")


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """The tree of pages is the list that docs/README.md shows: a part for each heading, its pages in their order."""
    if docname == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:glob:\n\n0*\n```\n"
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


def list_arguments(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """A docstring says `name: what it is` on a line for each argument; here they become a list."""
    shown: list[str] = []
    inside = False
    for line in lines:
        found = ARGUMENT.fullmatch(line)
        if found:
            shown += ([] if inside else [""]) + [f"* `{found[1]}`: {found[2]}"]
        else:
            shown.append(f"  {line}" if inside and line else line)
        inside = bool(found) or (inside and bool(line))
    lines[:] = shown


class Commands(SphinxDirective):
    """Each command of `notifier` with its arguments and options, as Typer knows them."""

    def run(self) -> list[nodes.Node]:
        """The commands as sections of the page."""
        command = get_command(commands)
        text = get_docs_for_click(
            obj=command, ctx=command.context_class(command, info_name="notifier"), name="notifier"
        )
        text = text.partition("\n")[2]  # the page has a title of its own
        text = re.sub(r"^#(#+) ", r"\1 ", text, flags=re.MULTILINE)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class RedisKeys(SphinxDirective):
    """The names of our keys in Redis, as the catalogue of them says."""

    def run(self) -> list[nodes.Node]:
        """A table: the key, and what it is."""
        rows = []
        for name, text in CATALOGUE.items():
            rest, _, meaning = text.partition(" ")
            rows.append(f"| `notifier:{name}{rest}` | {meaning} |".replace("\\|", "|"))
        return self.parse_text_to_nodes("\n".join(["| key | what it is |", "|---|---|", *rows]))


def redirect(app: Sphinx, exception: Exception | None) -> None:
    """The site's first address leads to its first page."""
    if exception is None and app.builder.name == "html":
        refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        page = f"<!doctype html>{refresh}<title>{project}</title>\n"
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_toctrees)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("build-finished", redirect)
    app.add_directive("commands", Commands)
    app.add_directive("redis-keys", RedisKeys)
    app.add_lexer("csv", TextLexer)
