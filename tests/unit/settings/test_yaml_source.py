"""The YAML of a configuration: what is no plain YAML is refused with its place."""

import pytest

from tests.unit.settings.test_loading import only


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", " is empty; write at least {} to run on the defaults"),
        ("# nothing\n", " is empty; write at least {} to run on the defaults"),
        ("user:\n\tgap: 1s", "2:1: is not YAML: found character that cannot start any token"),
        ("user:\n\tgap: 1s", "; a tab indents this line: use spaces"),
        ("user: [1", "is not YAML: "),
        ("user: 'x\n", "(begun in line 1)"),
        ("a: b: c", "1:5: is not YAML: mapping values are not allowed in this context"),
        ("log: {}\nlog: {}", "2:1: log: is given twice, first in line 1; keep one"),
        ("user: {gap: 1s, gap: 2s}", "1:17: user.gap: is given twice, first in line 1; keep one"),
        ("user: &a {gap: 1s}", "1:7: user: anchors and aliases (&name, *name) are not supported"),
        ("user: *a", "1:7: user: anchors and aliases (&name, *name) are not supported"),
        ("user: !!python/object/apply:os.system ['true']", "1:7: user: tags (!name) are not supported"),
        ("--- {}\n--- {}", "2:1: a second document begins here"),
        ("? [a]\n: 1", "1:3: a key must be text, not a list or a mapping"),
        ("<<: {gap: 1s}", "1:1: ['<<']: unknown key"),
        ("user: '\x00'", "1:8: the character U+0000 is not allowed in YAML"),
        ("user: \ud800", "1:7: the character U+D800 is not allowed in YAML"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_place(text: str, says: str) -> None:
    """Syntax errors, duplicates, aliases and tags are one clear line, never a traceback; giants: hostile/test_bombs."""
    assert says in only(text)
