"""docs/how-to/operations.md promises nothing that no test shows: docs/internals/proofs.md names tests for each row."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
PROOFS = (ROOT / "docs" / "internals" / "proofs.md").read_text(encoding="utf-8")
TABLE = re.compile(r"^\| what may happen \|.*\n\|.*\n((?:\|.*\n)+)", re.MULTILINE)


def _rows(page: str) -> dict[str, str]:
    """The table of what may happen: its first column, and its last."""
    found = TABLE.search(page)
    assert found
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]
    return {first.removeprefix("| "): last.rstrip(" |") for first, *_, last in cells}


def test_every_fault_names_its_tests() -> None:
    """Each row of the page stands among the proofs, no other does, and each names at least one file that exists."""
    proofs = _rows(PROOFS)
    assert list(proofs) == list(_rows(PAGE))
    existing = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for row, tests in proofs.items():
        named = re.findall(r"test_\w+\.py", tests)
        assert named, row
        assert set(named) <= existing, row
