"""An amount of memory as it is written in the YAML: a share such as `80%`, or `2GB`."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {"KB": 1024, "MB": 1024**2, "GB": 1024**3}  # as in redis.conf
_FORM: Final = re.compile(r"([1-9][0-9]{0,11}) ?(%|KB|MB|GB)")


def check_memory(text: str) -> str:
    """Return the text unchanged; raise ValueError if it is no amount of memory."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:20]!r} is not an amount of memory; write a share such as 80%, or KB, MB or GB, such as 2GB"
        )
    if match[2] == "%" and int(match[1]) > 100:  # noqa: PLR2004 - per cent
        raise ValueError(f"{text} is more than 100%; give at most 100%")
    return text
