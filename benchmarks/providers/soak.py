"""Connections over time: `python -m benchmarks.providers.soak` holds two providers through ten minutes of trouble.

What happens to them stands in tests/harness/soak.py, which a test lets happen in short.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.__main__ import print_table
from benchmarks.harness import Figure, at_least, at_most
from notifier.log import configure_logging
from notifier.providers.contract import Outcome
from tests.harness.soak import APNS, FCM, Soak, apns, fcm


def figures(soak: Soak) -> list[Figure]:
    """What came of it, beside what was allowed."""
    name, ended = soak.provider.platform, soak.ended
    told = ended[Outcome.DELIVERED] + ended[Outcome.UNKNOWN]
    return [
        Figure(f"{name}: connections opened", soak.opened(), "", at_most(soak.allowed), ", ".join(soak.notes)),
        Figure(f"{name}: connections forced", soak.forced),
        Figure(f"{name}: pushes that ended", ended.total(), "", at_least(soak.given)),
        Figure(f"{name}: delivered or, where a connection broke, unknown", told, "", at_least(soak.given)),
        Figure(f"{name}: unknown", ended[Outcome.UNKNOWN]),
    ]


async def soak_all(folder: Path) -> list[Figure]:
    """Both providers at once, for ten minutes."""
    (folder / "apns").mkdir()
    (folder / "fcm").mkdir()
    # An idle time outlasts both the ping of APNs and the keep-alive of FCM.
    async with (
        apns(folder / "apns", idle_s=75, steady_s=25) as of_apns,
        fcm(folder / "fcm", idle_s=75, steady_s=60) as of_fcm,
    ):
        await asyncio.gather(of_apns.run(APNS), of_fcm.run(FCM))
        return [*figures(of_apns), *figures(of_fcm)]


def main() -> int:
    """Soak and print the table; 1 if a bar was missed."""
    configure_logging("json", "error")
    with tempfile.TemporaryDirectory(prefix="push-throttle-") as folder:
        figures = asyncio.run(soak_all(Path(folder)))
    print_table(figures)
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
