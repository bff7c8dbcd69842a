"""Words and openings that the house has given up: a test keeps them away, and `make house` counts them."""

import re
from typing import Final

# Each was replaced by another word; docs/reference/glossary.md has those in use.
RETIRED: Final = re.compile(
    r"\b(nudge|parked|residents|newcomer|twin|patience|hurry|untimed|take_off|reckon(?:ed)?|stock.job|foreign.job)\b"
)
RIDDLE: Final = re.compile(r"(What|Who|Whose|Those|Whoever|Whatever)\b")  # at the beginning of a docstring
SMALL: Final = "a all an and as by each for from in is it its of one or return returns that the this to with"
