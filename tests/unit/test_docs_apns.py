"""docs/how-to/apns.md tells what the code does: its types of push and its options are the code's."""

import re
from pathlib import Path

from notifier.providers.apns.options import OPTIONS, PUSH_TYPES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "apns.md").read_text(encoding="utf-8")


def test_the_types_of_push() -> None:
    """Each type stands there once: its topic, its priorities with the default in bold, its size, as in the code."""
    told: dict[str, list[str]] = {}
    section = PAGE.split("| `push_type` |")[1].split("\n\n")[0]
    for line in section.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        told |= dict.fromkeys(re.findall(r"`(\w+)`", first), cells)
    assert set(told) == set(PUSH_TYPES)
    for name, (topic, priorities, size, _) in told.items():
        kind = PUSH_TYPES[name]
        assert topic == "the app's" or (f"`{kind.suffix}`" in topic) == bool(kind.suffix), name
        assert priorities == ", ".join([f"**{kind.priorities[0]}**", *map(str, kind.priorities[1:])]), name
        assert size == f"{kind.payload_bytes:,}", name


def test_the_options() -> None:
    """Every option is told, and none that there is not; each for the types of push that take it."""
    section = PAGE.split("| option | for |")[1].split("\n\n")[0]
    told: dict[str, str] = {}
    for line in section.splitlines()[2:]:
        names, types, _ = line.strip("|").split("|", 2)
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), types.strip())
        if "each with" in names:
            told |= {name.replace("_key", "_args"): types.strip() for name in re.findall(r"`(\w+_key)`", names)}
    assert set(told) == set(OPTIONS) - {"push_type"}
    for name, types in told.items():
        if not types.startswith("all"):
            assert set(types.split(", ")) == OPTIONS[name].types, name
