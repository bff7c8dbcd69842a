"""The rules that `notifier redis acl` prints, on a real Redis: each role can do its work, and no more."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from redis import Redis
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs
from typer.testing import CliRunner

from notifier import AsyncNotifier, NotReplicatedError, Permit, RedisUnusableError
from notifier.cli.app import app
from notifier.limiter import Limiter
from notifier.operations import access
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, serving
from tests.harness.support import WORKER, clean_environ, ends, eventually, note, notifier, queue, worker, write_config

PASSWORD = "a-password-of-the-test"
FORBIDDEN_TO_ALL = [
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
    ("KEYS", "*"),
    ("ACL", "LIST"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "NO", "ONE"),
    ("MONITOR",),
    ("GET", "somebody-elses"),
    ("SET", "somebody-elses", "1"),
    ("SUBSCRIBE", "somebody-elses"),
]
FORBIDDEN = {
    "producer": [
        ("LPOP", "rq:queue:default"),
        ("HSET", "notifier:rates", "rates", "{}"),
        ("SET", "rq:suspended", "1"),
        ("GET", "notifier:token:apns:team"),
        ("DEL", "rq:workers"),
        ("PUBLISH", "rq:pubsub:worker", "{}"),
        ("EVAL", "return redis.call('SET', 'notifier:mover', 'a')", "0"),
    ],
    "worker": [("EVAL", "return redis.call('GET', 'somebody-elses')", "0")],
    "server": [("LPOP", "rq:queue:default"), ("PUBLISH", "rq:pubsub:worker", "{}")],
    "readonly": [
        ("SET", "notifier:seq", "1"),
        ("DEL", "notifier:stats"),
        ("EVAL", "return redis.call('DEL', 'notifier:stats')", "0"),
        ("HSET", "notifier:rates", "rates", "{}"),
    ],
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedRedis]:
    """A Redis with a user for each role."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as admin:
        for role in access.ROLES:
            rules = access.rules(role, version_of(admin))
            admin.execute_command("ACL", "SETUSER", f"notifier-{role}", "reset", "on", f">{PASSWORD}", *rules)
        yield server


def version_of(redis: Redis) -> tuple[int, int]:
    major, minor, *_ = redis.info("server")["redis_version"].split(".")
    return int(major), int(minor)


@pytest.fixture
def admin(guarded: EmbeddedRedis) -> Iterator[Redis]:
    """The one who may do everything; its log of refusals is empty."""
    with Redis.from_url(guarded.url) as redis:
        redis.flushall()
        redis.acl_log_reset()
        yield redis


