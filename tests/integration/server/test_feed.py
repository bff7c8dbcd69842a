"""The stream of `notifier serve` over real HTTP: what workers do arrives as it happens, and a stream costs little."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from notifier.server import feed
from tests.harness.serve_rig import TOKEN, Client, basic, serving
from tests.harness.support import eventually, fcm, note, notifier, worker, write_config

LIVE = "/api/v1/live"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "EVERY_S", 0.02)
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.05)


SECTIONS = {"user": {"windows": ["1/1h"]}}


class Stream:
    """One who watches."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._answer = answer

    def next(self) -> tuple[str, Any]:
        """The next event: its name and its data. A comment is one without data."""
        name = ""
        while line := self._answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                return name, json.loads(value, parse_constant=pytest.fail)  # a browser takes no Infinity
            elif not field and value:
                return "comment", value.strip()
        return "end", None

    def until(self, name: str) -> Any:
        """The data of the next event of a name."""
        while (found := self.next())[0] != name:
            assert found[0] != "end"
        return found[1]


@contextmanager
def watching(ask: Client, **headers: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=60)
    try:
        connection.request("GET", LIVE, headers=headers)
        yield Stream(connection.getresponse())
    finally:
        connection.close()


def test_it_tells_what_workers_do(config: Path) -> None:
    """The counts of a stream are those of what was sent."""
    with serving(config) as ask, watching(ask) as stream, notifier(config) as producer:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        minutes = {each["at"]: each for each in stream.until("numbers")["minutes"]}
        assert len(minutes) == feed.MINUTES
        assert stream.next()[0] == "comment"
        for n in range(3):
            producer.send(note(f"u{n}", "hi", fcm(f"u{n}"), category="chat"))
        producer.send(note("u0", "again", fcm("u0"), category="chat"))
        with worker(config, name="one"):
            while sum(each["ended"].get("delivered", 0) for each in minutes.values()) != 3:
                minutes |= {each["at"]: each for each in stream.until("numbers")["minutes"]}
        assert sum(each["accepted"] for each in minutes.values()) == 4
        assert sum(each["lateness"]["count"] for each in minutes.values()) == 3
        assert minutes[max(minutes)] in json.loads(ask("/api/v1/stats?minutes=60")[1])["minutes"]


def test_it_is_bounded(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many may watch; the next one is refused, until one goes. Who only asks for the head holds nothing."""
    monkeypatch.setattr("notifier.server.feed.MAX_STREAMS", 3)
    with serving(config) as ask, ExitStack() as stack:
        assert ask.ask("HEAD", LIVE, None)[0] == 200
        first = ExitStack()
        first.enter_context(watching(ask)).until("numbers")
        for _ in range(2):
            stack.enter_context(watching(ask)).until("numbers")
        status, text, headers = ask(LIVE)
        assert (status, "watch" in text, headers["content-type"]) == (503, True, "application/problem+json")
        first.close()

        def has_room() -> bool:
            with watching(ask) as stream:
                return stream.status == 200

        assert eventually(has_room, "room for another")


def test_only_who_may_read_may_watch(config: Path) -> None:
    """It needs the token, as all that is told."""
    with serving(config, TOKEN) as ask:
        assert ask(LIVE)[0] == 401
        with watching(ask, Authorization=basic(TOKEN)) as stream:
            assert stream.status == 200
            stream.until("numbers")


def test_it_ends_with_the_server(config: Path) -> None:
    """A server that is told to stop ends its streams: else it would wait for them for ever."""
    with ExitStack() as stack:
        ask = stack.enter_context(serving(config))
        stream = stack.enter_context(watching(ask))
        stream.until("numbers")
        ask.server.should_exit = True
        while (found := stream.next()[0]) != "end":
            assert found in {"comment", "numbers"}


def test_over_a_redis_that_hangs(tmp_path: Path) -> None:
    """It says so, and goes on; the others are answered as if nobody watched."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        config = write_config(tmp_path, "", redis={"url": url, "socket_timeout": "1s"})
        with serving(config, answer_s=0.3) as ask, watching(ask) as stream:
            assert "does not answer" in stream.until("trouble")["detail"]
            assert stream.next()[0] == "comment"
            assert ask("/healthz")[0] == 200
