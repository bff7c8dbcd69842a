"""What is used of h2 beyond its public names is still there and means the same; else say so, and where to look."""

import ast
from importlib.metadata import version
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer

from notifier.providers.transport.http2 import lean as http2_lean
from notifier.providers.transport.http2 import wire as http2_wire
from notifier.providers.transport.http2.headers import literal
from notifier.providers.transport.http2.lean import LeanH2

OURS = {"_until_sweep", "_put", "_is_ours"}
REQUEST = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]


def inner_names(module: object) -> set[str]:
    """The attributes with an underscore that a module's code names, but for its own classes' and `__dunders__`."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name for name in named | defined if name.startswith("_") and not name.startswith("__")}


def test_names() -> None:
    """Each inner name of h2 that the short way uses is one of h2's: after an update, one that is gone is named here."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, REQUEST)
    inside = [client, client.streams[1], FrameBuffer()]
    used = inner_names(http2_lean) - OURS
    assert "_receive_goaway_frame" in used
    gone = sorted(name for name in used if not any(hasattr(part, name) for part in inside))
    assert not gone, (
        f"h2 {version('h2')} has no {', '.join(gone)} any more: see notifier/providers/transport/http2/lean.py"
    )


def test_the_wire_uses_public_names_alone() -> None:
    """But for that one module nothing reaches into h2."""
    tree = ast.parse(Path(http2_wire.__file__).read_text(encoding="utf-8"))
    reached = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "_h2"
    }
    assert reached
    assert {name for name in reached if name.startswith("_")} == set()


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "h2"])
def test_streams_finish_after_a_goaway(ours: bool) -> None:
    """The streams up to a GOAWAY's last one are answered after it. The day h2 does so itself, ours may go."""
    client = LeanH2() if ours else H2Connection(H2Configuration(client_side=True))
    server = H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    client.receive_data(server.data_to_send())
    headers = [literal(name, value) for name, value in REQUEST]
    client.open_request(1, headers) if ours else client.send_headers(1, headers)
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(b":status", b"200")], end_stream=True)
    answer = server.data_to_send()
    server.close_connection(last_stream_id=1, additional_data=b'{"reason": "Shutdown"}')
    goaway = server.data_to_send()
    if not ours:
        with pytest.raises(ProtocolError):
            client.receive_data(goaway + answer)
        return
    events = client.receive_data(goaway + answer)
    kinds = [type(event) for event in events]
    assert kinds.index(ConnectionTerminated) < kinds.index(ResponseReceived)
