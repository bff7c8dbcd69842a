"""The projects under examples/, on the real frameworks and servers: what they accept, a worker delivers."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest
from redis import Redis

from notifier.testing.embedded import EmbeddedRedis
from notifier.testing.ports import free_port
from tests.harness import pages, warm
from tests.harness.support import clean_environ, eventually
from tests.harness.vapid import make_key

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True, slots=True)
class Project:
    """One of the projects, in its folder, with a Redis of the tests."""

    folder: Path
    environ: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A Python program of it, to its end."""
        return warm.run([sys.executable, *command], cwd=self.folder, env=self.environ)

    @contextmanager
    def serving(self, *command: str) -> Iterator["Site"]:
        """A server of it. {port} in the command is a free one."""
        port = free_port()
        told = [part.format(port=port) for part in command]
        with subprocess.Popen([sys.executable, *told], cwd=self.folder, env=self.environ) as process:

            def listens() -> bool:
                assert process.poll() is None
                with socket.socket() as tried:
                    return tried.connect_ex(("127.0.0.1", port)) == 0

            try:
                eventually(listens, "the server")
                yield Site(f"http://127.0.0.1:{port}")
            finally:
                process.terminate()


@dataclass(frozen=True, slots=True)
class Site:
    """A project that is being served."""

    url: str

    def ask(self, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, Any]:
        request = Request(self.url + path, data=body, headers={"Content-Type": kind} if kind else {})
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, error.read()

    def connection(self) -> HTTPConnection:
        return HTTPConnection(urlsplit(self.url).netloc, timeout=10)

    def form(self, path: str, **fields: str) -> tuple[int, Any]:
        return self.ask(path, urlencode(fields).encode(), "application/x-www-form-urlencoded")

    def json(self, path: str, **fields: str) -> tuple[int, Any]:
        return self.ask(path, json.dumps(fields).encode(), "application/json")


def project(name: str, redis_server: EmbeddedRedis, **environ: str) -> Project:
    folder = EXAMPLES / name
    kept = clean_environ(**{"NOTIFIER_REDIS_URL": redis_server.url, "PYTHONDONTWRITEBYTECODE": "1"} | environ)
    return Project(folder, kept)


