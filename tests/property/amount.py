"""How many examples a property test tries."""

from __future__ import annotations

import os

# All tests of this folder are to take a few minutes. These profiles have more time.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") in {"explore", "mutants", "thorough"}
SHARE = 6


def examples(thorough: int) -> int:
    """So many with the profiles that have time, a sixth with others."""
    return thorough if THOROUGH else thorough // SHARE
