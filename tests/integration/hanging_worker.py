"""A worker whose event loop hangs for ever in the first send: as with a provider that blocks."""

import sys
import time

from workers.__main__ import main
from workers.sending.sender import Sender


async def hang(_self: Sender, *_: object) -> None:
    while True:
        time.sleep(60)  # noqa: ASYNC251 - this is the fault


Sender.send = hang
sys.exit(main(sys.argv[1:]))
