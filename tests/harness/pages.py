"""Pages of docs, typed as they stand: files are saved, commands are run in order, what is shown is what is printed."""

import ast
import asyncio
import contextlib
import inspect
import random
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.support import type_in

ROOT = Path(__file__).parents[2]
COLUMNS = 80
THEIRS = "redis://localhost:6379/0"
PORTS = re.compile(r"\b26[34](?=\d\d\b|\d\[)")  # of servers that a page lets its reader start: 26379, 2640[456]
LAST = (*range(1, 7), 79, 80, 90, 91)  # two digits of these ports
BUS = 10_000  # from a port of a cluster's node to that of its bus
MARK = "=== the next step"
STEP = re.compile(r"^```sh\n(?P<typed>.*?)^```$(?:\n\n^```\n(?P<shown>.*?)^```$)?", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```\w+\n(?P<text># (?P<name>[\w.-]+\.(?:py|yaml|acl))\n.*?)^```$", re.MULTILINE | re.DOTALL)

# What is another at each run, and how much room it takes.
VOLATILE = (
    (re.compile(r"\d+:\d\d:\d\d\.\d{3}"), "12:00:00.000"),
    (re.compile(r" in [\d.]+ m?s;"), " in 1 s;"),
    (re.compile(r"^\d+\.\d s ", re.MULTILINE), "0.0 s "),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "a-job-id"),
    (re.compile(r"─+"), "─"),
    (re.compile(r" +"), " "),
)


class Step(NamedTuple):
    """What a page lets its reader type, and what it says is printed then; None: it does not say."""

    typed: str
    shown: str | None


def read(page: str) -> str:
    """A page of docs: tutorials/rates.md."""
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def steps(page: str) -> list[Step]:
    """What the page lets its reader type, in order."""
    return _steps(read(page))


def _steps(text: str) -> list[Step]:
    return [Step(found["typed"], found["shown"]) for found in STEP.finditer(text)]


def walk(page: str, folder: Path, redis_url: str, *, cold: bool = False) -> None:
    """Do in a folder what the page says: each command works, and prints what is shown below it. cold: see `type_in`."""
    text = PORTS.sub(_free_hundred(), read(page))
    for found in FILE.finditer(text):
        (folder / found["name"]).write_text(found["text"], encoding="utf-8")
    script = "".join(f"{step.typed}echo '{MARK}'\n" for step in _steps(text))
    said = type_in(script, folder, redis_url, cold=cold, COLUMNS=str(COLUMNS))
    printed = said.replace(socket.gethostname(), "web-1").split(f"{MARK}\n")
    for step, lines in zip(steps(page), printed, strict=False):
        assert len(printed) == len(steps(page)) + 1, said
        if step.shown is not None:
            assert _lines(lines) == _lines(step.shown), step.typed


def _free_hundred() -> str:
    """The digits before the last two of ports that nobody uses, with those of the bus of a cluster.

    All of them are below those of `notifier.testing.ports`, and so are their buses below the buses of those.
    """
    for hundred in random.sample(range(100, 120), 20):  # no secret
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in (100 * hundred + last for last in LAST):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port + BUS))
            return str(hundred)
    raise AssertionError("no ports are free for the servers of a page")


def python_blocks(page: str, url: str) -> list[str]:
    """What a page shows in Python, with a test's Redis in place of the reader's."""
    mine = f'redis.Redis.from_url("{url}")'
    return [block.replace(THEIRS, url).replace("redis.Redis()", mine) for block in PYTHON.findall(read(page))]


def run_blocks(page: str, url: str, **given: Any) -> dict[str, Any]:
    """Run what a page shows in Python, one block after the other; a block may await. given: the reader's own names."""
    names: dict[str, Any] = {"__name__": "page", **given}
    with asyncio.Runner() as runner:
        for block in python_blocks(page, url):
            code = compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                exec(code, names)
    return names


def _lines(text: str) -> list[str]:
    for form, instead in VOLATILE:
        text = form.sub(instead, text)
    return [line.rstrip() for line in text.splitlines()]
