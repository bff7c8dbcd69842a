"""What was leased begins behind the calls to Redis that are made then, in order, and is counted meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from notifier.dispatch.calls import Leased, Settlement
from notifier.rules.policies import Policies
from notifier.rules.policy import Category
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from workers.circuits import Circuits
from workers.in_flight import TURNS, Flights
from workers.numbers import Numbers
from workers.sender import Sender, returned
from workers.wiring import build_tuning

SETTINGS = parse_settings("providers: {fcm: {client: console}}")


class Recorder:
    """In the place of the sender: notes what it is given, and whether the first step of a send has been made."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.began: list[str] = []

    async def send(self, leased: Leased, _category: Category, _send_by: float) -> Settlement:
        """Note it, and give it back."""
        self.began.append(leased.job_id)
        await asyncio.sleep(0)
        return returned(leased)


def flights(sender: Recorder) -> Flights:
    """What a worker has in flight, before anything is."""
    policies: Policies = SETTINGS.policies()
    found = Flights(
        redis=None,
        worker="w",
        sender=cast("Sender", sender),
        circuits=cast("Circuits", None),
        tuning=build_tuning(SETTINGS),
        wake=asyncio.Event(),
    )
    found.use(policies, RuleTable(policies))
    return found


def leased(name: str) -> Leased:
    """A leased job of this id."""
    return Leased(name, "1", "u", "default", b"", None, 0, 0, None)


def test_a_call_that_is_written_within_some_turns_goes_before_the_sends() -> None:
    """So Redis works while this process is busy with what was leased."""

    async def story() -> None:
        sender = Recorder()
        under_way = flights(sender)
        for name in "abc":
            under_way.begin_soon(leased(name), 10.0, None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
            assert sender.began == []
        assert (len(under_way), under_way.unbegun, under_way.busy) == (3, 3, True)
        await under_way.all_begun()
        assert sender.began == ["a", "b", "c"]
        assert (len(under_way), under_way.unbegun) == (3, 0)

    asyncio.run(story())


def test_what_is_leased_meanwhile_begins_with_the_others_and_after_them() -> None:
    """Messages of a user keep their order."""

    async def story() -> None:
        sender = Recorder()
        under_way = flights(sender)
        under_way.begin_soon(leased("a"), 10.0, None)
        await asyncio.sleep(0)
        under_way.begin_soon(leased("b"), 10.0, None)
        await under_way.all_begun()
        assert sender.began == ["a", "b"]

    asyncio.run(story())


def test_nothing_is_waited_for_where_all_have_begun() -> None:
    """Nor where none was ever leased."""

    async def story() -> None:
        sender: Any = Recorder()
        under_way = flights(sender)
        await asyncio.wait_for(under_way.all_begun(), 1)
        assert not under_way.busy

    asyncio.run(story())
