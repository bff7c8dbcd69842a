"""How a push becomes a request: apns2 builds it, from headers and a payload that the provider has made."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from notifier.providers.apns.pyapns2.compat import APNsClient, Credentials, Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifier.providers.apns.pyapns2.requests import Request


class Connection(Protocol):
    """The part of a connection that a push needs."""

    def add(self, authority: str, headers: Mapping[str, str]) -> None:
        """Send the next request with this authority and with these headers more."""
        ...


class Pusher(APNsClient):
    """apns2's client over a connection that is given to it, and that `add` tells what apns2 has no argument for."""

    def __init__(self, connection: Connection) -> None:
        self._credentials = _Given(connection)
        super().__init__(self._credentials, json_encoder=_Written)

    def push(self, request: Request) -> None:
        """Open a stream for this request."""
        headers = {name.decode(): value.decode() for name, value in request.headers}
        expiration = headers.pop("apns-expiration", None)
        path, authority, _, _ = (headers.pop(f":{name}") for name in ("path", "authority", "scheme", "method"))
        self._credentials.authorization = headers.pop("authorization", None)
        known = {
            "topic": headers.pop("apns-topic"),
            "collapse_id": headers.pop("apns-collapse-id", None),
            "expiration": None if expiration is None else int(expiration),
            # apns2's own enums of these have only the members of 2019.
            "push_type": SimpleNamespace(value=headers.pop("apns-push-type")),
            "priority": SimpleNamespace(value=headers.pop("apns-priority")),
        }
        self._connection.add(authority, headers)
        self.send_notification_async(path.rpartition("/")[2], _Ready(request.body), **known)


class _Given(Credentials):
    """Credentials that are handed in: the connection is made and the token signed from the same settings as for h2."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.authorization: str | None = None

    def create_connection(self, *_: object) -> Connection:
        return self._connection

    def get_authorization_header(self, topic: str | None) -> str | None:  # noqa: ARG002
        return self.authorization


class _Ready(Payload):
    """A payload that is JSON already: the same bytes as for h2, of all that a notification may carry."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self._text = text.decode()

    def dict(self) -> str:
        return self._text


class _Written(json.JSONEncoder):
    """The encoder for what is JSON already."""

    def encode(self, o: Any) -> str:
        return str(o)
