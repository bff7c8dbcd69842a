"""docs/operations.md promises nothing that no test shows: each row of its faults names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_fault_names_its_tests() -> None:
    """Each row names at least one file of tests/faults or tests/laws that exists."""
    section = PAGE.split("## What may happen\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    existing = {path.name for folder in ("faults", "laws") for path in (ROOT / "tests" / folder).glob("test_*.py")}
    for row in rows:
        named = re.findall(r"test_\w+\.py", row.rsplit("|", 2)[1])
        assert named, row
        assert set(named) <= existing, row
