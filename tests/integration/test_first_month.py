"""Mistakes of a newcomer's first month: each is refused, or told, with what would be right."""

import json
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier
from notifier.errors import InvalidNotificationError, RedisUnusableError
from notifier.notification import Notification
from notifier.rules.kinds.window import parse_window
from notifier.settings import parse_settings
from notifier.settings.advice import advise
from notifier.settings.loading import unread
from notifier.settings.yaml_source import read_yaml
from notifier.simulators.certificates import make_certificates
from notifier.store.connection import ask, check, connect
from notifier.testing.embedded import EmbeddedRedis
from notifier.units import parse_duration
from tests.harness.support import ends, note, worker
from tests.integration.conftest import Run
from workers.__main__ import main as work

SECTIONS = {
    "categories": {"default": {"lane": "default"}, "news": {"lane": "bulk", "windows": ["1/1d"], "expires": "1h"}}
}


def advice(text: str) -> list[str]:
    return [problem.message for problem in advise(parse_settings(text, name="n.yaml"), read_yaml(text))]


def test_a_lane_that_is_none(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        work(["--config", str(config), "urgnt"])
    assert ended.value.code == 2
    assert "'urgnt' is no lane; the lanes are urgent, default, bulk" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 1, 3])
def test_config_may_stand_anywhere(run: Run, config: Path, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFIER_CONFIG")
    words = ["explain", "--user", "42"]
    monkeypatch.chdir(config.parent)
    assert run(*words[:place], "--config", str(config), *words[place:]).status == 0
    assert run(*words[:place], f"--config={config}", *words[place:]).status == 0
    assert run(*words).status == 3


def test_a_port_in_use(run: Run) -> None:
    """It says so, and does not claim to listen."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = run("serve", "--port", str(other.getsockname()[1]))
    assert ended.status == 1
    assert "Address already in use; --port names another" in ended.err
    assert ended.out == ""


def test_an_address_that_is_not_here(run: Run) -> None:
    """What is wrong is the address: another port would not help."""
    for host, why in (("192.0.2.1", "Cannot assign requested address"), ("[::1]", "Name or service not known")):
        ended = run("serve", "--no-auth", "--port", "8787", "--host", host)
        assert (ended.status, ended.out) == (1, "")
        assert ended.err.strip().endswith(f"cannot listen on {host}:8787: {why}")


def test_explain_tells_of_a_mute_without_end_and_of_an_expiry(
    config: Path, redis: Redis, run: Run, producer: Notifier
) -> None:
    with worker(config) as running:
        running.ready(redis)
        ends(producer, producer.send(note("42", "x", category="news")), "delivered")
    told = run("explain", "--user", "42", "--category", "news").out
    assert "one that is accepted now is not sent: news expires after 1h" in told
    producer.users.mute("43")
    told = run("explain", "--user", "43").out
    assert "nothing may go: the user's mute has no end" in told
    assert "2199" not in told


def test_an_editor_finds_the_schema(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "notifier.yaml"
    assert run("config", "init", str(path), "--yes").status == 0
    assert path.read_text().startswith("# yaml-language-server: $schema=notifier.schema.json\n")
    assert json.loads((path.parent / "notifier.schema.json").read_text())["type"] == "object"
    assert '"42"' not in "".join(line for line in path.read_text().splitlines(True) if not line.startswith("#"))


def test_a_variable_that_nothing_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_REDIS_ULR", "redis://somewhere")
    assert "did you mean NOTIFIER_REDIS_URL?" in run("config", "check").out.replace("\n", " ")
    apns = "team_id: SIMTEAM001, key_id: SIMULATED1, topic: com.example.app, apps: {my-driver: {topic: com.example.b}}"
    platforms: dict[str, Any] = {**parse_settings(f"providers: {{apns: {{{apns}}}}}").providers.platforms()}
    known = {"NOTIFIER_APNS_KEY_MY_DRIVER": "", "NOTIFIER_NTFY_TOKEN": "", "NOTIFIER_CONFIG": "", "PATH": ""}
    assert unread(known, platforms | {"ntfy": None}) == []
    (told,) = unread({"NOTIFIER_APNS_KEY_MYDRIVER": ""}, platforms)
    assert "did you mean NOTIFIER_APNS_KEY_MY_DRIVER?" in told
    assert len(unread(dict.fromkeys(("NOTIFIER_APNS_KEI", "NOTIFIER_FCM_SERVICE_ACCOUNT_NOBODY"), ""), platforms)) == 2


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("categories: {news: {lane: bulk}}", True),
        ("categories: {news: {lane: bulk, gap: 1s}}", False),
        ("user: {windows: [3/day]}", False),
        ("users: {ann: {gap: 1s}}", False),
    ],
)
def test_a_file_that_limits_nobody_is_told(run: Run, tmp_path: Path, text: str, *, is_told: bool) -> None:
    (tmp_path / "open.yaml").write_text(text, encoding="utf-8")
    told = run("config", "check", str(tmp_path / "open.yaml"))
    assert (told.status, "limits nobody" in told.out) == (0, is_told)


def test_no_categories_are_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text("user: {gap: 1s}", encoding="utf-8")
    told = run("config", "check", str(tmp_path / "bare.yaml"))
    assert (told.status, "has no categories" in told.out) == (0, True)


def test_what_is_dropped_never_waits_for_its_expiry() -> None:
    rules = "categories: {news: {lane: bulk, gap: 10s, expires: 5s, when_blocked: %s}}"
    assert advice(rules % "drop") == []
    assert len(advice(rules % "queue")) == 1


@pytest.mark.parametrize(("text", "us"), [("1hour", 3600), ("2 hours", 7200), ("3days", 259200), ("1second", 1)])
def test_words_for_units(text: str, us: int) -> None:
    """As in a rate, so in a duration, and in the interval of a rate."""
    assert parse_duration(text) == us * 1_000_000
    assert parse_window(f"5/{text}").interval_us == us * 1_000_000
    assert parse_window("10/hour") == parse_window("10/1hour") == parse_window("10/hours") == parse_window("10/1h")


def test_a_misspelt_field() -> None:
    with pytest.raises(InvalidNotificationError, match=r"titel: is not a field; did you mean title\?"):
        Notification.from_kwargs({"user": "1", "devices": [], "titel": "x"})


def test_tls_to_a_redis_without_it(redis_server: EmbeddedRedis) -> None:
    """A handshake that nobody answers ends with the timeout, and the error hints at what to write."""
    url = redis_server.url.replace("redis://", "rediss://")
    settings = parse_settings(f'redis: {{url: "{url}", socket_timeout: 500ms}}')
    with connect(settings.redis) as redis:
        with pytest.raises(RedisUnusableError, match="if it speaks no TLS, write redis:// in place of rediss://"):
            check(redis)
        with pytest.raises(RedisUnusableError, match="if it speaks no TLS, write redis:// in place of rediss://"):
            ask(redis.ping)


def test_a_redis_that_speaks_tls_alone(tmp_path: Path) -> None:
    """It closes the connection at the first command; the error hints at what to write."""
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert_file, made.key_file)

    class Handshake(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as secured:
                secured.recv(1)

    with ThreadingTCPServer(("127.0.0.1", 0), Handshake) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        settings = parse_settings(f'redis: {{url: "redis://127.0.0.1:{server.server_address[1]}/0"}}')
        try:
            with (
                connect(settings.redis) as redis,
                pytest.raises(RedisUnusableError, match="if it speaks TLS alone, write rediss://"),
            ):
                check(redis)
        finally:
            server.shutdown()
            serving.join()
