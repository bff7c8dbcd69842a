"""Let apns2 build the request of a push, from headers and a payload that the provider has made."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from notifier.providers.apns.pyapns2.compat import APNsClient, Credentials, Payload
from notifier.providers.transport.http2.headers import literal, repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpack import HeaderTuple

# Headers that vary, or that no intermediary may remember, stay out of the compression table.
VARYING: Final = frozenset({":path", "authorization", "apns-id", "apns-expiration", "apns-collapse-id"})


class Pusher(APNsClient):
    """apns2's client, which keeps its requests instead of sending them."""

    def __init__(self) -> None:
        self._given = _Given()
        super().__init__(self._given, json_encoder=_Written)

    def build(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> tuple[list[HeaderTuple], bytes]:
        """Return the headers and the body of a request, as apns2 makes them from ours."""
        left = {name.decode(): value.decode() for name, value in headers}
        expiration = left.pop("apns-expiration", None)
        pseudo = {name: left.pop(name) for name in (":method", ":scheme", ":authority", ":path")}
        self._given.authorization = left.pop("authorization", None)
        known = {
            "topic": left.pop("apns-topic"),
            "collapse_id": left.pop("apns-collapse-id", None),
            "expiration": None if expiration is None else int(expiration),
            # apns2's own enums of these have only the members of 2019.
            "push_type": SimpleNamespace(value=left.pop("apns-push-type")),
            "priority": SimpleNamespace(value=left.pop("apns-priority")),
        }
        self.send_notification_async(pseudo[":path"].rpartition("/")[2], _Ready(body), **known)
        method, path, built_body, built = self._connection.written
        whole = {**pseudo, ":method": method, ":path": path, **built, **left}  # `left`: apns2 has no argument for it
        return [
            (literal if name in VARYING else repeated)(name.encode(), value.encode()) for name, value in whole.items()
        ], built_body


class _Notepad:
    """Replaces hyper's connection."""

    def __init__(self) -> None:
        self.written: tuple[str, str, bytes, Mapping[str, str]]

    def request(self, *written: Any) -> int:
        self.written = written
        return 0


class _Given(Credentials):
    """Credentials with a given header: the provider has signed the token, as for h2."""

    def __init__(self) -> None:
        super().__init__()
        self.authorization: str | None = None

    def create_connection(self, *_: object) -> _Notepad:
        return _Notepad()

    def get_authorization_header(self, topic: str | None) -> str | None:  # noqa: ARG002
        return self.authorization


class _Ready(Payload):
    """A payload that is JSON already: the same bytes as for h2."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self._text = text.decode()

    def dict(self) -> str:
        return self._text


class _Written(json.JSONEncoder):
    """The encoder of `_Ready`, which is JSON already."""

    def encode(self, o: Any) -> str:
        return str(o)
