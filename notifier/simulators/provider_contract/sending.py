"""The promises of every provider, over a network or to a terminal."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from notifier.log import QUIET
from notifier.providers.contract import Outcome
from notifier.simulators.provider_contract.stage import ANSWER_US, SECOND_US, Stage, Subject, on_stage
from notifier.simulators.wire import Reply


class SendingContract(Subject):
    """The promises of every provider, over a network or to a terminal.

    networked: it sends to a server. collapses: the collapse id reaches the server. expires: the time left does.
    """

    networked: ClassVar[bool] = True
    collapses: ClassVar[bool] = True
    expires: ClassVar[bool] = True

    def every_reply(self) -> Sequence[Sequence[Reply]]:
        """Return scripts of the server, each for one message; an empty script if there is no server."""
        return [()]

    def secrets(self) -> Sequence[str]:
        """Return the parts of the provider's configuration that must never be seen, in a log for example."""
        return ()

    def stage(self, *, timeout_us: int = ANSWER_US, endpoint: str | None = None) -> Any:
        """An asynchronous context with a `Stage`. endpoint: in place of the simulator's."""
        raise NotImplementedError

    @on_stage()
    async def test_delivered_once_and_whole(self, s: Stage) -> None:
        """A message arrives once, with its content, and is answered DELIVERED without a wait."""
        device = await s.device()
        answer = await s.send(device, title="Grüße", body="…", data={"id": "7"}, badge=0, sound="p", collapse_id="c")
        assert (answer.outcome, answer.reason, answer.retry_after_us) == (Outcome.DELIVERED, "", None)
        (arrival,) = await s.arrivals()
        assert (arrival.platform, arrival.title, arrival.status) == (self.platform, "Grüße", 200)
        if self.networked:
            assert (arrival.token, arrival.data) == (self.scripted_as(device), {"id": "7"})
            assert arrival.collapse_id == ("c" if self.collapses else None)

    @on_stage()
    async def test_ten_sends_to_one_device_have_ten_answers(self, s: Stage) -> None:
        """Concurrent sends to one device are each answered, and arrive in the order of the calls."""
        device = await s.device()
        answers = await asyncio.gather(*(s.send(device, title=f"n{n}") for n in range(10)))
        assert [answer.outcome for answer in answers] == [Outcome.DELIVERED] * 10
        assert [arrival.title for arrival in await s.arrivals()] == [f"n{n}" for n in range(10)]

    @on_stage()
    async def test_two_hundred_at_once(self, s: Stage) -> None:
        """200 sends at once, to as many devices, are all answered and arrive once each."""
        devices = [await s.device() for _ in range(200)]
        answers = await asyncio.gather(*(s.send(device) for device in devices))
        assert Counter(answer.outcome for answer in answers) == {Outcome.DELIVERED: 200}
        assert len({arrival.token for arrival in await s.arrivals()}) == len(await s.arrivals()) == 200

    @on_stage()
    async def test_past_its_moment_nothing_is_sent(self, s: Stage) -> None:
        """After `send_by` a send answers UNSENT, and nothing arrives."""
        late = await s.send(within_s=-0.001)
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        assert await s.arrivals() == []
        assert (await s.send()).outcome is Outcome.DELIVERED

    @on_stage()
    async def test_a_closed_provider_sends_nothing(self, s: Stage) -> None:
        """After `close`, which may be called twice, a send is UNSENT and nothing arrives."""
        assert (await s.send()).outcome is Outcome.DELIVERED
        await s.provider.close()
        await s.provider.close()
        answer = await s.send()
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Closed")
        assert len(await s.arrivals()) == 1

    def test_nothing_is_given_away(self, caplog: pytest.LogCaptureFixture) -> None:
        """No debug log and no repr shows a whole token, a title, a body, data, or a secret of the configuration."""
        caplog.set_level(logging.DEBUG)
        for name in QUIET:  # as `configure_logging` leaves them, whatever the level
            caplog.set_level(logging.WARNING, name)

        @on_stage(timeout_us=SECOND_US)
        async def law(self: SendingContract, s: Stage) -> None:
            content: dict[str, Any] = {"title": "my-title", "body": "my-body", "data": {"k": "my-data"}}
            seen: list[object] = []
            for replies in self.every_reply():
                answer = await s.send(await s.device(*replies), **content)
                seen += [answer, s.dispatch(s.devices[-1], **content)]
            if self.networked:
                await s.tell(listening=False)
                await s.tell(listening=True)
                seen.append(await s.send(**content))
            seen += [s.provider, vars(s.provider), *caplog.messages, *logs]
            text = " ".join(map(repr, seen)) + " ".join(map(str, seen))
            words = [*(d.token for d in s.devices), *self.secrets(), "my-title", "my-body", "my-data"]
            assert [word[:8] for word in words if word in text] == []

        with capture_logs() as logs:
            law(self)
