"""What is refused, where it is refused, and in which words."""

import math
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from redis import Redis

from notifier import Device, InvalidNotificationError, Notifier, RedisUnusableError
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import (
    apns,
    clean_environ,
    client_of,
    eventually,
    fcm,
    note,
    notifier,
    rq,
    worker,
    write_config,
)

TOKEN = "ab" * 32
LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP
DEEP: dict[str, Any] = {}
for _ in range(3_000):
    DEEP = {"d": DEEP}


REFUSED: list[tuple[str, Mapping[str, Any]]] = [
    ("user", {"user": ""}),
    ("user", {"user": None}),
    ("user", {"user": 42}),
    ("user", {"user": b"42"}),
    ("user", {"user": "u" * 257}),
    ("user", {"user": "\ud800"}),
    ("devices", {"devices": []}),
    ("devices", {"devices": None}),
    ("devices", {"devices": "apns"}),
    ("devices[0]", {"devices": [{"platform": "apns", "token": TOKEN}]}),
    ("devices[2]", {"devices": [apns("a"), fcm("a"), apns("a")]}),
    ("devices[1].platform", {"devices": [apns("a"), Device("windows", TOKEN)]}),
    ("devices[0].platform", {"devices": [Device("APNS", TOKEN)]}),
    ("devices[0].platform", {"devices": [Device(["apns"], TOKEN)]}),  # type: ignore[arg-type]
    ("devices[0].platform", {"devices": [Device(None, TOKEN)]}),  # type: ignore[arg-type]
    ("devices[0].token", {"devices": [Device("apns", "")]}),
    ("devices[0].token", {"devices": [Device("apns", "zz" * 32)]}),
    ("devices[0].token", {"devices": [Device("apns", TOKEN + "\n")]}),
    ("devices[0].token", {"devices": [Device("apns", TOKEN[:-1])]}),
    ("devices[0].token", {"devices": [Device("apns", None)]}),  # type: ignore[arg-type]
    ("devices[0].token", {"devices": [Device("fcm", "with a space in it")]}),
    ("devices[0].token", {"devices": [Device("fcm", "../../" + "a" * 20)]}),
    ("title", {"title": 7}),
    ("title", {"title": "\udfff"}),
    ("body", {"body": b"bytes"}),
    ("body", {"body": "half a pair \ud83d"}),
    ("body", {"title": None, "body": None}),
    ("body", {"body": "x" * 4096}),
    ("body", {"body": "x" * 4096, "devices": [fcm("a")]}),
    ("sound", {"sound": 1}),
    ("sound", {"sound": "\ud800"}),
    ("badge", {"badge": -1}),
    ("badge", {"badge": 2**31}),
    ("badge", {"badge": True}),
    ("badge", {"badge": 1.0}),
    ("data", {"data": [("a", 1)]}),
    ("data", {"data": {1: "a"}}),
    ("data", {"data": {None: "a"}}),
    ("data.a", {"data": {"a": math.nan}}),
    ("data.a", {"data": {"a": math.inf}}),
    ("data.a[1].b", {"data": {"a": [1, {"b": -math.inf}]}}),
    ("data.a", {"data": {"a": {2: 3}}}),
    ("data.a", {"data": {"a": {1, 2}}}),
    ("data.a", {"data": {"a": datetime.now(UTC)}}),
    ("data.a", {"data": {"a": "\ud800"}}),
    ("data.a", {"data": {"a": 10**400}}),
    ("apns.url_args[0]", {"apns": {"url_args": ["\ud800"]}}),
    ("webpush.tag", {"webpush": {"tag": "\ud800"}}),
    ("data.a", {"data": {"a": MappingProxyType({})}}),
    ("data", {"data": {"\ud800": "a"}}),
    ("data", {"data": LOOP}),
    ("data", {"data": DEEP}),
    ("category", {"category": "unheard-of"}),
    ("category", {"category": "Chat"}),
    ("category", {"category": ""}),
    ("category", {"category": None}),
    ("category", {"category": ["chat"]}),
    ("priority", {"priority": "urgent"}),
    ("priority", {"priority": ["high"]}),
    ("collapse_id", {"collapse_id": "é" * 33}),
    ("collapse_id", {"collapse_id": ""}),
    ("collapse_id", {"collapse_id": 5}),
    ("dedupe_key", {"dedupe_key": ""}),
    ("dedupe_key", {"dedupe_key": 17}),
    ("dedupe_key", {"dedupe_key": "k" * 257}),
    ("expires_in", {"expires_in": 0}),
    ("expires_in", {"expires_in": -1}),
    ("expires_in", {"expires_in": timedelta(seconds=-1)}),
    ("expires_in", {"expires_in": math.nan}),
    ("expires_in", {"expires_in": math.inf}),
    ("expires_in", {"expires_in": "1h"}),
    ("expires_in", {"expires_in": True}),
    ("expires_in", {"expires_in": 1e300}),
    ("expires_in", {"expires_in": 10**400}),
    ("expires_in", {"expires_in": timedelta.max}),
    ("send_at", {"send_at": datetime.now()}),  # noqa: DTZ005 - the point of it
    ("send_at", {"send_at": "tomorrow"}),
    ("send_at", {"send_at": 1_900_000_000}),
    ("send_at", {"send_at": datetime.max.replace(tzinfo=UTC)}),
]


