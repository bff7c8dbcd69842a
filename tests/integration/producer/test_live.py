"""Producers follow the configuration while they run: by themselves, or when they are told to."""

import asyncio
import errno
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from notifier import AsyncNotifier, InvalidNotificationError, InvalidPreferenceError, Notifier, SettingsError
from notifier.producer import aio
from notifier.settings.rates import rates_in
from notifier.store import followed, live
from notifier.store.followed import Followed
from notifier.store.published import publish, withdraw
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.forks import exit_of_fork, stopped_reading
from tests.harness.support import PATIENCE_S, clean_environ, eventually, note, write_config

NEWS = note("anna", category="news")


def with_news(config: Path) -> Any:
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["categories"]["news"] = {"lane": "bulk"}
    return document


def write(config: Path, document: Any) -> None:
    config.write_text(yaml.safe_dump(document), encoding="utf-8")


class Plain:
    """Producers of both kinds, used alike."""

    def __init__(self, config: Path, **options: Any) -> None:
        self.made = Notifier.from_config(config, {}, **options)

    def send(self) -> str:
        return self.made.send(NEWS)

    def ask(self, call: Callable[[Any], Any]) -> object:
        told = call(self.made)
        return list(told) if isinstance(told, Iterator) else told

    def reload(self) -> None:
        self.made.reload()

    def end(self) -> None:
        self.made.close()

    def close(self) -> None:
        self.end()


