"""`notifier serve` before strangers who have no token: it answers others, and its log does not grow by them."""

import logging
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from notifier.cli.serve import _token
from notifier.errors import SettingsError
from notifier.server import connections, guard, run
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, Client, serving
from tests.harness.support import eventually, write_config

OTHERS = "127.0.0.2"  # an address that no other test speaks from


@pytest.fixture
def client(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Client]:
    with serving(write_config(tmp_path, redis_server.url), TOKEN) as running:
        yield running


def connected(port: int, stack: ExitStack, address: str = "127.0.0.1") -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), 10, source_address=(address, 0)))


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; what it has answered is read."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_half_heads_are_cut(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends no whole head within the time is cut off, also behind a request that was answered."""
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    with ExitStack() as stack:
        first, second = connected(client.port, stack), connected(client.port, stack)
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: lo")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        eventually(lambda: is_closed(first) and is_closed(second), "both to be closed")


@pytest.mark.parametrize("address", ["127.0.0.1", OTHERS])
def test_a_crowd_of_half_heads_keeps_nobody_out(client: Client, address: str) -> None:
    """Hundreds of connections of one address, each with half a head: others are answered, and so is who is there."""
    with ExitStack() as stack:
        for _ in range(3 * connections.MAX_OF_ADDRESS):
            one = connected(client.port, stack, OTHERS)
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        asks = connected(client.port, stack, address)
        asks.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        asks.settimeout(10)
        assert asks.recv(100).startswith(b"HTTP/1.1 200")


def fill(one: socket.socket, requests: bytes) -> bool:
    """Whether it has been cut. As much is asked as is accepted; no answer is read."""
    one.setblocking(False)
    try:
        while True:
            one.send(requests)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


MANY: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400


