"""A worker that kills itself at a named step between pull and settle: `mortal_worker.py --step S --at N …`.

The step is waited for from outside: nothing in the product knows of it.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import workers.loop.engine
import workers.loop.in_flight
from workers.__main__ import main
from workers.sending.sender import Sender

# At each the worker dies with SIGKILL: a call that was asked has reached Redis or the provider, and nobody heard back.
STEPS: Final = (
    "pull asked",
    "pull answered",
    "send asked",
    "send answered",
    "settle asked",
    "settle answered",
)
ON_ITS_WAY_S: Final = 0.004


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fate:
    """Lets the N-th passing of one step be the last."""

    def __init__(self, step: str, at: int) -> None:
        self.verb, self._moment = step.split()
        self._left = at

    async def pass_by(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call; die while it is under way, or when it has been answered, if this is the time."""
        if verb != self.verb:
            return await call()
        asked = asyncio.ensure_future(call())
        if self._moment == "asked" and self._is_due():
            await asyncio.wait([asked], timeout=ON_ITS_WAY_S)
            die()
        answer = await asked
        if self._moment == "answered" and self._counts(verb, answer) and self._is_due():
            die()
        return answer

    def _is_due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _counts(self, verb: str, answer: Any) -> bool:
        # A look that found nothing is no step of anything. A pull is the last call of its round.
        return verb != "pull" or bool(answer[-1].leased)


def doom(fate: Fate) -> None:
    """Have every call of the engine pass by the fate."""
    send = Sender.send

    def passing(real: Any) -> Any:
        async def call(redis: Any, what: Any) -> Any:
            return await fate.pass_by(what.script.name, lambda: real(redis, what))

        return call

    run_together = workers.loop.engine.run_together

    async def calls(redis: Any, what: Any) -> Any:
        verb = fate.verb if fate.verb in [each.script.name for each in what] else ""
        return await fate.pass_by(verb, lambda: run_together(redis, what))

    async def mortal_send(self: Sender, *arguments: Any) -> Any:
        return await fate.pass_by("send", lambda: send(self, *arguments))

    for module in (workers.loop.engine, workers.loop.in_flight):
        module.run_async = passing(module.run_async)  # type: ignore[attr-defined]
    workers.loop.engine.run_together = calls  # type: ignore[attr-defined]
    Sender.send = mortal_send  # type: ignore[method-assign]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", choices=STEPS, required=True)
    parser.add_argument("--at", type=int, required=True)
    own, rest = parser.parse_known_args()
    doom(Fate(own.step, own.at))
    sys.exit(main(rest))
