"""Import apns2 on Pythons that it was not written for; the standard library stays unchanged.

The import of this module raises SettingsError unless the extra ``push-throttle[apns2]`` is installed. It has to be the
first to import h2 there: that h2 is of 2017, too.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from notifier.errors import SettingsError

NEWEST_H2: Final = 2
# Python 3.10 removed these names from `collections`. The modules below use them only while they are imported.
NAMES: Final = ("Iterable", "Mapping", "MutableMapping", "MutableSet")


def _check() -> None:
    h2 = version("h2")
    fits = int(h2.partition(".")[0]) <= NEWEST_H2
    missing = []
    for name in ("compat-fork-apns2", "hyper"):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing or not fits:
        what = f"{' and '.join(missing)} not installed" if missing else f"h2 {h2} is installed beside it"
        raise SettingsError(
            f"providers.apns.client: apns2 cannot be used: {what}. It needs an environment of its own, because its"
            " hyper works with h2 2 alone: in a new one, pip install 'push-throttle[apns2]'"
        )


@contextlib.contextmanager
def _aliases() -> Iterator[None]:
    added = [name for name in NAMES if not hasattr(collections, name)]
    for name in added:
        setattr(collections, name, getattr(collections.abc, name))
    try:
        yield
    finally:
        for name in added:
            delattr(collections, name)


_check()
with _aliases():
    from apns2.client import APNsClient
    from apns2.credentials import Credentials
    from apns2.payload import Payload
    from h2 import events
vars(events)["PingAckReceived"] = vars(events)["PingAcknowledged"]  # its name in h2 4, which our connection uses

__all__ = ["APNsClient", "Credentials", "Payload"]
