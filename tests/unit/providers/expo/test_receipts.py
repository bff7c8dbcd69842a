"""Receipts: asked for in requests of a thousand, again while Expo has none, and each kind of error told once."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import structlog.testing

from notifier.notification import Device
from notifier.providers.build import Late
from notifier.providers.expo.receipts import MAX_IDS, TRIES, Receipts

GONE = {"status": "error", "details": {"error": "DeviceNotRegistered"}}


class Expo:
    """Answers with these receipts, and keeps what it was asked for."""

    def __init__(self, receipts: Mapping[str, Any] | None) -> None:
        self._receipts = receipts
        self.asked: list[list[str]] = []
        self.reported: list[Late] = []

    async def fetch(self, body: bytes) -> Mapping[str, Any] | None:
        self.asked.append(json.loads(body)["ids"])
        return self._receipts

    async def answer(self, *tickets: str) -> None:
        """Take the tickets, and wait until none of them waits any more."""
        receipts = Receipts(self.fetch, 0.0, self.reported.append)
        for ticket in tickets:
            receipts.expect(ticket, Device("expo", f"of {ticket}"), "ann", f"job {ticket}")
        assert receipts._asking is not None
        await receipts._asking
        assert receipts._asking is None, "the next ticket begins anew"


async def test_dead_tokens_are_reported_and_each_error_is_logged_once() -> None:
    """A receipt names its device, its user and the job; one that is well, or no object, says nothing."""
    error = {"status": "error", "details": {"error": "InvalidCredentials"}}
    expo = Expo({"a": GONE, "b": {"status": "ok"}, "c": error, "d": error, "e": {"status": "error"}})
    with structlog.testing.capture_logs() as logs:
        await expo.answer("a", "b", "c", "d", "e")
    assert expo.reported == [Late(Device("expo", "of a"), "DeviceNotRegistered", "ann", "job a")]
    assert [(entry["event"], entry["reason"], entry["job_id"]) for entry in logs] == [
        ("expo_receipt", "InvalidCredentials", "job c"),
        ("expo_receipt", "unknown", "job e"),
    ]


@pytest.mark.parametrize("receipts", [None, {}, {"a": 7}])
async def test_a_receipt_that_is_missing_is_asked_for_again_but_not_for_ever(receipts: Any) -> None:
    """Expo may need half an hour, and may be away."""
    expo = Expo(receipts)
    await expo.answer("a")
    assert expo.asked == [["a"]] * TRIES
    assert expo.reported == []


async def test_no_request_has_more_ids_than_expo_takes() -> None:
    """The rest is asked for in the next one."""
    tickets = [f"t{n}" for n in range(MAX_IDS + 1)]
    expo = Expo({ticket: {"status": "ok"} for ticket in tickets})
    await expo.answer(*tickets)
    assert [len(asked) for asked in expo.asked] == [MAX_IDS, 1]
