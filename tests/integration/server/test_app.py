"""`notifier serve` over real HTTP: metrics, health, the API and the page; and what strangers may try."""

import asyncio
import errno
import http.client
import io
import json
import re
import select
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from redis import Redis
from structlog.testing import capture_logs

from notifier.cli.__main__ import main
from notifier.errors import RedisUnusableError
from notifier.notification.job import TERMINAL
from notifier.server import guard, state
from notifier.server.answers import ProblemError
from notifier.server.app import _api, _fixed, _Paths
from notifier.server.metrics import GAUGES, Metrics
from notifier.server.state import State
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import EVIL, TOKEN, basic, serving
from tests.harness.support import eventually, fcm, note, notifier, worker, write_config

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"^# TYPE (notifier_\w+) (\w+)$", re.MULTILINE)


SECTIONS = {"user": {"windows": ["1/1h"]}}


def test_it_tells_what_happened(config: Path) -> None:
    """Counters, gauges, JSON and the page show what workers did since the server began."""
    with serving(config) as ask, notifier(config) as producer:
        before = ask("/metrics")[1]
        assert "notifier_notifications_total{" not in before
        for event in ("accepted", "refused", *TERMINAL):  # an increase from nothing would be none to Prometheus
            assert f'notifier_events_total{{event="{event}"}} 0.0' in before
        ids = [producer.send(note(f"u{n}", "hi", fcm(f"u{n}"), category="chat")) for n in range(3)]
        last = producer.send(note("u0", "again", fcm("u0"), category="chat"))
        with worker(config, name="one"):
            eventually(lambda: producer.status(ids[2]).state == "delivered", "the deliveries")
            eventually(lambda: producer.status(last).state == "waiting", "one that waits")
            eventually(lambda: 'outcome="delivered",route="fcm"} 3.0' in ask("/metrics")[1], "the counter")
            text = ask("/metrics")[1]
            assert 'notifier_accepted_total{category="chat"} 4.0' in text
            assert 'notifier_events_total{event="accepted"} 4.0' in text
            assert 'notifier_scheduled{lane="urgent"} 1.0' in text
            assert 'notifier_provider_latency_seconds_count{route="fcm"} 3.0' in text
            assert 'notifier_lateness_seconds_bucket{category="chat",le="+Inf"} 3.0' in text
            assert "notifier_redis_up 1.0" in text
            assert [name for name, (_, labels) in GAUGES.items() if not labels and f"\n{name} " not in text] == []
            assert f'notifier_project_used_ratio{{route="fcm"}} {3 / 600_000}' in text
            eventually(lambda: "notifier_workers_healthy 1.0" in ask("/metrics")[1], "a healthy worker")
            stats = json.loads(ask("/api/v1/stats")[1])
            assert stats["now"]["totals"]["delivered"] == 3
            (most,) = stats["throttled"]["users"]
            assert (most["user"], most["waiting"], most["categories"]) == ("u0", 1, {"chat": 1})
            assert most["next_at"] > stats["minutes"][-1]["at"]
            assert '<a href="/user?id=u0">' in (page := ask("/")[1])
            assert page.count('width="100"') >= 2, "the bar of those that wait, and its track"
            told = json.loads(ask("/api/v1/users?id=u0&category=chat")[1])
            assert [each["job_id"] for each in told["line"]] == [last]
            assert told["uses"][0]["used"] == 1
            found = json.loads(ask(f"/api/v1/jobs?id={last}")[1])
            assert (found["state"], found["expected_at"][:13]) == ("waiting", told["line"][0]["expected_at"][:13])
            assert {each["state"] for each in json.loads(ask("/api/v1/routes")[1])["routes"]} == {"working"}
            page = ask("/routes")[1]
            assert "<div>≤\N{NO-BREAK SPACE}" in page, "a quantile is known as the end of its bucket"
            assert '<a href="/routes" aria-current="page">' in page
            status, page, headers = ask("/")
            assert (status, "fcm" in page, "one" in page) == (200, True, True)
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["content-security-policy"].startswith("default-src 'none'")
        assert ask("/readyz")[0] == ask("/healthz")[0] == ask("/style.css")[0] == 200
        assert ask("/api/v1/jobs?id=unknown")[0] == ask("/api/v1/jobs?id=%0a")[0] == ask("/nothing")[0] == 404


