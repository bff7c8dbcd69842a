"""Pooled HTTP/1.1 against servers that are no simulators: what a stranger's server may do to the one who asks."""

import asyncio
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.http1 import BODY_BYTES, Pool, Response, http1_lives, tls_context
from notifier.simulators.certificates import Certificates

TIMEOUT_S = 1
OK = b"HTTP/1.1 201 Created\r\n"


@asynccontextmanager
async def served(
    certificates: Certificates,
    head: bytes,
    part: bytes,
    hung_up: Callable[[], None] | None = None,
    *,
    mute: bool = False,
    max_bytes: int = BODY_BYTES,
    asked: list[bytes] | None = None,
) -> AsyncIterator[tuple[Pool, str]]:
    """A pool, and a server that answers with a head and then this part of a body, again and again for ever.

    mute: it reads, and never says a word. asked: takes the heads of the requests.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head_of_request = await reader.readuntil(b"\r\n\r\n")
        if asked is not None:
            asked.append(head_of_request)
        if mute:
            await reader.read()
        else:
            writer.write(head + b"\r\n")
        try:
            while not writer.is_closing():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)  # drain alone gives the loop no turn, in which it would see the hang-up
        except OSError:
            pass
        writer.close()
        if hung_up is not None:
            hung_up()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.cert_file, certificates.key_file)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    tls_of_pool = tls_context(certificates.ca_file, "ca_file")
    pool = Pool("webpush", tls=tls_of_pool, timeout_s=TIMEOUT_S, max_connections=2, max_bytes=max_bytes)
    async with server:
        yield pool, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await pool.close()


async def post(pool: Pool, origin: str) -> Response | Answer:
    now = asyncio.get_running_loop().time()
    return await pool.post(f"{origin}/x", b"", {}, origin=origin, send_by=now + 5)


@pytest.mark.parametrize("max_bytes", [BODY_BYTES, 1_000_000])
async def test_an_answer_without_end_is_an_answer(certificates: Certificates, max_bytes: int) -> None:
    """Of a body that does not end no more is read than is asked for, and its connection is not used again."""
    ended = asyncio.Event()
    async with served(certificates, OK, b"x" * 65_536, ended.set, max_bytes=max_bytes) as (pool, origin):
        async with asyncio.timeout(TIMEOUT_S / 2):  # it is not the pool's own that saves it
            response = await post(pool, origin)
            assert isinstance(response, Response)
            assert (response.status, len(response.body)) == (201, max_bytes)
            await ended.wait()


async def test_a_server_that_says_much_of_itself_lives(certificates: Certificates) -> None:
    """A probe asks for the page of a push service that is for browsers: its headers may be long."""
    async with served(certificates, OK + b"Content-Security-Policy: " + b"x" * 10_000 + b"\r\n", b"") as (pool, origin):
        assert await http1_lives(origin, pool.tls, TIMEOUT_S)


async def test_what_is_packed_is_not_unpacked(certificates: Certificates) -> None:
    """Each answer is asked for as it is; one that is a thousand times smaller than it gets stays so all the same."""
    bomb, asked = zlib.compress(bytes(20_000_000), wbits=31), list[bytes]()
    async with served(certificates, OK + b"Content-Encoding: gzip\r\n", bomb, asked=asked) as (pool, origin):
        response = await post(pool, origin)
        assert [b"\r\nAccept-Encoding: identity\r\n" in head for head in asked] == [True]
        assert isinstance(response, Response)
        assert (response.status, response.body) == (201, bomb[:BODY_BYTES])


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "x..example"])
async def test_a_name_that_cannot_be_looked_up_is_not_sent_to(certificates: Certificates, host: str) -> None:
    """Whatever stands in an address, nothing is raised: no resolver takes a name like that, so nothing left."""
    async with served(certificates, OK, b"") as (pool, _):
        answer = await post(pool, f"https://{host}")
        assert isinstance(answer, Answer)
        assert answer.outcome is Outcome.UNSENT


async def test_a_silent_server_has_one_timeout(certificates: Certificates) -> None:
    """The time that a connection did not need is not given to the answer: after a timeout without a word it ends."""
    async with served(certificates, b"", b"", mute=True) as (pool, origin):
        began = asyncio.get_running_loop().time()
        answer = await post(pool, origin)
        assert answer == Answer(Outcome.UNKNOWN, reason="Timeout")
        assert asyncio.get_running_loop().time() - began < 1.5 * TIMEOUT_S


@pytest.mark.parametrize(
    ("stale", "turns"),
    [(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 0), (b"HTTP/1.1 404 Not Found\r\nX-Rest: ", 10)],
    ids=["whole and not read yet", "half and read"],
)
async def test_what_came_on_an_idle_connection_is_no_answer(
    certificates: Certificates, stale: bytes, turns: int
) -> None:
    """Such as a 404, which would call the next device's token dead: its request goes over a new connection.

    turns: of the event loop, in which it may read.
    """
    say, said = threading.Event(), threading.Event()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.cert_file, certificates.key_file)

    def answer(listener: socket.socket) -> None:
        with tls.wrap_socket(listener.accept()[0], server_side=True) as first:
            first.recv(65_536)
            first.sendall(OK + b"Content-Length: 0\r\n\r\n")
            say.wait(TIMEOUT_S * 5)
            first.sendall(stale)
            said.set()
            with tls.wrap_socket(listener.accept()[0], server_side=True) as second:
                second.recv(65_536)
                second.sendall(OK + b"Content-Length: 0\r\n\r\n")
                second.recv(65_536)  # until it hangs up

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S * 5)
        server = threading.Thread(target=answer, args=[listener])
        server.start()
        client = tls_context(certificates.ca_file, "ca_file")
        pool = Pool("webpush", tls=client, timeout_s=TIMEOUT_S, max_connections=2)
        origin = f"https://127.0.0.1:{listener.getsockname()[1]}"
        answers = [await post(pool, origin)]
        say.set()
        assert said.wait(TIMEOUT_S * 5), "this thread reads nothing meanwhile"
        for _ in range(turns):
            await asyncio.sleep(0)
        answers.append(await post(pool, origin))
        await pool.close()
        await asyncio.to_thread(server.join)
    assert [response.status for response in answers if isinstance(response, Response)] == [201, 201]
