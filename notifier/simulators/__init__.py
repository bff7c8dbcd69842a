"""The simulators: local servers that speak APNs and FCM, strict as the real ones, and log what arrives."""

import sys
from importlib.util import find_spec

from notifier.errors import SettingsError, needs_extra

try:
    with needs_extra("notifier.simulators", "simulators"):
        for _package in ("aiohttp", "cryptography", "h2", "jwt"):
            if find_spec(_package) is None:
                raise ModuleNotFoundError(name=_package)
except SettingsError as error:
    if sys.argv[:1] != ["-m"]:  # so Python calls it while `python -m notifier.simulators` imports this
        raise
    sys.exit(str(error))
