"""The records of decisions: each has a number of its own, and the index names it."""

import re
from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


def test_each_record_has_a_number_of_its_own() -> None:
    """A record's file and its heading carry the same number, and no two records share one."""
    records = sorted(DECISIONS.glob("0*.md"))
    numbers = [int(path.name[:4]) for path in records]
    assert len(set(numbers)) == len(numbers) > 30
    headings = [path.read_text(encoding="utf-8").split(maxsplit=2)[1] for path in records]
    assert headings == [f"{number}." for number in numbers]


def test_the_index_names_each_record() -> None:
    """Each record stands in the index, and the index names no file that is not there."""
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((0\d+-[\w-]+\.md)\)", index)) == {path.name for path in DECISIONS.glob("0*.md")}
