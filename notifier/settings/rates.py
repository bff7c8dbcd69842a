"""The sections of a configuration that are rates, and the version that tells them from others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

SECTIONS: Final = ("zone", "user", "tiers", "users", "categories")


def version_of(rates: Mapping[str, Any], users_digest: str = "") -> str:
    """What tells rates from others: the same on every host for the same sections, whatever the file around them.

    users_digest: of the files of users, where there are any.
    """
    whole = hashlib.sha256(users_digest.encode())
    for name in SECTIONS:
        given = rates.get(name) or {}
        entries = given if isinstance(given, Mapping) else {"": given}
        for key in sorted(entries):  # one by one: no call is so long that a worker's sends would wait for it
            whole.update(json.dumps([name, key, entries[key]], sort_keys=True).encode())
    return whole.hexdigest()[:12]


def rates_in(data: Any) -> dict[str, Any]:
    """The sections of a configuration that are rates, out of its plain data."""
    return {name: data[name] for name in SECTIONS if name in data} if isinstance(data, dict) else {}
