"""In which order the processes of pytest run the tests: the slow files first, whole, and one to each process in turn.

xdist cuts the list into as many pieces as there are processes, and takes the end of another's piece for whoever has
finished. So what stands first in a piece stays with what its file has started, such as a Redis Cluster of six
processes, and what is left at the end are short tests, which end together.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

SLOW: Final = ("acceptance", "nemesis", "faults", "hostile", "laws")  # rooms of tests, most of which take seconds


def deal(items: Sequence[T], file_of: Callable[[T], str], pieces: int) -> list[T]:
    """The same items, so that each of so many pieces begins with slow files. file_of: such as tests/laws/test_x.py."""
    files: dict[str, list[T]] = {}
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    slow = sorted((name for name in files if _room(name) in SLOW), key=lambda name: SLOW.index(_room(name)))
    others = [item for name, of_file in files.items() if _room(name) not in SLOW for item in of_file]
    dealt: list[T] = []
    for piece in range(pieces):
        dealt += (first := [item for name in slow[piece::pieces] for item in files[name]])
        left = len(items) - len(dealt) + len(first)
        more = max(0, left // (pieces - piece) - len(first))
        dealt += others[:more]
        del others[:more]
    return dealt


def _room(name: str) -> str:
    return name.removeprefix("tests/").partition("/")[0]
