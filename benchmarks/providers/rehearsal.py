"""`python -m benchmarks.providers.rehearsal`: every client that needs no environment of its own races for a moment.

No figures: a contestant that cannot race ends it with its words, and status 1.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.providers.__main__ import APNS, BARE_AIOHTTP, BARE_H2, FCM, PYFCM, WEBPUSH
from benchmarks.providers.contest import make_identity, race, server
from benchmarks.providers.task import Task

CONTESTS: Final = (
    (["server_http2", "1000", "0"], [APNS, BARE_H2]),
    (["server_http2", "100", "20"], [APNS, BARE_H2]),
    (["server_http1"], [FCM, BARE_AIOHTTP, PYFCM, WEBPUSH]),
)


def main() -> None:
    """Race, and name who got to the end."""
    for (program, *arguments), contestants in CONTESTS:
        with tempfile.TemporaryDirectory(prefix="push-throttle-") as folder:
            certificates = make_identity(Path(folder))
            with server(program, certificates, *arguments) as port:
                runs = race(contestants, Task(port, str(certificates.ca_file), folder, 50, 0.3, 0.1), 1)
        print(f"{program}: {', '.join(runs)}")


if __name__ == "__main__":
    main()
