"""The console provider: what it shows, and what it never shows."""

import asyncio
import errno
import io
import math
import os
import sys
from typing import Any

import pytest

from notifier.notification import Device, Notification
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Answer, Dispatch, Outcome

TOKEN = "a1b2c3d4" * 8


def push(stream: io.StringIO | None, **fields: Any) -> Answer:
    device = Device("apns", TOKEN)
    notification = Notification(user="42", devices=[device], category="chat", **fields)

    async def run() -> Answer:
        provider = ConsoleProvider("apns", stream=stream)
        answer = await provider.send(Dispatch("job-1", device, notification, None, math.inf))
        await provider.close()
        return answer

    return asyncio.run(run())


def test_each_push_is_one_line_and_delivered() -> None:
    """One push prints one line, whatever its title holds, and is delivered."""
    stream = io.StringIO()
    assert push(stream, title="Dinner\nat \x1b[31meight", body="secret") == Answer(Outcome.DELIVERED)
    (line,) = stream.getvalue().splitlines()
    assert "user='42' category=chat" in line
    assert "Dinner" in line
    assert "\x1b" not in line


class Full(io.StringIO):
    """A stream on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_our_own_fault() -> None:
    """No attempt is spent for it, and the route says what is to be mended."""
    assert push(Full()) == Answer(Outcome.FAULT, reason="cannot print: [Errno 28] No space left on device")


def test_neither_token_nor_body_is_shown() -> None:
    """A console is a log: the token is masked and of the body only the length is told."""
    stream = io.StringIO()
    push(stream, body="my secret", data={"my": "secret"})
    assert TOKEN not in stream.getvalue()
    assert "secret" not in stream.getvalue()
    assert "body of 9 characters" in stream.getvalue()


def test_it_prints_to_the_standard_output_of_the_moment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a stream it follows sys.stdout, also where that is replaced after the import."""
    push(None, title="Hi")
    assert "Hi" in capsys.readouterr().out
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stdout", replaced)
    push(None, title="Hi")
    assert "Hi" in replaced.getvalue()
