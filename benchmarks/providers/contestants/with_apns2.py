"""apns2, made to work: importable on this Python, TCP_NODELAY, the right name checked. Its own batch call sends.

How many are in flight it takes from the server's limit of streams.
"""

from __future__ import annotations

import collections
import collections.abc
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.providers.task import BODY, KEY_ID, TEAM_ID, TITLE, TOPIC, Meter, Task, device_token

# Names that collections had until Python 3.10 and that hyper asks for while it is imported.
OLD_NAMES = ("Iterable", "Mapping", "MutableMapping", "MutableSet", "Sequence")


def load() -> tuple[Any, Any, Any, Any]:
    """Import apns2; gives its client, credentials and payload modules, and hyper's connections."""
    lent = [name for name in OLD_NAMES if not hasattr(collections, name)]
    for name in lent:
        setattr(collections, name, getattr(collections.abc, name))
    try:
        from apns2 import client, credentials, payload  # noqa: PLC0415
        from hyper.http20 import connection  # noqa: PLC0415
    finally:
        for name in lent:
            delattr(collections, name)
    return client, credentials, payload, connection


def main(task: Task) -> None:
    """Send batches until the time is over."""
    client_module, credentials_module, payload_module, connection_module = load()
    tls = ssl.create_default_context(cafile=task.ca_file)
    tls.set_alpn_protocols(["h2"])

    def wrap_socket(sock: socket.socket, server_hostname: str, *_: object, **__: object) -> tuple[ssl.SSLSocket, str]:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.wrap_socket(sock, server_hostname=server_hostname), "h2"

    connection_module.wrap_socket = wrap_socket
    client_module.APNsClient.LIVE_SERVER = "127.0.0.1"
    client_module.APNsClient.DEFAULT_PORT = task.port
    key_file = Path(task.folder) / f"AuthKey_{KEY_ID}.p8"
    client = client_module.APNsClient(credentials_module.TokenCredentials(str(key_file), KEY_ID, TEAM_ID))
    payload = payload_module.Payload(alert=payload_module.PayloadAlert(title=TITLE, body=BODY))

    def batch(seconds: float) -> Iterator[Any]:
        ends_at = time.perf_counter() + seconds
        while time.perf_counter() < ends_at:
            yield client_module.Notification(device_token(meter.done), payload)
            meter.done += 1

    meter = Meter()
    for seconds in (task.warm_up_s, task.seconds):
        meter.begin()
        results = client.send_notification_batch(batch(seconds), TOPIC)
        if set(results.values()) != {"Success"}:
            raise RuntimeError("a send was refused")
    meter.end()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(Task.read())
