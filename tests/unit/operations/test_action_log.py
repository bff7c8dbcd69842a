"""An entry of the log of who changed what: as long as it may be, and it says what it leaves out."""

from __future__ import annotations

import pytest

from notifier.operations.action_log import action_entry

USERS = [f"+ users.{n}: quiet" for n in range(60)]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("; ".join(USERS[:15]), "; ".join(USERS[:15])),
        ("; ".join(USERS), "; ".join([*USERS[:15], "and 45 more"])),
        ("x" * 301, "x" * 280 + "…"),
        ("ä" * 150, "ä" * 150),
        ("ä" * 151, "ä" * 140 + "…"),
    ],
)
def test_what_is_cut_says_so(answer: str, kept: str) -> None:
    """Between two changes, with how many more there were; a long text in itself ends with a mark."""
    assert action_entry("ann", "host", "apply rates", "v1", answer)["answer"].decode() == kept
