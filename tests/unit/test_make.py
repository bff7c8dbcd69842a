"""Makefile, CI and the map of the tests name only files and modules that are there."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMING = ["Makefile", ".github/workflows/ci.yml", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml"]
FOLDERS = "benchmarks|config|deploy|docs|examples|packaging|tests"
BUILT = re.compile(r"/\.peers|\*")  # what a target makes, and patterns of several


@pytest.mark.parametrize("file", NAMING)
def test_each_path_is_there(file: str) -> None:
    """A target that names a file that was moved would run nothing, and CI would be the first to say so."""
    text = (ROOT / file).read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w/.])(?:{FOLDERS})/[\w./*-]*[\w/*]", text))
    assert named
    assert [path for path in sorted(named) if not BUILT.search(path) and not (ROOT / path).exists()] == []


def test_ci_asks_for_targets_that_there_are() -> None:
    """Each `make` of CI names targets."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / ".ci/run", *ROOT.glob(".github/workflows/*.yml")]]
    called = re.findall(r"^\s*(?:- run: )?(?:\w+=\S* )?make((?: [a-z][a-z0-9-]*)+)", "\n".join(texts), re.MULTILINE)
    asked = [target for targets_of_one in called for target in targets_of_one.split()]
    assert len(asked) > 8
    assert set(asked) <= targets


def test_each_module_is_there() -> None:
    """What `python -m` is given can be found."""
    named = set(
        re.findall(rf"-m ((?:{FOLDERS}|workers|notifier)[\w.]*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    )
    assert len(named) > 5
    assert [module for module in sorted(named) if find_spec(module) is None] == []
