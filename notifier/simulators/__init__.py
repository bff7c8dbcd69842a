"""The simulators: local servers that are as strict as APNs, FCM and the others, and log each message."""

import sys
from importlib.util import find_spec

from notifier.errors import SettingsError, needs_extra

try:
    with needs_extra("notifier.simulators", "simulators"):
        for _package in ("aiohttp", "cryptography", "h2", "jwt"):
            if find_spec(_package) is None:
                raise ModuleNotFoundError(name=_package)
except SettingsError as error:
    if sys.argv[:1] != ["-m"]:  # its value while `python -m notifier.simulators` imports this package
        raise
    sys.exit(str(error))
