"""Several Redis: every user on one of them, a worker on each, and one that dies stops its own users alone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis

from notifier import Cancellation, Policy, ShardsUnusableError, Window
from notifier.cli.app import app
from notifier.scripts.keys import redis_key
from notifier.shards.map import home
from notifier.shards.users import list_users
from notifier.testing.embedded import EmbeddedRedis
from tests.support import Simulators, ends, eventually, note, notifier, worker, write_config
from workers.__main__ import main as work

NAMES = ("a", "b", "c", "d")
USERS = [f"user-{number}" for number in range(120)]


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


class Fleet:
    """Four shards, a worker on each, and a producer."""

    def __init__(self, stack: ExitStack, folder: Path, simulators: Simulators) -> None:
        self.servers = {name: stack.enter_context(EmbeddedRedis()) for name in NAMES}
        shards = [{"name": name, "url": server.url} for name, server in self.servers.items()]
        self.config = write_config(folder, "", simulators.providers(), redis={"shards": shards}, user={"gap": "60ms"})
        self.redis = {name: Redis.from_url(server.url) for name, server in self.servers.items()}
        self.workers = [stack.enter_context(worker(self.config, "--shard", name, name=f"w-{name}")) for name in NAMES]
        self.producer = stack.enter_context(notifier(self.config))
        for name, process in zip(NAMES, self.workers, strict=True):
            process.ready(self.redis[name])
        for client in self.redis.values():
            stack.callback(client.close)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, simulators: Simulators) -> Iterator[Fleet]:
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path_factory.mktemp("fleet"), simulators)
        yield fleet
        for process in fleet.workers:  # all at once: each takes its second
            process.process.terminate()


@pytest.fixture
def run(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> Run:
    """The programs, in this process: what `main` is given, its status, and what it prints."""

    def run(*arguments: str, config: Path | None = None, main: Callable[[list[str]], Any] = _command) -> Ran:
        capfd.readouterr()
        status = main(["--config", str(config or fleet.config), *arguments])
        return Ran(status or 0, *capfd.readouterr())

    return run


def _command(arguments: list[str]) -> Any:
    return app(arguments, standalone_mode=False)


def accepted(redis: Redis) -> int:
    return int(redis.hget("notifier:stats", "accepted") or 0)  # type: ignore[arg-type]


def test_users_are_spread_and_all_are_served(fleet: Fleet, simulators: Simulators) -> None:
    """Each notification is accepted on its user's shard, delivered by the worker there, and found by its id."""
    job_ids: list[str] = []
    sent = fleet.producer.send_many((note(user, f"spread-{user}") for user in USERS[:100]), on_accepted=job_ids.extend)
    assert sent == len(job_ids) == 100
    for name in NAMES:
        assert accepted(fleet.redis[name]) == sum(home(user, NAMES) == name for user in USERS[:100])
    eventually(lambda: len(simulators.titles("spread-")) == 100, "a hundred deliveries")
    for job_id in (job_ids[0], job_ids[99]):
        ends(fleet.producer, job_id, "delivered")
    own = fleet.producer.send(note("user-1", "mine"), job_id="my-own")
    assert (own, fleet.producer.send(note("user-1", "mine"), job_id="my-own")) == ("my-own", "my-own")


def test_what_waits_is_found_and_cancelled(fleet: Fleet, run: Run) -> None:
    """status, cancel, the limiter and the commands come to the user's own shard."""
    held = Policy(windows=(Window(1, interval_us=3_600_000_000),))
    permit = fleet.producer.limiter.acquire("ann", held)
    assert fleet.redis[home("ann", NAMES)].exists("notifier:sent:{ann}")
    assert fleet.producer.limiter.refund(permit)  # type: ignore[arg-type]
    job_id = fleet.producer.send(note("ann", "later", send_at=datetime.now(UTC) + timedelta(days=1)))
    status = run("status", job_id).out
    assert status.startswith("waiting")
    assert status.endswith(f"on the shard {home('ann', NAMES)}\n")
    assert fleet.producer.cancel(job_id) == "cancelled"
    assert fleet.producer.cancel("nobody's") == "unknown"
    assert [record.job_id for record in fleet.producer.history("ann")] == [job_id]
    at = datetime.now(UTC) + timedelta(days=1)
    several = [fleet.producer.send(note(user, "x", tags=["t"], send_at=at)) for user in ("ann", "bob", "carl")]
    assert fleet.producer.cancel(user="ann", tag="t") == Cancellation(1)
    done = fleet.producer.cancel_many([*several[1:], "nobody's"])
    assert done == Cancellation(2, (), ("nobody's",))
    assert f"on the shard {home('ann', NAMES)}" in run("explain", "--user", "ann").out
    audit = run("audit")
    assert (audit.status, [line[:8] for line in audit.out.splitlines()]) == (0, [f"shard {n}:" for n in NAMES])


