"""Broadcast channels in the APNs simulator: Apple's checks of requests that manage channels or send to one.

They follow Apple's pages "Sending channel management requests to APNs", "Sending broadcast push notification requests
to APNs" and "Handling error responses from APNs", not the code of the client.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from notifier.simulators.checks.apns import PRIORITIES, Checks, Verdict, arrival_fields, id_in, is_uuid, read_payload
from notifier.simulators.checks.apns_push_types import is_live_activity
from notifier.simulators.wire import Refusal, Reply

BROADCASTS: Final = "/4/broadcasts/apps/"
APPS: Final = "/1/apps/"
PAYLOAD_BYTES: Final = 5120
MAX_CHANNELS: Final = 10_000
ID_BYTES: Final = 256
BODY_FIELDS: Final = frozenset({"message-storage-policy", "push-type"})
REQUEST_ID: Final = "apns-request-id"


@dataclass
class Channels:
    """The channels of all apps. made: by bundle id and channel id, whether it stores its last message.

    without_feature: the bundle ids for which broadcasts are not enabled.
    """

    checks: Checks
    made: dict[str, dict[str, bool]] = field(default_factory=dict)
    without_feature: set[str] = field(default_factory=set)
    max_channels: int = MAX_CHANNELS

    def manage(self, headers: Mapping[str, str], body: bytes) -> Verdict:
        return self._answer(headers, lambda: self._manage(headers, body))

    def broadcast(self, headers: Mapping[str, str], body: bytes, at_us: int) -> Verdict:
        """Judge a message to a channel; the verdict's token is 'channel:' and the channel id."""
        payload: dict[str, Any] = {}
        app = headers[":path"].removeprefix(BROADCASTS)

        def judge() -> Reply:
            _check_method(headers, "POST")
            stores = self._channel(headers, self._app(app))
            _check_push_type(headers.get("apns-push-type"), "liveactivity")
            _check_expiration(headers.get("apns-expiration"), stores=stores)
            if headers.get("apns-priority") not in PRIORITIES:
                raise Refusal(400, "BadPriority")
            payload.update(read_payload(body, PAYLOAD_BYTES, bad="BadRequestPayload"))
            if not is_live_activity(payload) or payload["aps"]["event"] == "start":
                raise Refusal(400, "BadRequestParams")  # Apple accepts it, and no device shows it: a test should fail
            return Reply(headers={"apns-unique-id": str(uuid.uuid4())})

        verdict = self._answer(headers, judge)
        fields = arrival_fields(headers, payload, at_us) | {"app": app}
        return replace(verdict, token=f"channel:{headers.get('apns-channel-id', '')}", fields=fields)

    def _answer(self, headers: Mapping[str, str], judge: Callable[[], Reply]) -> Verdict:
        trusted = False
        try:
            self.checks.check_provider(headers)
            trusted = True
            _check_id(headers.get(REQUEST_ID, ""))
            reply = judge()
        except Refusal as refusal:
            reply = refusal.reply
        return Verdict("", reply, id_in(headers, REQUEST_ID), {}, trusted, REQUEST_ID.encode())

    def _manage(self, headers: Mapping[str, str], body: bytes) -> Reply:
        app, slash, place = headers.get(":path", "").removeprefix(APPS).partition("/")
        if not headers.get(":path", "").startswith(APPS) or not slash or place not in {"channels", "all-channels"}:
            raise Refusal(404, "BadPath")
        of_app = self.made.setdefault(self._app(app), {})
        if place == "all-channels":
            _check_method(headers, "GET")
            return Reply(body=json.dumps({"channels": list(of_app)}))
        _check_method(headers, "POST", "GET", "DELETE")
        if headers[":method"] == "POST":
            return self._create(of_app, body)
        stores, channel_id = self._channel(headers, app), headers["apns-channel-id"]
        if headers[":method"] == "GET":
            return Reply(body=json.dumps({"message-storage-policy": int(stores), "push-type": "LiveActivity"}))
        del of_app[channel_id]
        return Reply(204)

    def _create(self, of_app: dict[str, bool], body: bytes) -> Reply:
        wanted = read_payload(body, PAYLOAD_BYTES, bad="BadRequestPayload")
        if wanted.keys() - BODY_FIELDS or wanted.get("message-storage-policy") not in {0, 1}:
            raise Refusal(400, "BadRequestParams")
        _check_push_type(wanted.get("push-type"), "LiveActivity")
        if len(of_app) >= self.max_channels:
            raise Refusal(400, "CannotCreateChannelConfig")
        channel_id = base64.b64encode(secrets.token_bytes(16)).decode()
        of_app[channel_id] = wanted["message-storage-policy"] == 1
        return Reply(201, headers={"apns-channel-id": channel_id})

    def _app(self, app: str) -> str:
        """Return the bundle id of a path, or refuse an app that may not broadcast."""
        if ".push-type." in app:
            raise Refusal(400, "TopicDisallowed")
        if app not in self.checks.topics:
            raise Refusal(403, "TopicMismatch")
        if app in self.without_feature:
            raise Refusal(400, "FeatureNotEnabled")
        return app

    def _channel(self, headers: Mapping[str, str], app: str) -> bool:
        """Return whether the channel in the headers stores its last message, or refuse an unknown one."""
        channel_id = headers.get("apns-channel-id")
        if not channel_id:
            raise Refusal(400, "MissingChannelId")
        try:
            raw = base64.b64decode(channel_id, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, "BadChannelId") from None
        if not raw or len(raw) > ID_BYTES:
            raise Refusal(400, "BadChannelId")
        stores = self.made.get(app, {}).get(channel_id)
        if stores is None:
            raise Refusal(400, "ChannelNotRegistered")
        return stores


def _check_method(headers: Mapping[str, str], *allowed: str) -> None:
    if headers.get(":method") not in allowed:
        raise Refusal(405, "MethodNotAllowed")


def _check_id(request_id: str) -> None:
    if request_id and not is_uuid(request_id):
        raise Refusal(400, "BadMessageId")


def _check_push_type(given: object, right: str) -> None:
    if given is None:
        raise Refusal(400, "MissingPushType")
    if given != right:
        raise Refusal(400, "InvalidPushType")


def _check_expiration(given: str | None, *, stores: bool) -> None:
    if given is None or not (given.isascii() and given.isdigit()) or (given != "0" and not stores):
        raise Refusal(400, "BadExpirationDate")