@pytest.mark.parametrize(("field", "wrong"), REFUSED, ids=[f"{i}-{field}" for i, (field, _) in enumerate(REFUSED)])
def test_a_bad_field_is_refused_by_name(redis: Redis, producer: Notifier, field: str, wrong: Mapping[str, Any]) -> None:
    """A field that cannot be sent is refused at `send`, named in the error, and nothing is written."""
    fields = {"user": "anna", "devices": [apns("anna")], "title": "Hello", **wrong}
    devices = fields.pop("devices")
    with pytest.raises(InvalidNotificationError) as caught:
        producer.send(_note(devices, fields))
    assert caught.value.field == field
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert redis.dbsize() == 0


def _note(devices: Any, fields: dict[str, Any]) -> Any:
    from notifier import Notification  # noqa: PLC0415

    return Notification(devices=devices, **fields)


@pytest.mark.parametrize("wrong", [None, {"user": "anna"}, "anna", 1])
def test_what_is_no_notification_is_refused(redis: Redis, producer: Notifier, wrong: Any) -> None:
    """Anything but a Notification is refused in words, alone and among others."""
    with pytest.raises(InvalidNotificationError) as caught:
        producer.send(wrong)
    assert "must be a Notification" in str(caught.value)
    with pytest.raises(InvalidNotificationError) as caught:
        producer.send_many([wrong])
    assert caught.value.field.startswith("notifications[0]")
    assert redis.dbsize() == 0


def test_what_is_allowed_is_accepted(redis: Redis, producer: Notifier) -> None:
    """The edges on the good side: any mapping, any script, every length up to the limit."""
    good = [
        note("anna", data=MappingProxyType({"a": {"b": (1, None, True, "ü")}})),
        note("ü" * 128, "日本語 🎉", collapse_id="é" * 32, dedupe_key="k" * 256),
        note("user}:{with: odd\x00signs\n", expires_in=0.001, badge=0),
        note("anna", expires_in=timedelta(days=3650), send_at=datetime.now(UTC) + timedelta(days=365)),
        note("anna", send_at=datetime(1970, 1, 1, tzinfo=UTC)),
    ]
    job_ids: list[str] = []
    assert producer.send_many(good, on_accepted=job_ids.extend) == len(good)
    assert redis.exists(*[f"rq:job:{job_id}" for job_id in job_ids]) == len(good)


