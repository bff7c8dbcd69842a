"""How many examples a property test tries."""

import os

# All tests of this folder are to take a few minutes. These profiles have more time; "few" has less, see conftest.py.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
SHARE = 60 if PROFILE == "few" else 1 if PROFILE in {"explore", "mutants", "thorough"} else 6


def examples(thorough: int) -> int:
    """So many with the profiles that have time, a sixth with others."""
    return max(1, thorough // SHARE)
