"""The order of the tests: nothing is lost, files of slow tests stay whole, and each process begins with some."""

import itertools

import pytest

from tests.harness.deal import SLOW, deal

ITEMS = [
    *(f"tests/unit/test_{n % 3}.py::test_{n}" for n in range(40)),
    *(f"tests/{room}/test_{file}.py::test_{n}" for room in SLOW for file in range(3) for n in range(2)),
    *(f"tests/property/test_x.py::test_{n}" for n in range(7)),
]


def file_of(name: str) -> str:
    return name.partition("::")[0]


def cut(items: list[str], pieces: int) -> list[list[str]]:
    """As xdist does at the start of `--dist worksteal`."""
    found, left = [], items
    for piece in range(pieces):
        count = len(left) // (pieces - piece)
        found.append(left[:count])
        left = left[count:]
    return found


@pytest.mark.parametrize("pieces", [1, 2, 4, 7, 8])
def test_each_process_begins_with_whole_slow_files(pieces: int) -> None:
    found = cut(deal(ITEMS, file_of, pieces), pieces)
    assert sorted(itertools.chain(*found)) == sorted(ITEMS)
    for name in {file_of(item) for item in ITEMS if item.split("/")[1] in SLOW}:
        (of_file,) = [
            [item for item in piece if file_of(item) == name] for piece in found if name in map(file_of, piece)
        ]
        assert of_file == [item for item in ITEMS if file_of(item) == name], "in their order"
    for piece in found:
        are_slow = [item.split("/")[1] in SLOW for item in piece]
        assert are_slow == sorted(are_slow, reverse=True)
        assert are_slow[0]


def test_slow_files_alone_are_all_dealt() -> None:
    """More than fits into the first pieces, as with `pytest tests/laws`."""
    slow = [item for item in ITEMS if "/laws/" in item]
    assert sorted(deal(slow, file_of, 2)) == sorted(slow)
    assert deal([], file_of, 2) == []
