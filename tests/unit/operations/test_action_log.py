"""An entry of the log of who changed what: as long as it may be, and it says that it leaves something out."""

import pytest

from notifier.operations.action_log import action_entry


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 297 + "…"),
        ("ä" * 150, "ä" * 150),
        ("ä" * 151, "ä" * 148 + "…"),
    ],
)
def test_what_is_cut_says_so(answer: str, kept: str) -> None:
    """It ends with a mark, behind a whole letter."""
    assert action_entry("ann", "host", "apply rates", "v1", answer)["answer"].decode() == kept
