"""Who must go where there are too many connections: the one whose client has been slow longest."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, patch

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from notifier.server import connections
from notifier.server.connections import Crowd, LimitedProtocol


class Client:
    """A connection from an address, whose client has been slow since a moment; None: it is not."""

    def __init__(self, crowd: Crowd, since: float | None, address: str = "ann") -> None:
        self.crowd, self.since, self.address = crowd, since, address
        crowd.admit(self)  # type: ignore[arg-type]

    def slow_since(self) -> float | None:
        return self.since

    def cut(self) -> None:
        self.crowd.discard(self)  # type: ignore[arg-type]


def test_the_slowest_makes_room() -> None:
    """And none that reads and asks; if all do, the new one must go."""
    crowd = Crowd(3)
    early, late, well = (Client(crowd, since) for since in (3.0, 5.0, None))
    new = Client(crowd, None)
    assert crowd == {late, well, new}
    newer = Client(crowd, None)
    assert crowd == {well, new, newer}
    Client(crowd, None)
    assert crowd == {well, new, newer}
    assert early not in crowd


def test_an_address_that_has_too_many_pays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have been slow for longer."""
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 2)
    crowd = Crowd(9)
    other, first, second = Client(crowd, 1.0, "bob"), Client(crowd, 2.0), Client(crowd, None)
    third = Client(crowd, None)
    assert crowd == {other, second, third}
    Client(crowd, 3.0)
    assert crowd == {other, second, third}
    assert first not in crowd


async def test_a_client_is_slow_from_the_first_that_it_owes() -> None:
    """A head, or room in its buffer; once it owes neither it is not slow. When it has gone, it takes no place."""
    one = LimitedProtocol.__new__(LimitedProtocol)
    one.loop, one.flow, one.transport, one.crowd = asyncio.get_running_loop(), Mock(), Mock(), Crowd(1)
    one._deadline = one._untaken = None
    assert one.slow_since() is None
    one.pause_writing()
    since = one.slow_since()
    one._owe_head()
    assert since is not None
    assert one.slow_since() == since
    one.resume_writing()
    assert one.slow_since() is not None
    one._has_head()
    assert one.slow_since() is None
    one.crowd.add(one)
    with patch.object(H11Protocol, "connection_lost"):
        one.connection_lost(None)
    assert not one.crowd
