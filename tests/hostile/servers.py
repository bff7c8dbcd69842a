"""Servers that do what no server should: blocking sockets and raw bytes, in threads of their own.

A `HostileServer` runs a script on each connection until it is healed; from then on it serves well. It counts the
requests that arrived whole and the answers that it gave, each by the message's own id.
"""

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from hpack import Decoder, Encoder

from notifier.simulators.certificates import Certificates

PATIENCE_S: Final = 20.0  # of a server's socket: a script that waits for a client that is gone ends by it
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION, ALTSVC = range(11)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
TABLE_SIZE, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 3, 4, 5


class HostileServer:
    """Listens on a free port of 127.0.0.1, in a `with` block. script: what is done with each connection."""

    def __init__(
        self, certificates: Certificates, script: Callable[[Any], None], well: Callable[[Any], None], peer: Any
    ) -> None:
        self._script, self._well, self._peer = script, well, peer
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificates.cert_file, certificates.key_file)
        if alpn := getattr(peer, "alpn", None):
            self._tls.set_alpn_protocols(alpn)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.healed = threading.Event()
        self.connections = 0
        self.arrived: Counter[str] = Counter()
        self.answered: defaultdict[str, list[int]] = defaultdict(list)
        self.hung_up = threading.Event()  # a client has left a flood

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.healed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def heal(self) -> None:
        """Serve well from now on, as after a restart: what was connected is cut."""
        self.healed.set()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSLSocket's own goes on in the clear

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open.add(sock)
        raw = sock
        with contextlib.suppress(OSError, EOFError, ValueError), sock:
            sock.settimeout(PATIENCE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = self._tls.wrap_socket(sock, server_side=True)
            with self._lock:
                self._open.discard(raw)
                self._open.add(sock)
            with sock:
                (self._well if self.healed.is_set() else self._script)(self._peer(sock, self))
        with self._lock:
            self._open -= {raw, sock}


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: ssl.SSLSocket, server: HostileServer) -> None:
        self.sock, self.server = sock, server

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def flood(self, unit: bytes, *, times: int = 300) -> None:
        """Send the same thing for ever, until the client hangs up."""
        try:
            while not self.server.healed.is_set():
                self.send(unit * times)
        except OSError:
            if not self.server.healed.is_set():
                self.server.hung_up.set()

    def reset(self) -> None:
        """Cut the connection as a crash does."""
        raw = self.sock.fileno()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert raw >= 0
        self.sock.close()

    def wait(self) -> None:
        """Read, and say nothing, until the client hangs up."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65_536):
                pass

    def exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.sock.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame, right or wrong."""
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", *pair) for pair in pairs))


def block(*headers: tuple[bytes, bytes]) -> bytes:
    """A header block that uses no table, so that any may come before and after it."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list(headers), huffman=False)


class H2Peer(Peer):
    """HTTP/2 as raw frames."""

    alpn = ("h2",)

    def __init__(self, sock: ssl.SSLSocket, server: HostileServer) -> None:
        super().__init__(sock, server)
        self._decoder = Decoder()
        self._ids: dict[int, str] = {}

    def begin(self, *pairs: tuple[int, int]) -> None:
        """Take the preface and say how many streams there may be."""
        assert self.exactly(len(PREFACE)) == PREFACE
        self.send(settings((MAX_STREAMS, 1000), *pairs))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while True:
            high, low, kind, flags, stream = struct.unpack(">HBBBL", self.exactly(9))
            yield kind, flags, stream, self.exactly((high << 8) + low)

    def requests(self, *, pongs: bool = True) -> Iterator[int]:
        """The streams of the requests as they arrive whole."""
        for kind, flags, stream, payload in self.frames():
            if kind == HEADERS:
                headers = dict(self._decoder.decode(payload, raw=True))
                self._ids[stream] = headers[b"apns-id"].decode()
            elif kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK))
            elif kind == PING and not flags & ACK and pongs:
                self.send(frame(PING, ACK, payload=payload))
            if kind in {HEADERS, DATA} and flags & END_STREAM:
                self.server.arrived[self._ids[stream]] += 1
                yield stream

    def first(self) -> int:
        """The stream of the first request."""
        return next(self.requests())

    def answer(self, stream: int, status: bytes = b"200", *, flags: int = END_HEADERS | END_STREAM) -> bytes:
        """An answer's HEADERS, noted as given; to be sent by the caller."""
        if status.isdigit() and len(status) == 3:
            self.server.answered[self._ids[stream]].append(int(status))
        return frame(HEADERS, flags, stream, block((b":status", status)))


def serve_http2_well(peer: H2Peer) -> None:
    """Take every message."""
    peer.begin()
    for stream in peer.requests():
        peer.send(peer.answer(stream))


@dataclass(frozen=True)
class Request:
    """A request of HTTP/1.1. name: whom it is for, the device's token or the path of a subscription; of none, ''."""

    path: str
    name: str


class H1Peer(Peer):
    """HTTP/1.1 as bytes."""

    def __init__(self, sock: ssl.SSLSocket, server: HostileServer) -> None:
        super().__init__(sock, server)
        self._read = b""

    def _fill(self) -> None:
        part = self.sock.recv(65_536)
        if not part:
            raise EOFError
        self._read += part

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            self._fill()
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def _line(self) -> bytes:
        while b"\r\n" not in self._read:
            self._fill()
        return self._take(self._read.index(b"\r\n") + 2)[:-2]

    def requests(self) -> Iterator[Request]:
        """The requests as they arrive whole."""
        while True:
            path = self._line().split()[1].decode()
            headers = {}
            while field := self._line():
                key, _, value = field.partition(b":")
                headers[key.strip().lower()] = value.strip()
            body = self._take(int(headers.get(b"content-length", 0)))
            name = "" if path == "/token" else path
            if path.startswith("/v1/"):
                name = json.loads(body)["message"]["token"]
            self.server.arrived[name] += 1
            yield Request(path, name)

    def answer(self, request: Request, status: int, body: bytes = b"{}", *extra: bytes) -> bytes:
        """A right answer, noted as given; to be sent by the caller."""
        self.server.answered[request.name].append(status)
        return head(b"%d Whatever" % status, b"Content-Length: %d" % len(body), *extra) + body

    def good(self, request: Request) -> bytes:
        """What the service answers when all is well."""
        if request.path == "/token":
            return self.answer(request, 200, b'{"access_token": "ya29.good", "expires_in": 3600}')
        if request.path.startswith("/v1/"):
            return self.answer(request, 200, b'{"name": "projects/p/messages/1"}')
        return self.answer(request, 201)


def head(status: bytes, *fields: bytes) -> bytes:
    """The head of an answer, right or wrong."""
    return b"\r\n".join((b"HTTP/1.1 " + status, *fields, b"", b""))


def serve_http1_well(peer: H1Peer) -> None:
    """Take every message."""
    for request in peer.requests():
        peer.send(peer.good(request))
