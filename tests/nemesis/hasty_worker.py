"""A real worker, save that a minute which a provider asks for is a second: a run has no quarter of an hour to wait."""

import sys
from dataclasses import replace
from typing import Final

import notifier.providers.apns.answers
import notifier.providers.fcm.answers
from notifier.providers.answers import Table
from workers.__main__ import main

HASTE: Final = 60


def hasten(table: Table) -> Table:
    """The same answers with shorter waits."""
    waits = {outcome: us // HASTE for outcome, us in table.wait_us.items()}
    return replace(table, wait_us=waits, least_us={status: us // HASTE for status, us in table.least_us.items()})


if __name__ == "__main__":
    for module in (notifier.providers.apns.answers, notifier.providers.fcm.answers):
        module.TABLE = hasten(module.TABLE)
    sys.exit(main(sys.argv[1:]))
