"""docs/reference/logs.md names each event that producers, workers and the server log, with its levels, and no other."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import notifier
from notifier.providers.contract import Outcome

ROOT = Path(__file__).parents[2]
PRODUCT = Path(notifier.__file__).parents[1]  # also where it is installed from a wheel
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
EVENT = re.compile(r"(?:<platform>|[a-z])[a-z0-9_]*")
ROW = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+) \| ([a-z, ]+) \|", re.MULTILINE)
# What the sender says of an answer that is not a delivery: the outcome's own name.
OUTCOMES = {outcome.value for outcome in Outcome} - {"delivered", "dead_token"}
NOT_THE_PRODUCT = {"simulators", "demo", "cli"}  # the command prints


def source() -> Iterator[Path]:
    for package in ("notifier", "workers"):
        yield from (path for path in (PRODUCT / package).rglob("*.py") if not NOT_THE_PRODUCT.intersection(path.parts))


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an argument may be; a part that is put in is the name of a platform."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "<platform>" for part in node.values)
        yield "".join(map(str, parts))


def logged(call: ast.Call) -> tuple[str, ast.expr] | None:
    """The level and the event of a call that logs; '' where the level is chosen elsewhere."""
    arguments, what = call.args, call.func
    if ast.unparse(what) == "partial" and arguments:
        what, arguments = arguments[0], arguments[1:]
    if not arguments:
        return None
    if isinstance(what, ast.Attribute) and what.attr in LEVELS and "log" in ast.unparse(what.value):
        return "error" if what.attr == "exception" else what.attr, arguments[0]
    return ("", arguments[0]) if ast.unparse(what) in {"log", "say", "self.say"} else None


def in_source() -> dict[str, set[str]]:
    """The levels of each event."""
    found = defaultdict[str, set[str]](set)
    for path in source():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (call := logged(node)):
                level, event = call
                for text in texts(event):
                    if EVENT.fullmatch(text):
                        found[text].add(level)
    return found


def test_every_event_is_in_the_table() -> None:
    """What a program may look for in the log is written down, and what is written down is logged, at these levels."""
    page = (ROOT / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    table = {
        name: set(levels.split(", ")) for names, levels in ROW.findall(page) for name in re.findall(r"`([^`]+)`", names)
    }
    found = in_source()
    assert len(found) > 40
    assert set(table) == set(found) | OUTCOMES
    for name, levels in found.items():
        assert levels - {""} <= table[name], name