def test_the_metrics_are_those_of_the_table(config: Path) -> None:
    """docs/reference/metrics.md names each metric with its type, and no other; no label is a user's."""
    with serving(config) as ask:
        text = ask("/metrics")[1]
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| `(notifier_\w+)(?:\{[^`]*\})?` \| (\w+) \|", page, re.MULTILINE))
    assert named == dict(NAME.findall(text))
    assert "user=" not in text


def test_the_paths_are_those_of_the_table() -> None:
    """docs/reference/http-api.md names each path of the API with its method, and no other."""
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    nobody: Any = None
    named = set()
    for method, paths in re.findall(r"^\| `(GET|POST) (/api/[^|]*)` \|", page, re.MULTILINE):
        named |= {(method, re.sub(r"\?.*|<.*?>|{.*?}", "", path)) for path in paths.split("`, `")}
    answered = {
        (method, re.sub(r"{.*?}", "", route.path))
        for route in (*_fixed(nobody), *_api(_Paths(nobody)))
        for method in route.methods - {"HEAD"}
        if route.path.startswith("/api/")
    }
    assert named == answered


def test_a_query_with_a_slip_gets_no_answer_to_another(config: Path) -> None:
    """An unknown word is refused with what would be right; a page shows what it can."""
    asked = {
        "users?id=ann&category=chta": "category",
        "users?id=ann&history=all": "history",
        "problems?outcome=fialed": "outcome",
        "limits?id=web&by=size": "by",
    }
    with serving(config) as ask:
        for query, field in asked.items():
            status, text, _ = ask(f"/api/v1/{query}")
            assert (status, json.loads(text)["field"]) == (422, field), query
        assert ask("/user?id=ann&category=chta")[0] == ask("/api/v1/users?id=ann&category=chat")[0] == 200


def test_a_wrong_method_is_told_the_right_one(config: Path) -> None:
    """As JSON and as a page."""
    with serving(config, TOKEN) as stranger:
        ask = stranger.with_token()
        for accept in ("*/*", "text/html"):
            status, _, headers = ask("/job/cancel", Accept=accept)
            assert (status, headers["allow"]) == (405, "POST"), accept
        assert sorted(ask.post("/api/v1/stats")[2]["allow"].split(", ")) == ["GET", "HEAD"]


def test_counters_do_not_fall_where_redis_has_lost_what_it_counted(config: Path, redis: Redis) -> None:
    """After FLUSHALL, or an old dump, what comes is added to what was: Prometheus would count all of it once more."""

    def count(accepted: int, late_us: int) -> None:
        minute = int(redis.time()[0]) // 60
        fields = {"a|chat": accepted, "late|chat|3": accepted, "late|chat|s": late_us, "e|poison": accepted}
        redis.hset(f"notifier:minute:{minute}", mapping=fields)

    with serving(config) as ask:
        ask("/metrics")
        for accepted, late_us, is_lost, in_all, late_s in (
            (20, 2_000_000, False, 20, 2.0),
            (3, 500_000, True, 23, 2.5),
        ):
            if is_lost:
                redis.flushall()
            count(accepted, late_us)
            text = ask("/metrics")[1]
            assert f'notifier_accepted_total{{category="chat"}} {in_all}.0' in text
            assert f'notifier_lateness_seconds_count{{category="chat"}} {in_all}.0' in text
            assert f'notifier_lateness_seconds_sum{{category="chat"}} {late_s}' in text
            assert f"notifier_poison_total {in_all}.0" in text


def test_it_says_why_one_was_late(config: Path, redis: Redis) -> None:
    """The pages and the API show what held each notification back; nothing in a record becomes a tag."""
    today = int(redis.time()[0]) // 86_400 * 86_400_000_000
    accepted = today + 43_200_000_000
    second, third = accepted + 5_345_000, accepted + 6_000_000
    held, by = "100000 c5/10000000 1200000 u10/60000000", f"{EVIL}\n{EVIL}\n"
    records = [
        f"{second}\n{accepted} {held}\ndelivered\nchat\n45000 apns,200,45\n{by}\nlate",
        f"{third}\n{accepted}\ndropped\n{EVIL}\n0 {EVIL},500,1,{EVIL},{EVIL}\n{by}{EVIL}\n{EVIL}",
    ]
    redis.rpush("notifier:history:{ann}:0", *records, "no record")
    with serving(config) as ask:
        told = json.loads(ask("/api/v1/users?id=ann")[1])["history"]
        assert [record["outcome"] for record in told] == ["dropped", "delivered"]
        assert told[1]["held"] == {"the queue": 0.1, "chat 5/10s": 1.1, "user 10/1m": 4.1}
        assert told[1]["says"] == (
            "accepted 12:00:00.0, held 100 ms by the queue, 1.1 s by chat 5/10s, 4.1 s by user 10/1m, "
            "sent 12:00:05.3, apns 200 after 45 ms"
        )
        found = json.loads(ask("/api/v1/jobs?id=late&user=ann")[1])
        assert (found["state"], found["user"], found["record"]["held"]) == ("delivered", "ann", told[1]["held"])
        for path in ("/user?id=ann", "/job?id=late&user=ann"):
            status, page, _ = ask(path)
            assert (status, "why-rule" in page, "4.1 s user 10/1m" in page) == (200, True, True)
            assert "<script>alert" not in page


def test_what_is_to_be_tried_again_has_not_ended(config: Path, redis: Redis) -> None:
    """Other ends of a route are those of notifications, as on the page Now: no attempt that is repeated."""
    ended = {"delivered": 9, "rejected": 1, "expired": 2, "retried": 5, "returned": 3}
    fields = {f"o|{outcome}|chat|fcm": n for outcome, n in ended.items()}
    redis.hset(f"notifier:minute:{int(redis.time()[0]) // 60}", mapping=fields)
    with serving(config) as ask:
        routes = {each["route"]: each for each in json.loads(ask("/api/v1/routes")[1])["routes"]}
    assert (routes["fcm"]["delivered"], routes["fcm"]["others"]) == (9, 3)


@pytest.mark.parametrize(("kept", "said"), [(60, "History (the newest 50 of 60)"), (50, "History (50)")])
def test_it_says_how_much_of_a_history_it_shows(config: Path, redis: Redis, kept: int, said: str) -> None:
    """The page User has the newest; how many are kept is told."""
    now = int(redis.time()[0]) * 1_000_000
    records = [f"{now + n}\n{now}\ndelivered\nchat\n\n\n\n\njob-{n}" for n in range(kept)]
    redis.rpush("notifier:history:{ann}:0", *records)
    with serving(config) as ask:
        told = json.loads(ask("/api/v1/users?id=ann")[1])
        page = ask("/user?id=ann")[1]
        every = json.loads(ask("/api/v1/users?id=ann&history=10000")[1])["history"]
        assert (len(every), every[:50]) == (kept, told["history"])
        assert ask("/api/v1/users?id=ann&history=0")[0] == ask("/api/v1/users?id=ann&history=10001")[0] == 422
    assert (len(told["history"]), told["history_in_all"], told["history"][0]["job_id"]) == (50, kept, f"job-{kept - 1}")
    assert f"<h2>{said}</h2>" in page


def test_without_the_token_nothing_is_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the health of the process needs the token, as a bearer token or a password; a wrong one is refused."""
    monkeypatch.setattr(guard, "SLOWER_S", 0.001)  # tests/hostile/test_deaf_serve.py is about how slowly
    with serving(config, TOKEN) as ask:
        for path in ("/", "/metrics", "/style.css", "/api/v1/stats", "/api/v1/routes", "/api/v1/users?id=1", "/no"):
            status, text, headers = ask(path)
            assert (status, "token" in text, headers["www-authenticate"][:5]) == (401, True, "Basic"), path
            for wrong in (f"Bearer {TOKEN}x", "Bearer", "Bearer \xe9", basic("x"), "Basic %%%", TOKEN, ""):
                assert ask(path, Authorization=wrong)[0] == 401, wrong
        assert ask("/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask("/", Authorization=basic(TOKEN))[0] == 200
        assert ask("/healthz")[0] == ask("/readyz")[0] == 200


def test_who_has_no_token_is_not_told_why_it_is_not_ready(config: Path) -> None:
    """The log says what is wrong in the configuration, and where; an error there names users. It says so once."""
    wrong = config.read_text(encoding="utf-8") + "users: {alice@example.com: {gap: 1x}}\n"
    with serving(config, TOKEN) as ask, capture_logs() as logs:
        assert ask("/readyz")[0] == 200
        config.write_text(wrong, encoding="utf-8")
        eventually(lambda: ask("/readyz")[0] == 503, "the file to be read once it stays as it is")
        status, text, _ = ask("/readyz")
    assert (status, "alice" in text, str(config) in text) == (503, False, False), text
    assert ["alice" in each["reason"] for each in logs if each["event"] == "not_ready"] == [True]


def test_who_starts_while_the_published_rates_cannot_be_used_goes_by_the_file(config: Path, redis: Redis) -> None:
    """As a worker does that starts then; the pages say what is wrong."""
    redis.hset("notifier:rates", mapping={"version": "newer", "at": 1, "rates": '{"user": {"gaps": 5}}'})
    with serving(config, TOKEN) as ask, capture_logs():
        assert ask("/readyz")[0] == 503
        status, page, _ = ask("/rates", Authorization=f"Bearer {TOKEN}")
        assert (status, "the published rates: user.gaps: unknown key" in page) == (200, True)
        told = json.loads(ask("/api/v1/rates", Authorization=f"Bearer {TOKEN}")[1])
        assert (told["source"], told["published"]) == (str(config), "newer")


def test_the_token_may_stand_in_a_file_that_changes(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A new token in the file counts from the next request on; a file that holds none changes nothing.

    Without a file there at the start, the command says which, and ends.
    """
    started: list[Any] = []
    monkeypatch.setattr("notifier.server.run.bind", lambda *_: None)
    monkeypatch.setattr("notifier.server.run.run", lambda *given, **_: started.append(given[-1]))
    monkeypatch.setattr(sys, "argv", ["notifier", "--config", str(config), "serve", "--host", "0.0.0.0"])
    monkeypatch.setenv("NOTIFIER_SERVER_TOKEN_FILE", str(file := tmp_path / "token"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, started) == (3, [])
    assert capfd.readouterr().err == f"NOTIFIER_SERVER_TOKEN_FILE: cannot read {file}: No such file or directory\n"

    file.write_text("the-first-of-the-tokens\n")
    with pytest.raises(SystemExit):
        main()
    with serving(config, started[0]) as ask:

        def taken() -> list[str]:
            tokens = ("the-first-of-the-tokens", "the-second-of-the-tokens", "")
            return [token for token in tokens if ask("/metrics", Authorization=f"Bearer {token}")[0] == 200]

        assert taken() == ["the-first-of-the-tokens"]
        file.write_text("the-second-of-the-tokens\n")
        assert taken() == ["the-second-of-the-tokens"]
        file.write_text("")
        assert taken() == ["the-second-of-the-tokens"]


def test_it_serves_though_nothing_can_be_printed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log may go to a disk that is full, as the metrics would tell."""
    ran: list[Any] = []
    monkeypatch.setattr("notifier.server.run.bind", lambda *_: None)
    monkeypatch.setattr("notifier.server.run.run", lambda *given, **_: ran.append(given))
    monkeypatch.setattr(sys, "argv", ["notifier", "--config", str(config), "serve"])
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys.stdout, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0, len(ran)) == (0, 1)


def test_another_name_does_not_lead_here(config: Path) -> None:
    """A page of somebody else that makes its own name lead to this host learns nothing; --no-auth takes all names."""
    with serving(config) as ask:
        assert ask("/api/v1/stats", Host="evil.example:8787")[0] == 421
        for name in ("127.0.0.1.evil.example", "localhost.evil.example", "127.1", "192.0.2.7", "[::2]", "", "[", "::1"):
            assert ask("/api/v1/stats", Host=name)[0] == 421, name
        for name in ("localhost:8787", "LocalHost", "127.0.0.1", "127.0.0.2:8787", "[::1]:8787"):
            assert ask("/api/v1/stats", Host=name)[0] == 200, name
    with serving(config, is_open=True) as ask:
        assert ask("/api/v1/stats", Host="notifier.internal")[0] == 200


def test_the_metrics_tell_of_a_redis_that_hangs(tmp_path: Path) -> None:
    """A scrape is answered, so that its alert can fire: Redis is not up, and nothing else is told of now."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        at = {"url": f"redis://127.0.0.1:{deaf.getsockname()[1]}/0", "socket_timeout": "100ms"}
        with serving(write_config(tmp_path, "", redis=at)) as ask:
            status, text, _ = ask("/metrics")
    assert (status, "notifier_redis_up 0.0" in text, "\nnotifier_workers " in text) == (200, True, False)


def test_the_metrics_tell_of_a_redis_that_goes_while_they_are_read(redis: Redis) -> None:
    """Also after the numbers were read, while the limits in force are asked for."""
    limits = Mock(side_effect=RedisUnusableError("Redis does not answer"))
    text = Metrics(redis, [], {}, limits).text().decode()
    assert (limits.called, "notifier_redis_up 0.0" in text, "\nnotifier_workers " in text) == (True, True, False)


def test_the_metrics_tell_of_a_redis_that_refuses_what_is_written(config: Path, redis: Redis) -> None:
    """Workers can note nothing there: "no worker" would have people start some. One that is full lets them send."""
    with serving(config) as ask:
        redis.replicaof("127.0.0.1", 1)
        try:
            assert "notifier_redis_up 0.0" in ask("/metrics")[1]
        finally:
            redis.replicaof("NO", "ONE")
        redis.config_set("maxmemory", 1)
        try:
            assert "notifier_redis_up 1.0" in ask("/metrics")[1]
        finally:
            redis.config_set("maxmemory", 0)


def test_a_scrape_waits_for_nobody(config: Path) -> None:
    """However many ask while Redis hangs, a scrape is answered in time, so that its alert can fire."""
    goes_on = threading.Event()
    with serving(config, answer_s=10) as ask:
        server: Any = ask.server
        for _ in range(state.THREADS):
            server._state._threads.submit(goes_on.wait)
        try:
            assert ask("/metrics")[0] == 200
            with patch.object(state, "MAX_ASKED", 0):
                assert ask("/metrics")[0] == 200
        finally:
            goes_on.set()


def test_a_path_with_a_slash_more_leads_nowhere(config: Path) -> None:
    """A redirection would name http:// behind a proxy with TLS."""
    with serving(config) as ask:
        for path in ("/routes/", "/api/v1/stats/", "/metrics/"):
            status, _, headers = ask(path)
            assert (status, headers.get("location")) == (404, None), path


def test_a_redis_that_hangs(tmp_path: Path) -> None:
    """While Redis takes connections and never answers, it is alive, says 503 in time, and turns away a crowd."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        config = write_config(tmp_path, url)
        document = config.read_text(encoding="utf-8").replace(f"url: {url}", f"url: {url}\n  socket_timeout: 1s")
        config.write_text(document, encoding="utf-8")
        with serving(config, answer_s=0.3) as ask:
            for path in ("/", "/readyz", "/metrics", "/api/v1/stats", "/api/v1/jobs?id=one"):
                status, text, _ = ask(path)
                assert (status, "Redis does not answer" in text) == (503, True), path
            scrapes = [http.client.HTTPConnection("127.0.0.1", ask.port) for _ in range(5)]
            for each in scrapes:
                each.request("GET", "/metrics")
            for _ in range(2):  # whoever asks after them is answered after them
                assert ask("/routes")[0] == 503
            assert len(select.select([each.sock for each in scrapes], [], [], 0)[0]) == len(scrapes)
            for each in scrapes:
                each.close()
            crowd = [threading.Thread(target=ask, args=("/api/v1/stats",)) for _ in range(50)]
            for one in crowd:
                one.start()
            assert ask("/healthz")[0] == 200
            for one in crowd:
                one.join(30)


@pytest.mark.parametrize("hangs", [False, True])
async def test_who_is_not_answered_in_time_is_told_why(
    tmp_path: Path, redis_server: EmbeddedRedis, *, hangs: bool
) -> None:
    """Too many ask, if Redis has answered others meanwhile. A scrape that ends without its answer is no proof."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0" if hangs else redis_server.url
        running = State(write_config(tmp_path, "", redis={"url": url, "socket_timeout": "100ms"}))
        goes_on = threading.Event()
        try:
            waits = asyncio.create_task(running.in_time(goes_on.wait, 2.0))
            await asyncio.sleep(0)
            await running.in_time(lambda: (running.metrics.text(), hangs or running.now()), 60)
            with pytest.raises(ProblemError) as told:
                await waits
        finally:
            goes_on.set()
            running._threads.shutdown()
            running.close()
    assert told.value.title == ("Redis does not answer" if hangs else "Too many ask")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "notifier.example"])
def test_it_listens_to_others_with_a_token_alone(
    host: str, config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another address than this host's own is refused, unless there is a token, or --no-auth is said."""
    ran: list[str] = []
    monkeypatch.setattr("notifier.server.run.bind", lambda *_: None)
    monkeypatch.setattr("notifier.server.run.run", lambda *_, **__: ran.append(host))

    def serve(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["notifier", "--config", str(config), "serve", "--host", host, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert serve() == 2
    assert "NOTIFIER_SERVER_TOKEN" in capfd.readouterr().err
    assert (serve("--no-auth"), ran) == (0, [host])
    monkeypatch.setenv("NOTIFIER_SERVER_TOKEN", TOKEN)
    assert (serve(), ran) == (0, [host, host])
