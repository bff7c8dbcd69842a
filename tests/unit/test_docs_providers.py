"""docs/reference/providers.md says what the code does: its tables are the code's."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import notifier
from notifier.providers.answers import Table
from notifier.providers.apns import answers as apns_answers
from notifier.providers.contract import Outcome
from notifier.providers.fcm import answers as fcm_answers
from notifier.providers.fcm.options import OPTIONS, OURS
from notifier.providers.webpush import answers as webpush_answers
from notifier.units import format_duration

ROOT = Path(__file__).parents[2]
PRODUCT = Path(notifier.__file__).parents[1]  # also where it is installed from a wheel
PAGE = (ROOT / "docs" / "reference" / "providers.md").read_text(encoding="utf-8")
PROOFS = (ROOT / "docs" / "internals" / "providers.md").read_text(encoding="utf-8")
TABLES = {"APNs": apns_answers.TABLE, "FCM": fcm_answers.TABLE, "Web Push": webpush_answers.TABLE}


def rows(table: Table) -> list[str]:
    """The table as the page shows it: what is looked for first stands first, and what means the same in one row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (status, reason), outcome in table.by_reason.items():
        found.setdefault((str(status), outcome.value, again(table, status, outcome)), []).append(f"`{reason}`")
    made = [f"| {status} | {', '.join(words)} | {word} | {wait} |" for (status, word, wait), words in found.items()]
    by_status: dict[tuple[str, str], list[int]] = {}
    for status, outcome in table.by_status.items():
        by_status.setdefault((outcome.value, again(table, status, outcome)), []).append(status)
    made += [f"| {', '.join(map(str, s))} | other or none | {word} | {wait} |" for (word, wait), s in by_status.items()]
    for hundreds, outcome in table.by_class.items():
        made.append(f"| other {hundreds}xx | | {outcome.value} | {again(table, hundreds * 100, outcome)} |")
    return [*made, f"| all else | | unknown | {again(table, 0, Outcome.UNKNOWN)} |"]


def again(table: Table, status: int, outcome: Outcome) -> str:
    """When it is tried again, before our own jitter."""
    if outcome not in table.wait_us:
        return "at once" if outcome is Outcome.UNSENT else "never"
    least_us = table.least_us.get(status, table.least_us.get(status // 100, 0))
    if least_us:
        return f"after Retry-After, at least {format_duration(least_us)}"
    return f"after Retry-After, else {format_duration(table.wait_us[outcome])}"


@pytest.mark.parametrize("platform", TABLES)
def test_the_tables_are_the_codes(platform: str) -> None:
    """What the page says of a provider's answers is, row by row, what the code makes of them."""
    section = PAGE.split(f"### Answers of {platform}\n")[1].split("\n#")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert shown == rows(TABLES[platform]), "\n" + "\n".join(rows(TABLES[platform]))


def test_every_outcome_is_explained() -> None:
    """Each outcome that a provider can have stands in the table of what follows from it, and no other."""
    section = PAGE.split("## What follows from an answer\n")[1].split("\n## ")[0]
    explained = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert explained == [outcome.value for outcome in Outcome]


def test_the_tests_of_the_rules_exist() -> None:
    """Each rule of Apple's and Google's, and each fault of other clients, names tests; all of them are there."""
    named = re.findall(r"`([\w/]+/test_\w+): (test_\w+)`", PROOFS)
    rows = [line for line in PROOFS.splitlines() if line.startswith("|") and "test_" in line]
    assert len(named) > len(rows) >= 40, len(rows)
    assert all("/test_" in row for row in rows)
    for path, name in named:
        # The suite of the contract is a part of the package, because others run it too.
        suite = PRODUCT / "notifier" / "simulators" / "provider_contract"
        files = suite.glob("*.py") if path == "contract/test_contract" else [ROOT / "tests" / f"{path}.py"]
        assert any(name in functions_in(file) for file in files), f"{path}: {name}"


@cache
def functions_in(file: Path) -> set[str]:
    """The names of all functions and methods of a module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_all_options_of_fcm_are_told() -> None:
    """Every block and field of `Notification.fcm`, and every one that is refused as ours, stands on the page."""

    def names(fields: object) -> set[str]:
        return {*fields, *(n for value in fields.values() for n in names(value))} if isinstance(fields, dict) else set()

    told = set(re.findall(r"[\w-]+", PAGE.split("## FCM\n")[1].split("\n## ")[0].lower()))
    assert names(OPTIONS) <= told
    assert {path.rpartition(".")[2] for path in OURS} <= told
