"""The contract of push-throttle's providers, run over ours: `pytest test_ntfy.py`."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from ntfy_platform import Ntfy, message

from notifier import Device, InvalidNotificationError, Notification
from notifier.simulators.https import HttpsSimulator
from notifier.simulators.provider_contract import ProviderContract
from notifier.simulators.wire import Message, Reply, WireLog


class NtfySimulator(HttpsSimulator):
    """A server that answers as ntfy's does."""

    platform = "ntfy"

    def __init__(self, certificates: Any, log: WireLog, token: str) -> None:
        super().__init__(certificates=certificates, log=log)
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/", self._serve_message)]

    def expire_tokens(self) -> None:
        self._token = "another one"

    def _read_message(self, request: web.Request, body: bytes) -> Message:
        said = json.loads(body)
        known = request.headers.get("Authorization") == f"Bearer {self._token}"
        data = {"id": said["id"]} if "id" in said else {}
        return Message(said["topic"], Reply() if known else Reply(401), "", {"data": data, "title": said["title"]})

    def _respond(self, reply: Reply, message_id: str) -> web.Response:  # noqa: ARG002
        return web.json_response({}, status=reply.status, headers=reply.all_headers())


def test_data_names_no_other_topic() -> None:
    """What is sent to one phone goes to no other, whatever the data say."""
    sent = Notification("42", [Device("ntfy", "mine")], "Hello", "World", data={"topic": "theirs", "id": "7"})
    assert json.loads(message(sent, "mine")) == {"id": "7", "topic": "mine", "title": "Hello", "message": "World"}


def test_the_topic_counts_as_a_part_of_the_message() -> None:
    """What is accepted fits, with the longest topic too."""
    fits = Notification("42", [Device("ntfy", "t" * 64)], "Hello", "x" * 3986)
    Ntfy().check(fits)
    with pytest.raises(InvalidNotificationError, match="makes 4097 bytes on the wire to ntfy; at most 4096"):
        Ntfy().check(replace(fits, title="Hello!"))


class TestNtfy(ProviderContract):
    platform = "ntfy"
    collapses = False
    expires = False
    gone = frozenset({410})
    rejected, dead, busy, fault = Reply(413), Reply(410), Reply(429), Reply(403)
    environ = {"NTFY_TOKEN": "tk_secret"}

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("ntfy", f"topic-of-phone-{number:06d}")

    def simulator(self, certificates: Any, log: WireLog) -> NtfySimulator:
        return NtfySimulator(certificates, log, "tk_secret")

    def section(self, simulator: Any) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def secrets(self) -> list[str]:
        return ["tk_secret"]
