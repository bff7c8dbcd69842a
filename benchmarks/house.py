"""Weigh the house: lines by room, full folders, arrows up, retired words, modules that have a test of their name.

Run it by `make house`. It reads files and runs nothing.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp

from tests.harness.words import RETIRED, RIDDLE

ROOT = Path(__file__).parents[1]
PRODUCT = ("notifier", "workers", "limiter", "platforms")
HEART = ("notifier/scripts/", "notifier/queue/", "workers/")
GOALS = {"product": 40_000, "heart": 7_000, "Lua": 3_000}
MAX_FILES = 20


def main() -> None:
    """Print the figures, a section each."""
    files = {path: (ROOT / path).read_text(encoding="utf-8").count("\n") for path in tracked()}
    for section in (weights, rooms, crowds, arrows, words, mirrored):
        print(f"\n{section.__doc__}")
        for line in section(files):
            print(f"  {line}")


def tracked() -> list[str]:
    """The Python and Lua files that git knows, by their paths."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.lua"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split() if (ROOT / path).is_file()]


def weights(files: dict[str, int]) -> Iterator[str]:
    """Lines, and the goal"""
    product = [path for path in files if path.startswith(PRODUCT)]
    heart = [path for path in product if path.startswith(HEART) and not path.startswith("workers/demo/")]
    lua = [path for path in product if path.endswith(".lua")]
    for what, paths in (("product", product), ("heart", heart), ("Lua", lua)):
        yield f"{what:10}{sum(files[path] for path in paths):>8,}{GOALS[what]:>8,}"
    yield f"{'tests':10}{sum(lines for path, lines in files.items() if path.startswith('tests/')):>8,}"


def rooms(files: dict[str, int]) -> Iterator[str]:
    """Lines by room"""
    lines: Counter[str] = Counter()
    for path, count in files.items():
        if path.startswith(PRODUCT):
            lines["/".join(path.split("/")[:2])] += count
    for room, count in lines.most_common():
        if not room.endswith(".py"):
            yield f"{room:24}{count:>8,}"


def crowds(files: dict[str, int]) -> Iterator[str]:
    """Folders of more than 20 files"""
    among = Counter(str(Path(path).parent) for path in files if path.startswith(PRODUCT))
    for folder, count in among.most_common():
        if count > MAX_FILES:
            yield f"{folder:24}{count:>8}"


def arrows(_files: dict[str, int]) -> Iterator[str]:
    """Rooms of one layer that import each other, which the layers of pyproject.toml allow by a colon"""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    graph = grimp.build_graph(*config["root_packages"], cache_dir=None)
    for layer in config["contracts"][0]["layers"]:
        beside = [room.strip() for room in layer.split(":")] if ":" in layer else []
        for importer in beside:
            for imported in beside:
                if importer != imported and graph.find_shortest_chains(importer, imported, as_packages=True):
                    yield f"{importer} -> {imported}"


def words(files: dict[str, int]) -> Iterator[str]:
    """Retired words, and docstrings that open with a riddle"""
    retired, riddles, docstrings = 0, 0, 0
    for path in files:
        if not path.startswith(PRODUCT):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        retired += len(RETIRED.findall(text))
        if path.endswith(".py"):
            found = list(_docstrings(ast.parse(text)))
            docstrings += len(found)
            riddles += sum(bool(RIDDLE.match(docstring)) for docstring in found)
    yield f"retired words       {retired:>8,}"
    yield f"riddles             {riddles:>8,} of {docstrings:,} docstrings"


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def mirrored(files: dict[str, int]) -> Iterator[str]:
    """Modules that a test file is named after"""
    tests = {Path(path).stem.removeprefix("test_") for path in files if path.startswith("tests/")}
    modules = [path for path in files if path.startswith(PRODUCT) and path.endswith(".py") and "__" not in path]
    yield f"{sum(Path(path).stem in tests for path in modules)} of {len(modules)}"


if __name__ == "__main__":
    main()