def config_of(role: str, folder: Path, guarded: EmbeddedRedis) -> Path:
    """A configuration by which a program signs in as this role."""
    path = write_config(folder / role, guarded.url, events={"keep": "1d"}, worker={**WORKER, "functions": ["math"]})
    (path.parent / "password").write_text(PASSWORD, encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    url = f"redis://notifier-{role}@127.0.0.1:{guarded.port}/0"
    document["redis"] = {"url": url, "password_file": str(path.parent / "password")}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def refused(admin: Redis) -> list[tuple[str, str]]:
    """What Redis has refused: who, and what. CLIENT SETINFO is asked of servers that do not know it yet, too."""
    entries = [entry for entry in admin.acl_log(128) if entry["object"] not in {"client", "client|setinfo"}]
    return [(entry["username"], f"{entry['reason']} {entry['object']}") for entry in entries]


def test_a_producer_can_do_all_that_a_notifier_can(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """Enqueue, cancel, ask, read the feeds and limit keys: nothing of it is refused."""
    config = config_of("producer", tmp_path, guarded)
    with notifier(config) as producer:
        job_id = producer.send(note("ada", tags=["thread"], dedupe_key="once"))
        assert producer.send_many(note(f"user-{n}") for n in range(3)) == 3
        assert producer.status(job_id).state == "queued"
        assert isinstance(producer.acquire("grace"), Permit)
        assert producer.cancel(user="ada", tag="thread").cancelled == 1
        assert producer.routes() == []
        assert producer.users.mute("ada", who="a test")
        assert [entry["user"] for entry in producer.users.export()] == ["ada"]
        producer.users.clear("ada", who="a test")
        assert list(producer.feedback("a-group")) == []
        assert [ended.outcome for ended in producer.events("a-group")] == ["cancelled"]
        assert producer.cancel(producer.send(note("linus"))) == "cancelled"
        assert producer.cancel(user="user-0").cancelled == 1
    web = Limiter.from_url(f"redis://notifier-producer:{PASSWORD}@127.0.0.1:{guarded.port}/0", namespace="web")
    web.refund(web.acquire("key", "1/h"))
    web.reset("key")
    asyncio.run(_send_without_blocking(config))
    assert refused(admin) == []


def test_a_producer_can_send_ask_and_cancel_by_commands(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """What was cancelled is in the log of actions; nothing of it is refused."""
    config, runner = config_of("producer", tmp_path, guarded), CliRunner(env=clean_environ())
    with notifier(config) as producer:
        for job_id in ("one", "two", "three"):
            producer.send(note("ada"), job_id=job_id)
    for typed in ("status one", "cancel one", "cancel two three", "cancel --user ada", "status one"):
        done = runner.invoke(app, ["--config", str(config), *typed.split()])
        assert done.exit_code == 0, (typed, done.output, done.exception)
    assert [entry[b"action"] for _, entry in admin.xrange("notifier:actions")] == [b"cancel"] * 2 + [b"cancel of user"]
    assert refused(admin) == []


async def _send_without_blocking(config: Path) -> None:
    async with AsyncNotifier.from_config(config, {}) as producer:
        assert await producer.status(await producer.send(note("barbara")))


def test_a_worker_can_do_all_that_it_is_for(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """Start, send, run RQ's own jobs, be suspended, follow rates, stop: nothing of it is refused."""
    config = config_of("worker", tmp_path, guarded)
    with worker(config) as running, notifier(config) as producer:
        running.ready(admin)
        ends(producer, producer.send(note("ada")), "delivered")
        job = queue(admin).enqueue("math.gcd", 4, 6)
        eventually(lambda: job.get_status(refresh=True) == "finished", "the end of RQ's own job")
        assert running.end() == 0, running.log
    assert admin.scard("rq:workers") == 0
    assert refused(admin) == []


def test_a_server_can_show_and_act(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """Each page, the metrics, and each action of `notifier serve`: nothing of it is refused."""
    config = config_of("server", tmp_path, guarded)
    sent = {"user": "ada", "title": "Hello", "devices": [{"platform": "fcm", "token": "an-invented-token"}]}
    with serving(config, TOKEN) as plain:
        ask = plain.with_token()
        status, body, _ = ask.post("/api/v1/notifications", sent)
        assert status == 202, body
        job_id = yaml.safe_load(body)["job_id"]
        api = [
            "stats",
            "users?id=ada",
            f"jobs?id={job_id}",
            "routes",
            "rates",
            "limits",
            "actions",
        ]
        for path in [*(f"/api/v1/{name}" for name in api), "/", "/metrics", "/readyz", "/rates", "/limits"]:
            assert ask(path)[0] == 200, path
        assert ask.post("/api/v1/jobs/cancel", {"id": job_id})[0] == 200
        assert ask.post("/api/v1/traffic", {"minutes": 1})[0] == 200
        assert ask.post("/api/v1/traffic", {"minutes": 0})[0] == 200
        rates = config.read_text(encoding="utf-8")
        before = yaml.safe_load(ask("/api/v1/rates")[1])
        assert ask.post("/api/v1/rates/preview", {"rates": rates})[0] == 200
        applied = ask.post("/api/v1/rates/apply", {"rates": rates, "before": before["version"], "replace": False})
        assert applied[0] == 200, applied
        assert ask.post("/api/v1/rates/withdraw")[0] == 200
    with notifier(config) as operator:
        operator.send(note("ada"))
        assert operator.forget("ada", hard=True).cancelled == 1
    assert refused(admin) == []


@pytest.mark.parametrize("role", ["producer", "server"])
def test_who_enqueues_may_wait_for_replicas(role: str, tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """It is told how many there are, and not that it may not ask."""
    config = config_of(role, tmp_path, guarded)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["redis"] |= {"wait_replicas": 1, "socket_timeout": "1s"}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    with notifier(config) as producer, pytest.raises(NotReplicatedError, match="0 of 1 replicas have it so far"):
        producer.send(note("ada"))
    assert refused(admin) == []


def test_who_reads_can_see_everything(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> None:
    """The commands that show something work for who may only read: nothing of it is refused."""
    config = config_of("readonly", tmp_path, guarded)
    with notifier(write_config(tmp_path / "admin", guarded.url)) as producer:
        job_id = producer.send(note("ada"))
    runner = CliRunner(env=clean_environ())
    for typed in (
        "stats",
        "explain --user ada",
        "line ada",
        f"status {job_id}",
        "history --job none",
        "routes",
        "health",
        "config status",
        "config log",
    ):
        done = runner.invoke(app, ["--config", str(config), *typed.split()])
        assert done.exit_code in {0, 1}, (typed, done.output)
    assert refused(admin) == []


# Each command that asks Redis, and those that ask none, or need several.
ASKING = (
    "send ada --device fcm:an-invented-token --title hi",
    "send-file {folder}/lines.jsonl",
    "status one",
    "cancel one",
    "pause all",
    "resume all",
    "cancel --user ada",
    "cancel --category default --all-users --dry-run",
    "line ada",
    "explain --user ada",
    "routes",
    "history ada",
    "history --job one",
    "health",
    "stats",
    "audit",
    "trace record --out {folder}/trace.jsonl --for 1s",
    "preview --new {config} --live 1s",
    "config apply {config} --yes",
    "config apply {config} --yes",
    "config revert --yes",
    "config withdraw --yes",
    "config log",
    "config status",
    "config log",
    "users export",
    "users apply {folder}/users.jsonl",
    "users forget ada --yes",
)
NOT_ASKING = {"worker", "serve", "config init", "config check", "config schema", "partition", "redis acl"}


@pytest.fixture
def nobody(tmp_path: Path, guarded: EmbeddedRedis, admin: Redis) -> Path:
    """The configuration of a user who may connect, and nothing else."""
    admin.execute_command(
        "ACL", "SETUSER", "notifier-nobody", "reset", "on", f">{PASSWORD}", "+info", "+client", "+ping"
    )
    line = '{"user": "ada", "title": "hi", "devices": [{"platform": "fcm", "token": "an-invented-token"}]}'
    (tmp_path / "lines.jsonl").write_text(line, encoding="utf-8")
    (tmp_path / "users.jsonl").write_text('{"user": "ada", "gap": "5s"}', encoding="utf-8")
    return config_of("nobody", tmp_path, guarded)


@pytest.mark.parametrize("typed", ASKING)
def test_a_missing_right_is_named(typed: str, nobody: Path, tmp_path: Path) -> None:
    """Each command says that Redis refuses, and what: not that it does not answer. It prints no key of Redis."""
    arguments = typed.format(folder=tmp_path, config=nobody).split()
    done = CliRunner(env=clean_environ()).invoke(app, ["--config", str(nobody), *arguments])
    assert isinstance(done.exception, RedisUnusableError), done.output
    assert re.match(r"Redis refuses: its user may not run [A-Z]+; `notifier redis acl` prints", str(done.exception))


def test_all_commands_are_tried() -> None:
    """A new command is in one of the lists above."""
    names = set[str]()
    group = typer.main.get_group(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        names |= {f"{name} {each}" for each in getattr(command, "commands", {})} or {name}
    tried = {name for name in names if any(f"{typed} ".startswith(f"{name} ") for typed in ASKING)}
    assert names == tried | NOT_ASKING


def test_pages_name_a_missing_right(nobody: Path) -> None:
    """So do the pages and the API."""
    with serving(nobody, TOKEN) as plain:
        ask = plain.with_token()
        for path in (
            "/",
            "/user?id=ada",
            "/job?id=one",
            "/routes",
            "/rates",
            "/log",
            "/pause",
            "/limits",
            "/limits?id=x",
        ):
            status, page, _ = ask(path)
            assert (status, "Redis refuses: its user may not run" in page) == (503, True), path
            assert "does not answer" not in page, path
        told = yaml.safe_load(ask("/api/v1/users?id=ada")[1])
        assert told["detail"].startswith("Redis refuses: its user may not run")


@pytest.mark.parametrize("role", access.ROLES)
def test_a_role_can_do_no_more(role: str, guarded: EmbeddedRedis, admin: Redis) -> None:
    """What is not the role's work is refused: other keys, other commands, and the same from within a script."""
    with Redis(port=guarded.port, username=f"notifier-{role}", password=PASSWORD) as client:
        client.ping()
        for command in [*FORBIDDEN_TO_ALL, *FORBIDDEN[role]]:
            if command[1:2] in {("notifier:rates",), ("rq:suspended",)} and version_of(admin) < (7, 0):
                continue  # only Redis 7 tells reading a key from writing it
            with pytest.raises(
                (NoPermissionError, Exception), match=r"(?i)no permission|NOPERM|can't access|ACL|can't run"
            ):
                client.execute_command(*command)


def test_who_may_only_ping_is_not_ready(admin: Redis, guarded: EmbeddedRedis, tmp_path: Path) -> None:
    """A server whose Redis user cannot read what its pages show is not ready, and its log says why."""
    everybody = [f"+{command}" for command in access.EVERYBODY]
    admin.execute_command("ACL", "SETUSER", "notifier-pings", "reset", "on", f">{PASSWORD}", *everybody)
    with serving(config_of("pings", tmp_path, guarded)) as ask, capture_logs() as logs:
        status, text, _ = ask("/readyz")
        assert (status, "HMGET" in text, ask("/healthz")[0]) == (503, False, 200), text
    assert ["may not run HMGET" in each["reason"] for each in logs if each["event"] == "not_ready"] == [True]


def test_a_worker_whose_rights_are_taken_ends_with_one_line(
    tmp_path: Path, guarded: EmbeddedRedis, admin: Redis
) -> None:
    """Nothing is wrong with what Redis holds: nothing is set aside."""
    config = config_of("worker", tmp_path, guarded)
    with worker(config) as running:
        running.ready(admin)
        admin.execute_command("ACL", "SETUSER", "notifier-worker", "-zadd")
        try:
            with notifier(config_of("producer", tmp_path, guarded)) as producer:
                producer.users.mute("grace", who="a test")
                producer.send(note("ada"))
            assert running.process.wait(60) == 4
        finally:
            admin.execute_command("ACL", "SETUSER", "notifier-worker", "+zadd")
    assert "Redis refuses: its user may not" in running.log
    assert "`notifier redis acl` prints what to grant" in running.log
    assert "Traceback" not in running.log
    assert "quarantined" not in running.log
    assert admin.keys("notifier:quarantine:*") == []
    assert admin.exists("notifier:preferences") == 1
