"""The wrong scripts of `make mutate` are those of today: each changes one place of a script that is there."""

import pytest

from notifier.scripts.loader import included, read_part
from tests.harness.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant) -> None:
    """Who rewrites a script keeps its mutants: what one replaces is there once, the rest loads, and its test exists."""
    text = mutant.script(ROOT).read_text(encoding="utf-8")
    file, _, test = mutant.test.partition("::")

    assert text.count(mutant.old) == 1
    assert read_part(mutant.file, included(text.replace(mutant.old, mutant.new)))
    assert f"def {test}" in (ROOT / "tests" / file).read_text(encoding="utf-8")