def test_a_plan_says_who_would_move(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    """`shards plan` counts the users that a shard more or less would move, of a file or of all in Redis."""
    file = tmp_path / "users"
    file.write_text("\n".join(USERS), encoding="utf-8")
    told = json.loads(run("shards", "plan", "--add", "e", "--users", str(file), "--list", "--json").out)
    moved = [user for user in USERS if home(user, [*NAMES, "e"]) == "e"]
    assert [each["user"] for each in told["who"]] == moved
    assert (told["users"], told["moving"], told["after"]["e"]) == (len(USERS), len(moved), len(moved))
    fleet.producer.send_many(note(user, "planned") for user in USERS)
    of_redis = json.loads(run("shards", "plan", "--remove", "4", "--json").out)
    assert {move["from"] for move in of_redis["moves"]} == {"d"}
    assert of_redis["moving"] >= sum(home(user, NAMES) == "d" for user in USERS)


def test_dead_tokens_and_held_routes_of_all_shards_are_told(fleet: Fleet) -> None:
    """One loop reads every shard's feedback, each token once; `routes` says on which shard a route is held."""
    for name in ("a", "b"):
        told = {"platform": "fcm", "app": "", "reason": "gone", "gone_at": "1", "job_id": "1"}
        fleet.redis[name].xadd("notifier:feedback", {"token": name * 20, "user": f"of-{name}", **told})
    assert [gone.user for gone in fleet.producer.feedback()] == ["of-a", "of-b"]
    assert list(fleet.producer.feedback()) == []
    held = {"state": "full", "until": "4000000000000000", "room": "0"}
    fleet.redis["c"].hset("notifier:route:webpush|full", mapping=held)
    fleet.redis["c"].sadd("notifier:routes", "webpush|full")
    assert [(each.route, each.state, each.shard) for each in fleet.producer.routes()] == [("webpush", "full", "c")]
    fleet.redis["c"].delete("notifier:route:webpush|full", "notifier:routes")


def test_applied_rates_hold_on_every_shard(fleet: Fleet, run: Run) -> None:
    """`config apply` publishes to all shards, `status` looks at all workers, `withdraw` takes all back."""
    assert run("config", "apply", str(fleet.config), "--in", "0s", "--yes").status == 0
    applied = {client.hget("notifier:rates", "version") for client in fleet.redis.values()}
    assert len(applied) == 1
    assert None not in applied
    eventually(lambda: json.loads(run("config", "status", "--json").out)["agreed"], "all to follow")
    told = json.loads(run("config", "status", "--json").out)
    assert sorted(worker["shard"] for worker in told["workers"]) == list(NAMES)
    assert run("config", "withdraw").status == 0
    assert not any(client.exists("notifier:rates") for client in fleet.redis.values())


def test_a_worker_says_which_shards_there_are(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    """Without --shard, or with one that is not there or is another's server, a worker ends with one clear line."""
    missing = run(main=work)
    says = "redis.shards lists a, b, c, d: say which one, by --shard NAME or NOTIFIER_SHARD\n"
    assert (missing.status, missing.err) == (3, says)
    shards = [{"name": "a", "url": fleet.servers["b"].url}, {"name": "b", "url": fleet.servers["a"].url}]
    swapped = run("--shard", "a", config=write_config(tmp_path, "", redis={"shards": shards}), main=work)
    assert (swapped.status, swapped.err.count("\n")) == (3, 1)
    assert "is the shard 'b', not 'a'" in swapped.err


def test_a_dead_shard_stops_its_own_users_alone(fleet: Fleet, simulators: Simulators) -> None:
    """With one of four gone, the others' users are served; the producer learns which, and what was refused."""
    fleet.servers["d"].kill()
    theirs = [place for place, user in enumerate(USERS) if home(user, NAMES) == "d"]
    with pytest.raises(ShardsUnusableError, match=rf"^shard d: .*; {len(theirs)} of 120 were not accepted") as caught:
        fleet.producer.send_many(note(user, f"dead-{user}") for user in USERS)
    assert (caught.value.shards, list(caught.value.refused)) == (("d",), theirs)
    others = {f"dead-{user}" for place, user in enumerate(USERS) if place not in theirs}
    eventually(lambda: set(simulators.titles("dead-")) == others, "the others' deliveries")
    with pytest.raises(ShardsUnusableError, match=r"^shard d: Redis does not answer"):
        fleet.producer.send(note(USERS[theirs[0]], "dead"))
    with pytest.raises(ShardsUnusableError, match=r"^shard d: "):
        fleet.producer.status("unknown to the others")
    fleet.servers["d"].restart()
    fleet.producer.send(note(USERS[theirs[0]], "alive"))
    eventually(lambda: simulators.titles("alive"), "a delivery from the shard that came back")


def test_a_shard_is_drained_while_everybody_works(fleet: Fleet, run: Run, simulators: Simulators) -> None:
    """Laws 1, 2 and 4 at the wire, though the first drain is killed: all comes once, in order, with the gap."""
    users = [user for user in (f"drained-{n}" for n in range(30)) if home(user, NAMES) == "c"][:5]
    count, drained = 12, threading.Event()
    fleet.producer.send_many(note(user, f"{user}/{n:03}") for n in range(count) for user in users)

    def send_more() -> None:
        nonlocal count
        with notifier(fleet.config) as producer:
            while not drained.wait(0.05):
                for user in users:
                    producer.send(note(user, f"{user}/{count:03}"))
                count += 1

    def on_the_way() -> bool:
        return any(at[:1] == b">" for at in fleet.redis["c"].hvals("notifier:moves"))

    with ThreadPoolExecutor() as pool:
        meanwhile = pool.submit(send_more)
        command = [sys.executable, "-m", "notifier.cli", "--config", str(fleet.config), "shards", "drain", "c"]
        with subprocess.Popen(command) as first:
            eventually(lambda: on_the_way() or first.poll() is not None, "users on the way")
            first.kill()
        fleet.redis["c"].delete(redis_key("mover"))  # its time has passed
        told = run("shards", "drain", "c")
        drained.set()
        meanwhile.result()
    assert told.out.startswith("shard c: "), told
    eventually(lambda: len(simulators.titles("drained-")) >= count * len(users), "all deliveries")
    for user in users:
        assert simulators.titles(f"{user}/") == [f"{user}/{n:03}" for n in range(count)]
        times_us = [arrival.at_us for arrival in simulators.all() if (arrival.title or "").startswith(f"{user}/")]
        assert min(later - at for at, later in pairwise(times_us)) >= 60_000
    assert not any(list_users(fleet.redis["c"]))
    assert run("audit").status == 0