def test_who_reads_no_answer_is_cut(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks on and on, and takes none of the answers, holds the connection for a while and no longer."""
    monkeypatch.setattr(connections, "TAKE_S", 0.5)
    with ExitStack() as stack:
        one = connected(client.port, stack)
        eventually(lambda: fill(one, MANY), "its end")


BROKEN: Final = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"no length\r\n"


@pytest.mark.parametrize("last", [b"", b"POST / HTTP/1.1\r\n" + b"".join(BROKEN)])
def test_who_does_not_read_the_last_answer_is_cut(client: Client, monkeypatch: pytest.MonkeyPatch, last: bytes) -> None:
    """Also where the connection was to close behind it, or a broken body follows."""
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    client.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    head = f"GET /uplot/uPlot.js HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    with ExitStack() as stack:
        one = stack.enter_context(socket.socket())
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.connect(("127.0.0.1", client.port))
        one.sendall(head.encode() + (b"\r\n" + last if last else b"Connection: close\r\n\r\n"))
        eventually(lambda: fill(one, b"G"), "its end")


def test_clients_that_read_no_answer_keep_nobody_out(
    tmp_path: Path, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold all connections for which there are files, from addresses enough: one is closed for who comes."""
    monkeypatch.setattr(connections, "TAKE_S", 3600.0)

    def paused() -> int:
        return sum(each.flow.write_paused for each in open_at(client))

    with serving(write_config(tmp_path, redis_server.url), TOKEN, files=6) as client, ExitStack() as stack:
        for n in range(3):
            one = connected(client.port, stack, f"127.0.0.{n + 2}")
            eventually(lambda one=one, n=n: fill(one, MANY) or paused() > n, "a full pipe")
        assert client("/healthz")[0] == 200
        assert len(open_at(client)) <= 3


def test_who_reads_no_answer_does_not_keep_it_from_stopping(
    tmp_path: Path, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop, it waits for what is under way a while, and no longer."""
    monkeypatch.setattr(connections, "TAKE_S", 3600.0)
    monkeypatch.setattr(run, "END_S", 1)
    with serving(write_config(tmp_path, redis_server.url), TOKEN) as client, ExitStack() as stack:
        one = connected(client.port, stack)
        eventually(lambda: fill(one, MANY) or any(each.flow.write_paused for each in open_at(client)), "a full pipe")
        one = stack.pop_all()  # open until the server has ended, which `serving` asserts
    one.close()


def open_at(client: Client) -> list[connections.LimitedProtocol]:
    return list(client.server.server_state.connections)


ENDLESS = b"POST /api/v1/notifications HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


def test_an_endless_body_without_the_token_is_cut(client: Client) -> None:
    """It is answered 401, and its connection closed."""
    with ExitStack() as stack:
        one = connected(client.port, stack)
        one.sendall(ENDLESS + b"\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        eventually(lambda: is_closed(one), "its end")


def test_a_slow_body_is_cut(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the token a body must come to its end in time."""
    monkeypatch.setattr(connections, "BODY_S", 0.5)
    with ExitStack() as stack:
        one = connected(client.port, stack)
        head = ENDLESS + f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n\r\n".encode()
        one.sendall(head + b"1\r\n{\r\n")
        assert b" 408 " in one.recv(100)
        eventually(lambda: is_closed(one), "its end")


def test_two_lengths_are_refused(client: Client) -> None:
    """Content-Length beside Transfer-Encoding is how requests are smuggled past a proxy."""
    with ExitStack() as stack:
        one = connected(client.port, stack)
        one.sendall(
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        assert b" 400 " in one.recv(100)
        eventually(lambda: is_closed(one), "its end")


def test_it_may_open_enough_files() -> None:
    """For all connections that it takes; a shell of macOS allows 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        for wanted, allowed in ((255, 256), (257, 257)):
            assert run.allow_files(wanted) == wanted
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_goes_by_the_files_that_it_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host allows fewer than it wants: else strangers could use them all up."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(run.resource, "getrlimit", lambda _: (32, 64))
    monkeypatch.setattr(run.resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert run.allow_files(run.FILES) == 64
    assert set_to == [(64, 64)]


def test_a_wish_for_web_sockets_is_not_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """It is answered as any request; nobody is advised to install a library for them."""
    asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        assert client("/healthz", **asked, Sec_WebSocket_Key="eA==")[0] == 200
    assert caplog.records == []


@pytest.mark.parametrize("asked", ["GET /healthz", "HEAD /healthz", "GET /", "GET /api/v1/live"])
def test_a_broken_body_is_the_clients_mistake(client: Client, asked: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is a 400, or, behind the begin of an answer, the end of the connection; the log has no traceback."""
    head = f"{asked} HTTP/1.1\r\n" + (f"Authorization: Bearer {TOKEN}\r\n" if "live" in asked else "")
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        at_once, later = connected(client.port, stack), connected(client.port, stack)
        at_once.sendall(head.encode() + b"".join(BROKEN))
        assert b" 400 " in at_once.recv(100)
        later.sendall(head.encode() + BROKEN[0])
        assert later.recv(100)
        later.sendall(BROKEN[1])
        eventually(lambda: is_closed(at_once) and is_closed(later), "both ends")
    assert [record for record in caplog.records if record.exc_info] == []


def test_rubbish_does_not_flood_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """What is no HTTP is told a few times in a minute."""
    with caplog.at_level(logging.WARNING, "uvicorn.error"), ExitStack() as stack:
        for _ in range(50):
            one = connected(client.port, stack)
            one.sendall(b"\x16\x03\x01rubbish\r\n\r\n")
            eventually(lambda one=one: is_closed(one), "its end")
    told = [record for record in caplog.records if record.name.startswith(("uvicorn", "asyncio"))]
    assert 0 < len(told) <= 2 * connections.MAX_SAID


def test_the_brake_says_how_many_it_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute; then it holds as before. asyncio's lines name addresses, by which they are not of other kinds."""
    brake, now = connections.Brake(), 1000.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)

    def said() -> list[str]:
        texts = [f"Exception in callback BaseEventLoop.serve(<function at {n:x}>)" for n in range(10)]
        records = [logging.LogRecord("asyncio", logging.ERROR, "", 0, text, (), None) for text in texts]
        return [record.getMessage() for record in records if brake.filter(record)]

    assert len(said()) == connections.MAX_SAID
    for _ in range(2):
        now += connections.SAID_S
        told = said()
        assert told[0].endswith("(7 more like this in the last minute)")
        assert len(told) == connections.MAX_SAID


def test_wrong_tokens_are_slowed_and_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes longer than the one before; the log has one line of the first and one of the tenth."""
    monkeypatch.setattr(guard, "SLOWER_S", 0.02)
    began = time.monotonic()
    with capture_logs() as logs:
        for n in range(10):
            assert client("/", Authorization=f"Bearer wrong-{n}")[0] == 401
    assert [line["count"] for line in logs if line["event"] == "wrong_tokens"] == [1, 10]
    assert time.monotonic() - began >= 0.02 * sum(range(11))
    assert client("/")[0] == 401, "who gives none is not slowed"
    assert client.with_token()("/")[0] == 200


def test_wrong_tokens_keep_out_nobody_who_has_the_right_one(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one address, as all of a proxy's are: the few that are made to wait leave connections for others."""
    monkeypatch.setattr(guard, "SLOWER_S", 5.0)
    monkeypatch.setattr(guard, "SLOWEST_S", 5.0)
    tried: list[int] = []
    callers_of = guard.callers_of
    monkeypatch.setattr(guard, "callers_of", lambda text: [tried.append(1), *callers_of(text)][1:])
    with ExitStack() as stack:
        for n in range(connections.MAX_OF_ADDRESS):
            wrong = connected(client.port, stack)
            wrong.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n")
            eventually(lambda n=n: len(tried) == n + 1, "it to be read")
        assert client("/healthz")[0] == 200
        assert client.with_token()("/")[0] == 200


@pytest.mark.parametrize(
    "token", [" ", "\t", "short", "a b\nc" * 10, "x" * 15, "ü" * 20, "ann act short", "ann do " + "x" * 20]
)
def test_what_can_be_guessed_is_no_token(token: str, tmp_path: Path) -> None:
    """A blank variable is a mistake, and not a server without a token."""
    with pytest.raises(SettingsError, match="NOTIFIER_SERVER_TOKEN"):
        _token({"NOTIFIER_SERVER_TOKEN": token})()
    (tmp_path / "token").write_text(token, encoding="utf-8")
    with pytest.raises(SettingsError, match="NOTIFIER_SERVER_TOKEN_FILE"):
        _token({"NOTIFIER_SERVER_TOKEN_FILE": str(tmp_path / "token")})()


@pytest.mark.parametrize("line", [f"anna act {'l' * 24}", f"board act {'a' * 24}"])
def test_a_token_or_a_name_that_is_there_twice_is_refused(line: str) -> None:
    """The log would name another person, and who may look could act."""
    with pytest.raises(SettingsError, match="line 3 has the name or the token of a line before it"):
        _token({"NOTIFIER_SERVER_TOKEN": f"board look {'l' * 24}\ncarl act {'c' * 24}\n{line}\n"})()


def test_a_wrong_line_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    """Comments and empty lines count, as an editor counts them."""
    text = f"# who may ask\n\nboard look {'l' * 24}\n\n# and act\nanna {'a' * 24}\n"
    (file := tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as told:
        _token({"NOTIFIER_SERVER_TOKEN_FILE": str(file)})()
    says = f"{file}: line 6 is neither a token alone nor a line for each name: NAME look|act TOKEN"
    assert str(told.value) == f"NOTIFIER_SERVER_TOKEN_FILE: {says}"
