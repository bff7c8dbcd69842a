"""`notifier shards move`, as a person runs it: a shard joins, users move to it, and the command says what is next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis
from typer.testing import CliRunner

from notifier.cli.app import app
from notifier.shards.map import home
from notifier.shards.users import list_users
from notifier.testing.embedded import EmbeddedRedis
from tests.support import note, notifier, write_config

NAMES = ("a", "b", "c")
USERS = [f"user-{n}" for n in range(40)]
JOINS = [user for user in USERS if home(user, NAMES) == "c"]


@pytest.fixture
def shards(redis_server: EmbeddedRedis) -> Iterator[dict[str, Redis]]:
    """Three empty databases of one server."""
    base = redis_server.url.rpartition("/")[0]
    clients = {name: Redis.from_url(f"{base}/{database}") for database, name in enumerate(NAMES, start=1)}
    for client in clients.values():
        client.flushdb()
    yield clients
    for client in clients.values():
        client.flushdb()
        client.close()


def config(folder: Path, redis_server: EmbeddedRedis, **joining: bool) -> Path:
    """A configuration of these shards: by name, whether it is joining."""
    base = redis_server.url.rpartition("/")[0]
    listed = [
        {"name": name, "url": f"{base}/{NAMES.index(name) + 1}"} | ({"joining": True} if joins else {})
        for name, joins in joining.items()
    ]
    return write_config(folder, "", redis={"shards": listed})


def run(path: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--config", str(path), "shards", *words])
    return done.exit_code, done.output


def test_a_shard_joins(tmp_path: Path, redis_server: EmbeddedRedis, shards: dict[str, Redis]) -> None:
    """Users move whose home it is, with what waits for them; a second run finds nobody; without one it is refused."""
    before = config(tmp_path / "before", redis_server, a=False, b=False)
    later = datetime.now(UTC) + timedelta(days=1)
    with notifier(before) as producer:
        jobs = {user: producer.send(note(user, send_at=later)) for user in USERS}
    status, said = run(before, "move")
    assert (status, "no shard is joining: set joining: true on the new one" in said) == (1, True)

    joining = config(tmp_path / "joining", redis_server, a=False, b=False, c=True)
    status, said = run(joining, "plan", "--list")
    assert (status, said.splitlines()[0]) == (0, f"{len(JOINS)} of 40 users would move ({len(JOINS) / 40:.1%})")
    assert {line.partition(" ")[0] for line in said.splitlines() if line.startswith("user-")} == set(JOINS)
    status, said = run(joining, "move")
    assert (status, said.splitlines()[-1]) == (0, "now remove joining everywhere")
    assert set().union(*list_users(shards["c"])) == set(JOINS)
    after = config(tmp_path / "after", redis_server, a=False, b=False, c=False)
    with notifier(after) as producer:
        assert all((found := producer.status(jobs[user])) and found.state == "waiting" for user in USERS)
    assert run(joining, "plan")[1].startswith("0 of 40 users would move")