def test_fastapi(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """A message that a route accepted is delivered by a worker; what is wrong with it is a 422."""
    del redis
    of = project("fastapi_chat", redis_server)
    with of.serving("-m", "uvicorn", "app:app", "--port", "{port}", "--log-level", "warning") as site:
        status, found = site.json("/messages", to="anna", token="a-registration-0001", text="Are you coming?")
        assert status == 202
        job = f"/messages/{found['job_id']}"
        assert site.ask(job) == (200, {"state": "queued"})
        assert of.run("-m", "workers", "--config", "notifier.yaml", "--burst").returncode == 0
        assert site.ask(job) == (200, {"state": "delivered"})
        assert site.json("/messages", to="", token="a-registration-0001", text="To whom?")[0] == 422
        assert site.ask("/messages/unknown")[0] == 404


def test_fastapi_as_the_page_shows_it(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Its program takes neither a token nor a text in the address, which servers log."""
    del redis
    program = pages.python_blocks("how-to/frameworks.md", "")[0]
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    shutil.copy(EXAMPLES / "fastapi_chat" / "notifier.yaml", tmp_path)
    of = Project(tmp_path, project("fastapi_chat", redis_server).environ)
    with of.serving("-m", "uvicorn", "app:app", "--port", "{port}", "--log-level", "warning") as site:
        assert site.json("/messages", to="ada", token="the-phone-of-ada", text="Hello")[0] == 202
        assert "parameters" not in site.ask("/openapi.json")[1]["paths"]["/messages"]["post"]


def test_flask_behind_gunicorn(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """The app is made before gunicorn forks, and each of its processes sends; a worker delivers it all."""
    del redis
    of, processes, jobs = project("flask_blog", redis_server), set(), []
    with of.serving(
        "-m", "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:{port}", "--log-level", "warning",
        "app:create_app()",
    ) as site:  # fmt: skip

        def both() -> bool:
            told = {"reader": f"reader-{len(jobs)}", "token": "a-registration-0001", "text": "Well said"}
            status, found = site.form("/comments", **told)
            assert status == 202
            jobs.append(found["job_id"])
            processes.add(found["process"])
            return len(processes) == 2

        eventually(both, "an answer of each process")
        assert of.run("-m", "workers", "--config", "notifier.yaml", "--burst").returncode == 0
        assert {site.ask(f"/comments/{job}")[1]["state"] for job in jobs} == {"delivered"}
        assert site.form("/comments", reader="", token="a-registration-0001", text="To whom?")[0] == 422


def test_the_page_of_web_push(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """An idle connection keeps nobody out, and what is no subscription is a 400."""
    del redis
    (tmp_path / "key.pem").write_text(make_key(), encoding="ascii")
    config = str(EXAMPLES.parent / "config" / "notifier.yaml")
    of = project("webpush", redis_server, NOTIFIER_CONFIG=config)
    wrong = of.run("serve.py", str(tmp_path / "key.pem"), "abc")
    assert (wrong.returncode, wrong.stderr.startswith("A page that subscribes")) == (1, True)
    with of.serving("serve.py", str(tmp_path / "key.pem"), "{port}") as site, closing(site.connection()) as idle:
        idle.connect()
        assert site.ask("/subscriptions", b"\xff", "text/plain")[0] == 400
        for headers in ({}, {"Content-Length": "-1"}, {"Content-Length": "x"}):
            with closing(site.connection()) as http:
                http.putrequest("POST", "/subscriptions")
                for header in headers.items():
                    http.putheader(*header)
                http.endheaders()
                assert http.getresponse().status == 400, headers


@pytest.fixture
def shop(tmp_path: Path, redis_server: EmbeddedRedis) -> Project:
    return project("django_shop", redis_server, SHOP_DB=str(tmp_path / "shop.sqlite3"))


def test_django(redis: Redis, shop: Project) -> None:
    """An order and its notification are one transaction; `manage.py push_worker` delivers."""
    done = shop.run("manage.py", "migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    with shop.serving("manage.py", "runserver", "--noreload", "{port}") as site:
        status, found = site.form("/orders", customer="anna", item="lamp", token="a-registration-0001")
        assert status == 201
        order = f"/orders/{found['order']}"
        assert site.ask(order) == (200, {"item": "lamp", "told": "queued"})
        assert site.form("/orders", customer="anna", item="moon", token="a-registration-0001")[0] == 409
        assert redis.hget("notifier:stats", "accepted") == b"1"  # and not the one that was rolled back
        assert site.form("/orders", customer="", item="lamp", token="a-registration-0001")[0] == 422
        assert site.form("/orders", customer="anna", item="lamp") == (422, b'{"error": "\'token\' is missing"}')
        wrong = shop.run("manage.py", "push_worker", "chat")
        assert (
            wrong.returncode,
            "'chat' is no lane; the lanes are" in wrong.stderr,
            "--partitions" in wrong.stderr,
        ) == (
            2,
            True,
            False,
        )
        done = shop.run("manage.py", "push_worker", "--burst")
        assert done.returncode == 0, done.stderr
        assert site.ask(order) == (200, {"item": "lamp", "told": "delivered"})


NO_REDIS = "redis://127.0.0.1:1"


def test_fastapi_without_redis(redis_server: EmbeddedRedis) -> None:
    """Each route answers 503."""
    of = project("fastapi_chat", redis_server, NOTIFIER_REDIS_URL=NO_REDIS)
    with of.serving("-m", "uvicorn", "app:app", "--port", "{port}", "--log-level", "warning") as site:
        assert site.json("/messages", to="anna", token="a-registration-0001", text="Are you coming?")[0] == 503
        assert site.ask("/messages/unknown")[0] == 503


def test_flask_without_redis(redis_server: EmbeddedRedis) -> None:
    """Each route answers 503."""
    of = project("flask_blog", redis_server, NOTIFIER_REDIS_URL=NO_REDIS)
    with of.serving(
        "-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--log-level", "warning", "app:create_app()"
    ) as site:
        assert site.form("/comments", reader="anna", token="a-registration-0001", text="Well said")[0] == 503
        assert site.ask("/comments/unknown")[0] == 503


def test_django_without_redis(shop: Project) -> None:
    """An order is an order; the log says that its announcement failed."""
    shop.environ.update(NOTIFIER_REDIS_URL=NO_REDIS)
    assert shop.run("manage.py", "migrate", "--verbosity", "0").returncode == 0
    with shop.serving("manage.py", "runserver", "--noreload", "{port}") as site:
        assert site.form("/orders", customer="anna", item="lamp", token="a-registration-0001") == (201, {"order": 1})
        assert site.ask("/orders/1")[0] == 503


def test_django_checks_the_configuration(shop: Project, tmp_path: Path) -> None:
    """`manage.py check` names each thing that is wrong in the YAML, and ends with an error."""
    (tmp_path / "broken.yaml").write_text("user: {gap: soon}\ncategories: {chat: {lane: express}}\n", encoding="utf-8")
    settings = f"from shop.settings import *\nNOTIFIER_CONFIG = {str(tmp_path / 'broken.yaml')!r}\n"
    (tmp_path / "broken_settings.py").write_text(settings, encoding="utf-8")
    shop.environ.update(PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="broken_settings")
    done = shop.run("manage.py", "check")
    assert done.returncode == 1
    assert done.stderr.count("(notifier.E001)") == 2
    assert "user.gap" in done.stderr
    assert "categories.chat.lane" in done.stderr


def sent_once(redis: Redis, of: Project, program: str, worker: list[str]) -> None:
    """What the tasks a, a once more, and b send is accepted and delivered once each; they run one after the other."""
    asked = of.run("-c", program)
    assert asked.returncode == 0, asked.stderr
    with subprocess.Popen([sys.executable, "-m", *worker], cwd=of.folder, env=of.environ) as process:
        try:
            eventually(lambda: redis.hget("notifier:stats", "accepted") == b"2", "both greetings", within_s=60)
        finally:
            process.terminate()
    done = of.run("-m", "workers", "--config", "notifier.yaml", "--burst")
    assert done.returncode == 0, done.stderr
    assert redis.hget("notifier:stats", "delivered") == b"2"


def repeated(redis: Redis, of: Project, once: str, directly: str) -> None:
    """A task that runs once more sends nothing, even if what it sent is kept no more; each direct call sends."""
    for _ in range(2):
        done = of.run("-c", once)
        assert done.returncode == 0, done.stderr
        assert of.run("-m", "workers", "--config", "notifier.yaml", "--burst").returncode == 0
        redis.delete("notifier:delivered")  # as when `keep_delivered` has passed
    assert redis.hget("notifier:stats", "accepted") == b"1"
    done = of.run("-c", directly)
    assert done.returncode == 0, done.stderr
    assert redis.hget("notifier:stats", "accepted") == b"3"


def test_a_task_of_celery_runs_again(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """As after a lost answer; and as a test calls it."""
    of = project("celery_app", redis_server, BROKER_URL=redis_server.url)
    once = "from tasks import greet; greet.apply(('a', 'a-registration-0001'), task_id='a').get()"
    repeated(redis, of, once, "from tasks import greet; [greet('a', 'a-registration-0001') for _ in range(2)]")


def test_a_task_of_celery_waits_for_redis(redis_server: EmbeddedRedis) -> None:
    """However often it has been tried: without `max_retries=None` Celery gives up after the third time."""
    of = project("celery_app", redis_server)
    done = of.run("-c", "from tasks import greet; print(greet.max_retries)")
    assert done.stdout == "None\n", done.stderr


def test_a_task_of_dramatiq_runs_again(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """As after a lost answer; and as a test calls it."""
    of = project("dramatiq_app", redis_server, BROKER_URL=redis_server.url)
    once = (
        "from tasks import broker, greet\n"
        "message = greet.message('a', 'a-registration-0001').copy(message_id='a')\n"
        "broker.emit_before('process_message', message)\n"
        "greet('a', 'a-registration-0001')"
    )
    repeated(redis, of, once, "from tasks import greet; [greet('a', 'a-registration-0001') for _ in range(2)]")


def test_celery(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """A task of Celery's own worker, in a forked process."""
    of = project("celery_app", redis_server, BROKER_URL=redis_server.url)
    program = (
        "from tasks import greet; [greet.apply_async((u, 'a-registration-0001'), task_id=u) for u in ('a', 'a', 'b')]"
    )
    sent_once(redis, of, program, ["celery", "--app", "tasks", "worker", "--concurrency", "1", "--loglevel", "ERROR"])


def test_dramatiq(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """An actor in Dramatiq's own worker."""
    of = project("dramatiq_app", redis_server, BROKER_URL=redis_server.url)
    program = (
        "from tasks import broker, greet\n"
        "for user in ('a', 'a', 'b'):\n"
        "    broker.enqueue(greet.message(user, 'a-registration-0001').copy(message_id=user))"
    )
    sent_once(redis, of, program, ["dramatiq", "tasks", "--processes", "1", "--threads", "1"])


FORKS = """
import os, sys
from notifier import Device, Notification, Notifier

def note(who, n):
    return Notification(user=f"{who}-{n}", devices=[Device("fcm", "a-registration-0001")], title="Hello")

notifier = Notifier.from_config(sys.argv[1])
ids = [notifier.send(note("before", 0))]  # its connection is open when the process forks
children = []
for child in range(3):
    if not (pid := os.fork()):
        for n in range(50):
            job_id = notifier.send(note(child, n))
            assert notifier.status(job_id).state == "queued"
        os._exit(0)
    children.append(pid)
for n in range(50):
    job_id = notifier.send(note("parent", n))
    assert notifier.status(job_id).state == "queued"
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
assert notifier.send_many(note("after", n) for n in range(10)) == 10
"""


def test_a_notifier_survives_a_fork(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """A Notifier that has been used before a fork serves both sides at once: no answer goes to the wrong process."""
    config = str(EXAMPLES / "flask_blog" / "notifier.yaml")
    done = subprocess.run(
        [sys.executable, "-c", FORKS, config],
        env=clean_environ(NOTIFIER_REDIS_URL=redis_server.url),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert redis.llen("rq:queue:default") == 1 + 3 * 50 + 50 + 10
