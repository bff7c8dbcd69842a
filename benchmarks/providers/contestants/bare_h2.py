"""The ceiling of a client on h2: one socket, one loop, h2 with our settings, and nothing else.

No event loop, no deadline, no token to renew, no answer read; the body and the headers are made beforehand, save
the path and the apns-id. It does honour the windows: 500 bodies at once are more than the first one admits.
"""

from __future__ import annotations

import json
import math
import socket
import ssl
import time

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamEnded

from benchmarks.providers.task import BODY, TITLE, TOPIC, Meter, Task, device_token

SETTINGS = H2Configuration(
    client_side=True,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
)
PAYLOAD = json.dumps({"aps": {"alert": {"title": TITLE, "body": BODY}}}, separators=(",", ":")).encode()
READ_BYTES = 262_144


def main(task: Task) -> None:
    """Send until the time is over."""
    tls = ssl.create_default_context(cafile=task.ca_file)
    tls.set_alpn_protocols(["h2"])
    with tls.wrap_socket(socket.create_connection(("127.0.0.1", task.port)), server_hostname="127.0.0.1") as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        work(task, sock)


def work(task: Task, sock: ssl.SSLSocket) -> None:
    """Keep so many streams open on this socket."""
    h2 = H2Connection(SETTINGS)
    h2.initiate_connection()
    sock.sendall(h2.data_to_send())
    h2.receive_data(sock.recv(READ_BYTES))  # the server's settings
    meter = Meter()
    fixed = [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"127.0.0.1:%d" % task.port),
        (b"apns-topic", TOPIC.encode()),
        (b"apns-push-type", b"alert"),
        (b"apns-priority", b"10"),
        (b"authorization", b"bearer " + b"x" * 220),  # as long as a provider token
    ]
    number = open_streams = 0
    next_id = 1
    begins_at = time.perf_counter() + task.warm_up_s
    ends_at = math.inf
    while (now := time.perf_counter()) < ends_at:
        if ends_at == math.inf and now >= begins_at:
            ends_at = now + task.seconds
            meter.begin()
        while open_streams < task.in_flight and h2.outbound_flow_control_window >= len(PAYLOAD):
            own = [
                (b":path", b"/3/device/" + device_token(number).encode()),
                (b"apns-id", b"00000000-0000-4000-8000-%012d" % number),
            ]
            h2.send_headers(next_id, fixed + own)
            h2.send_data(next_id, PAYLOAD, end_stream=True)
            next_id += 2
            number += 1
            open_streams += 1
        sock.sendall(h2.data_to_send())
        for event in h2.receive_data(sock.recv(READ_BYTES)):
            if isinstance(event, StreamEnded):
                open_streams -= 1
                meter.done += 1
            elif isinstance(event, ResponseReceived) and (b":status", b"200") not in event.headers:
                raise RuntimeError("a send was refused")
    meter.end()


if __name__ == "__main__":
    main(Task.read())