def test_a_platform_without_a_provider_is_refused(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """A device on a platform that the configuration does not name is refused with the key that is missing."""
    config = write_config(tmp_path, redis_server.url, {"apns": {"client": "console", "timeout": "1s"}})
    with (
        notifier(config) as producer,
        pytest.raises(InvalidNotificationError, match=r"providers\.fcm") as caught,
    ):
        producer.send(note("anna", "Hello", apns("anna"), fcm("anna")))
    assert caught.value.field == "devices[1].platform"
    assert redis.dbsize() == 0


def test_a_producer_without_redis_is_told(tmp_path: Path) -> None:
    """Where nothing listens, every call of a producer fails with RedisUnusableError and names the place."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{free.getsockname()[1]}/0"
        with notifier(write_config(tmp_path, url)) as producer:
            calls = (
                lambda: producer.send(note("anna")),
                lambda: producer.send_many([note("anna")]),
                lambda: producer.cancel("x"),
                lambda: producer.status("x"),
            )
            for call in calls:
                with pytest.raises(RedisUnusableError, match="Redis"):
                    call()


def _start(config: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = clean_environ(NOTIFIER_CONFIG=str(config), **(env or {}))
    command = [sys.executable, "-m", "workers", *arguments]
    return warm.run(command, env=environ, timeout=20)


def _one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, (done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "hunter2" not in done.stderr + done.stdout
    return lines[0]


def test_a_worker_that_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    """One clear line on standard error, exit status 4; integration/store/test_connection.py has what may be wrong."""
    with EmbeddedRedis(extra_args=("--requirepass", "right")) as locked:
        config = write_config(tmp_path, locked.url)
        wrong = f"redis://:hunter2@127.0.0.1:{locked.port}/0"
        assert "refuses the password" in _one_line(_start(config, env={"NOTIFIER_REDIS_URL": wrong}), 4)
        assert "wants a password" in _one_line(_start(config), 4)


@pytest.mark.parametrize("command", ["SCRIPT", "EVALSHA", "HMGET", "ZADD"])
def test_a_worker_ends_where_redis_lacks_a_command(tmp_path: Path, command: str) -> None:
    """It is not what Redis holds that cannot be read. A host without scripts lacks the first two."""
    with EmbeddedRedis(extra_args=("--rename-command", command, "")) as server:
        config = write_config(tmp_path, server.url)
        with notifier(config) as producer, suppress(RedisUnusableError):
            producer.send(note("ann"))
        done = _start(config, "--burst")
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("Redis does not know ")
    assert command == "ZADD" or command in line
    assert "unreadable" not in done.stderr


def test_a_worker_waits_for_a_redis_that_is_not_there(tmp_path: Path) -> None:
    """It says in one line for what it waits, and goes to work when it is there, which the log says too."""
    with MortalRedis() as server:
        config = write_config(tmp_path, server.url)
        server.kill()
        with worker(config) as waiting:
            eventually(lambda: "limiter_unreachable" in waiting.log, "the line that says for what it waits")
            assert f"127.0.0.1:{server.port}" in waiting.log
            server.restart()
            with client_of(config) as redis:
                waiting.ready(redis)
            assert waiting.log.count("limiter_unreachable") == 1
            assert "limiter_reachable" in waiting.log
            assert waiting.end() == 0


def test_a_worker_with_a_broken_configuration_says_where(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Broken YAML, a bad value, no file: one line that names the file and the line in it; nothing starts."""
    config = write_config(tmp_path, redis_server.url)
    good = config.read_text(encoding="utf-8")
    config.write_text("redis: {url: [\n", encoding="utf-8")
    assert f"{config}:" in _one_line(_start(config), 3)
    config.write_text(good + "user: {gap: 3 parsecs}\n", encoding="utf-8")
    line = _one_line(_start(config), 3)
    assert "user.gap" in line
    assert str(config) in line
    assert "nowhere.yaml" in _one_line(_start(tmp_path / "nowhere.yaml"), 3)


@pytest.mark.parametrize(
    ("option", "why"), [("retry", "'retry' that is not understood"), ("max_connections", "needs 2 or more")]
)
def test_a_wrong_option_is_one_line(option: str, why: str, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """A worker with one connection would wait for ever: RQ holds one to be told."""
    config = write_config(tmp_path, redis_server.url)
    assert why in _one_line(_start(config, env={"NOTIFIER_REDIS_URL": f"{redis_server.url}?{option}=1"}), 3)


def test_a_provider_without_its_key_is_one_line(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """A key file that is not there is told when the worker starts, not at the first send."""
    apns_settings = {
        "team_id": "ABCDE12345",
        "key_id": "FGHIJ67890",
        "topic": "com.example.app",
        "key_file": "none.p8",
    }
    config = write_config(tmp_path, redis_server.url, {"apns": {"timeout": "1s", **apns_settings}})
    assert "none.p8" in _one_line(_start(config), 3)


def test_two_workers_of_one_name_are_one_too_many(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """A name that a living worker has is refused in one line."""
    config = write_config(tmp_path, redis_server.url)
    redis.hset("rq:worker:twin", "birth", "2026-01-01T00:00:00.000000Z")
    assert "twin" in _one_line(_start(config, "--name", "twin"), 1)


def test_rq_worker_is_told_the_same(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Under `rq worker` a broken configuration is the same one line, and exit status 1."""
    config = write_config(tmp_path, redis_server.url)
    config.write_text(config.read_text(encoding="utf-8") + "user: {gap: 3 parsecs}\n", encoding="utf-8")
    done = rq("worker", "--worker-class", "workers.PushWorker", "--url", redis_server.url, "default", config=config)
    assert "user.gap" in _one_line(done, 3)
    assert redis.scard("rq:workers") == 0


@pytest.mark.parametrize("beside", ["same server", "another"])
def test_rq_worker_at_another_redis_is_refused(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, beside: str
) -> None:
    """RQ's command connects by its own `--url`: one that is not the configured Redis is told, and no password."""
    at = redis_server.url.removeprefix("redis://")
    named = at.rpartition("/")[0] + "/1" if beside == "same server" else "localhost:1/0"
    options = ("--worker-class", "workers.PushWorker", "--url", f"redis://default:hunter2@{at}", "--burst", "default")
    line = _one_line(rq("worker", *options, config=write_config(tmp_path, f"redis://{named}")), 3)
    assert at in line
    assert named in line
    assert "--url" in line
    assert redis.scard("rq:workers") == 0


def test_rq_worker_may_name_the_configured_redis_otherwise(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """What counts is the server that answers, and the number of its database."""
    other = redis_server.url.replace("127.0.0.1", "localhost", 1)
    assert other != redis_server.url
    config = write_config(tmp_path, other)
    options = ("--worker-class", "workers.PushWorker", "--url", redis_server.url, "--burst", "default")
    assert rq("worker", *options, config=config).returncode == 0
