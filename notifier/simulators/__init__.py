"""The simulators: local servers that speak APNs and FCM, strict as the real ones, and log what arrives."""

from importlib.util import find_spec

from notifier.errors import needs_extra

with needs_extra("notifier.simulators", "simulators"):
    for _package in ("aiohttp", "cryptography", "h2", "jwt"):
        if find_spec(_package) is None:
            raise ModuleNotFoundError(name=_package)