class Awaited(Plain):
    """An AsyncNotifier."""

    def __init__(self, config: Path, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self.awaited = AsyncNotifier.from_config(config, {}, **options)

    def send(self) -> str:
        return self._loop.run_until_complete(self.awaited.send(NEWS))

    def ask(self, call: Callable[[Any], Any]) -> object:
        async def whole() -> object:
            told = call(self.awaited)
            return [each async for each in told] if isinstance(told, AsyncIterator) else await told

        return self._loop.run_until_complete(whole())

    def reload(self) -> None:
        self._loop.run_until_complete(self.awaited.reload())

    def end(self) -> None:
        self._loop.run_until_complete(self.awaited.aclose())

    def close(self) -> None:
        self.end()
        self._loop.close()


Make = Callable[..., Plain]


@pytest.fixture(params=[Plain, Awaited])
def make(request: pytest.FixtureRequest, config: Path) -> Iterator[Make]:
    made: list[Plain] = []

    def build(**options: Any) -> Plain:
        made.append(request.param(config, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def knows(producer: Plain) -> bool:
    try:
        return bool(producer.send())
    except InvalidNotificationError:
        return False


def test_a_category_that_is_added_is_known(make: Make, config: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is known a second after it was written; a file that is broken meanwhile changes nothing."""
    producer = make()
    assert not knows(producer)
    write(config, with_news(config))
    eventually(lambda: knows(producer), "the new category")
    config.write_text("categories: {news: {lane: express}}\n", encoding="utf-8")
    eventually(lambda: "refused" in caplog.text, "its refusal")
    assert "categories.news.lane" in caplog.text
    assert knows(producer)


def test_two_looks_are_two_seconds() -> None:
    """A changed file is taken up at the second look that finds it: within two seconds."""
    assert 2 * live.LOOK_S < 2


CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda made: made.send(note("anna")),
    "send_many": lambda made: made.send_many([]),
    "acquire": lambda made: made.acquire("anna"),
    "cancel": lambda made: made.cancel("unknown"),
    "cancel of a user": lambda made: made.cancel(user="anna"),
    "cancel_many": lambda made: made.cancel_many(["unknown"]),
    "forget": lambda made: made.forget("anna"),
    "feedback": lambda made: made.feedback(),
    "events": lambda made: made.events(),
    "routes": lambda made: made.routes(),
    "status": lambda made: made.status("unknown"),
    "history": lambda made: made.history("anna"),
    "users.set": lambda made: made.users.set("anna", gap="1s"),
    "users.mute": lambda made: made.users.mute("anna"),
    "users.unmute": lambda made: made.users.unmute("anna"),
    "users.get": lambda made: made.users.get("anna"),
    "users.clear": lambda made: made.users.clear("anna"),
    "users.export": lambda made: made.users.export(),
    "users.apply": lambda made: made.users.apply([{"user": "anna", "gap": "1s"}]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_begins_to_follow(make: Make, config: Path, call: Callable[[Any], Any]) -> None:
    """Whichever a program calls, and also where it called `close` before."""
    write(config, yaml.safe_load(config.read_text(encoding="utf-8")) | {"events": {"keep": "1d"}})
    before = looking()
    producer = make()
    assert looking() <= before
    producer.ask(call)
    eventually(lambda: looking() - before, "a thread that looks")
    (first,) = looking() - before
    producer.end()
    first.join(PATIENCE_S)
    producer.ask(call)
    eventually(lambda: looking() - before, "another one")


def test_channels_begin_to_follow(config: Path) -> None:
    """They ask Apple by the section of the file: before there is one, they say so."""
    producer, before = Plain(config), looking()
    with pytest.raises(SettingsError, match="has no 'shop'"):
        producer.ask(lambda made: made.channels.list(app="shop"))
    eventually(lambda: looking() - before, "a thread that looks")
    producer.close()


def test_choices_and_events_go_by_the_changed_file(make: Make, config: Path) -> None:
    """A program that only changes what users chose, or only reads events, goes by a changed file within two seconds."""
    producer = make()

    def done(call: Callable[[Any], Any]) -> bool:
        try:
            producer.ask(call)
        except (InvalidPreferenceError, SettingsError):
            return False
        return True

    chosen, events = partial(done, lambda made: made.users.set("anna", tier="quiet")), partial(done, CALLS["events"])
    assert (chosen(), events()) == (False, False)
    more = {"tiers": {"quiet": {"gap": "1h"}}, "users_may": {"tier": ["quiet"]}, "events": {"keep": "1d"}}
    write(config, yaml.safe_load(config.read_text(encoding="utf-8")) | more)
    eventually(chosen, "the tier")
    assert events()


def test_published_rates_are_known(
    make: Make, redis_server: EmbeddedRedis, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `notifier config apply` has published counts from a new producer's first call on, until it is withdrawn."""
    # The first call looks for a second, and goes by the file then: a busy machine needs longer.
    monkeypatch.setattr(live, "TIMEOUT_US", 60_000_000)
    monkeypatch.setattr(aio, "FIRST_LOOK_S", 60.0)
    config = write_config(tmp_path, redis_server.url, redis={"url": redis_server.url, "socket_timeout": "120s"})
    publish(redis, rates_in(with_news(config)), 0)
    producer = make()
    producer.ask(lambda made: made.users.mute("bert", categories=["news"]))
    assert knows(producer)
    assert withdraw(redis)
    eventually(lambda: not knows(producer), "the file's own categories")


def test_rates_in_force_hold_until_others_begin(make: Make, config: Path, redis: Redis) -> None:
    """Laws 1 and 7: also where it starts meanwhile, or reads its file again. Rates that are withdrawn never begin."""
    publish(redis, rates_in(with_news(config)), 0)
    running = make(follow=False)
    running.reload()
    publish(redis, rates_in(yaml.safe_load(config.read_text(encoding="utf-8"))), 60_000_000)
    starting = make(follow=False)
    for producer in (running, starting):
        producer.reload()
        assert knows(producer)
    withdraw(redis)
    for producer in (running, starting):
        producer.reload()
        assert not knows(producer)


def test_rates_that_are_replaced_while_they_are_read_leave_those_in_force(config: Path, redis: Redis) -> None:
    """Laws 1 and 7: the others begin later, though they stand there already."""
    own = rates_in(yaml.safe_load(config.read_text(encoding="utf-8")))
    followed = Followed(config, {})
    publish(redis, rates_in(with_news(config)), 0)

    def ask(question: Callable[[Redis], Any]) -> Any:
        told = question(redis)
        publish(redis, own, 60_000_000)
        return told

    taken = followed.look(ask)
    assert "news" in taken.categories
    assert followed.look(lambda question: question(redis)) is None


def test_reload(make: Make, config: Path) -> None:
    """Without `follow` nothing changes until `reload`; what cannot be used is raised, and all stays as it was."""
    producer = make(follow=False)
    whole = with_news(config)
    write(config, whole)
    assert not knows(producer)
    producer.reload()
    assert knows(producer)
    write(config, {"categories": {"news": {"lane": "express"}}})
    with pytest.raises(SettingsError, match="lane"):
        producer.reload()
    assert knows(producer)


def test_a_program_that_changes_its_folder_follows_the_same_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon does, and a relative path would mean another file then."""
    monkeypatch.chdir(config.parent)
    with Notifier.from_config(config.name, {}) as made:
        write(config, with_news(config))
        monkeypatch.chdir(tmp_path.parent)
        made.reload()
        made.check(NEWS)


def test_a_signal_reloads_also_while_a_look_is_under_way(config: Path) -> None:
    """Its handler runs inside that look, in the same thread: it waits for no lock."""
    with Notifier.from_config(config, follow=False) as producer:
        write(config, with_news(config))
        with producer._live._followed.lock:
            producer.reload()
        producer.send(note("anna", category="news"))


def test_a_child_of_a_fork_reloads_what_its_parent_was_about_to_read(
    config: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the parent held the lock at the fork (gunicorn --preload), and is not there in the child."""

    def reload_and_send() -> None:
        producer.reload()
        producer.send(NEWS)

    with Notifier.from_config(config) as producer, stopped_reading(monkeypatch) as reads:
        write(config, with_news(config))
        thread = threading.Thread(target=producer.reload)
        thread.start()
        assert reads.wait(PATIENCE_S)
        assert exit_of_fork(reload_and_send) == 0
    thread.join()
    assert redis.llen("rq:queue:bulk") == 1


def test_who_has_no_file_cannot_reload() -> None:
    """A Notifier that was made from settings says so."""
    with pytest.raises(SettingsError, match="from_config"):
        FakeNotifier().reload()


def looking() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "notifier-follows-rates"}


def test_nobody_looks_for_a_notifier_that_is_gone(config: Path) -> None:
    """No thread is there before the first call; closing ends it, and so does forgetting to close."""
    before = looking()
    closed, forgotten = (Notifier.from_config(config, {}) for _ in range(2))
    assert looking() == before
    for each in (closed, forgotten):
        each.check(note("anna"))
    assert len(looking() - before) == 2
    closed.close()
    del each, forgotten
    eventually(lambda: looking() <= before, "the end of both threads")


FORK = """
import os, sys, time
from notifier import Device, InvalidNotificationError, Notification, Notifier

def knows():
    try:
        return notifier.send(Notification("anna", [Device("fcm", "a-registration-0001")], "Hello", category="news"))
    except InvalidNotificationError:
        return False

notifier = Notifier.from_config(sys.argv[1])
assert not knows()
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
print("forked", flush=True)
while not knows():
    time.sleep(0.01)
"""


def test_after_a_fork_the_child_looks_too(config: Path, redis: Redis) -> None:
    """A producer that followed before a fork follows in the child as well (gunicorn --preload)."""
    with subprocess.Popen(
        [sys.executable, "-c", FORK, str(config)], env=clean_environ(), stdout=subprocess.PIPE, text=True
    ) as forks:
        assert forks.stdout.readline() == "forked\n"
        write(config, with_news(config))
        assert forks.wait(PATIENCE_S) == 0
    assert redis.llen("rq:queue:bulk") == 1


AT_EXIT = """
import asyncio, atexit, sys
from notifier import AsyncNotifier, Device, Notification, Notifier

def note(number):
    return Notification(str(number), [Device("fcm", "a-registration-0001")], "Hello")

def flush():
    made, told = Notifier.from_config(sys.argv[1]), []
    made.send(note(0))
    print(made.send_many(map(note, range(250)), on_accepted=lambda ids: told.append(len(ids))), told)

async def flush_async():
    async with AsyncNotifier.from_config(sys.argv[1]) as made:
        await made.send(note(0))
        print(await made.send_many(map(note, range(250))))

# Not asyncio.run, which on Python 3.12 fails in the end where nobody can begin a thread.
atexit.register(lambda: asyncio.new_event_loop().run_until_complete(flush_async()))
atexit.register(flush)
"""


def test_what_is_left_is_sent_while_the_interpreter_ends(config: Path, redis: Redis) -> None:
    """No thread begins any more then: neither the one that follows, nor the one that waits for Redis."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(config)],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("250 [100, 100, 50]\n250\n", "")
    assert redis.llen("rq:queue:default") == 502


def test_a_disk_that_fails_is_logged_once(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is read at each look, as nobody changes it when the disk works again; that may take hours."""
    settings = live.LiveSettings(config, {})
    load, news = followed.load_settings, with_news(config)

    def fail(*_: Any, **__: Any) -> Any:
        looks.append(1)
        raise SettingsError("n.yaml: cannot be read: Input/output error") from OSError(errno.EIO, "")

    looks: list[int] = []
    caplog.set_level("INFO", "notifier")
    monkeypatch.setattr(followed, "load_settings", fail)
    monkeypatch.setattr(followed, "AGAIN_NS", 0)
    for _ in range(2):
        write(config, news)
        for _ in range(3):
            settings._look()
        monkeypatch.setattr(followed, "load_settings", load)
        settings._look()
        assert "news" in settings.settings.categories
        monkeypatch.setattr(followed, "load_settings", fail)
        news["categories"]["news"]["lane"] = "urgent"
    assert len(looks) >= 4  # also where nothing was logged
    assert ["refused" in line for line in caplog.messages] == [True, False] * 2


def test_published_rates_that_cannot_be_read_are_logged_once(
    config: Path, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody wrote into Redis by hand; the rates in force hold on."""
    settings = live.LiveSettings(config, {})
    version = settings.settings.rates_version
    redis.hset("notifier:rates", mapping={"version": "1", "at": "0", "rates": "no JSON"})
    for _ in range(3):
        settings._look()
    assert settings.settings.rates_version == version
    assert ["published rates cannot be read" in line for line in caplog.messages] == [True]
