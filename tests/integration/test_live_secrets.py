"""Keys, accounts and tokens of the providers that change on disk: taken up without a restart, and nothing is lost."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from redis import Redis

from notifier import Device, Notifier, RedisUnusableError
from notifier.providers.webpush.crypto import STRANGERS
from notifier.queue.circuits import find_routes
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import make_apns_key, make_certificates, make_webpush_key
from notifier.simulators.expo import ExpoSimulator
from notifier.simulators.fcm import make_service_account
from notifier.simulators.hms import HmsSimulator
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import WireLog
from notifier.store.exchange import exchange
from notifier.testing.embedded import EmbeddedRedis
from tests.contract.providers.apns.test_tls import Authority
from tests.harness.support import (
    PATIENCE_S,
    TEAM_ID,
    TOPIC,
    Simulators,
    WorkerProcess,
    apns,
    client_of,
    ends,
    eventually,
    fcm,
    let_go,
    note,
    notifier,
    worker,
    write_config,
)
from workers.sending.circuits import FAILURES

DEVICES = {
    "apns": apns("ann"),
    "fcm": fcm("ann"),
    "hms": Device("hms", f"IQAAAACy0{'ann':_>40}"),
    "expo": Device("expo", f"ExponentPushToken[{'ann':_>22}]"),
}

NEVER_US = 4_102_444_800_000_000  # in the year 2100


@dataclass
class Mounted:
    """Secrets as Kubernetes mounts them: each file is a link into a folder that is exchanged as a whole."""

    folder: Path
    files: dict[str, str] = field(default_factory=dict)
    _versions: int = 0

    def write(self, **files: str) -> None:
        """Replace these files; the others are written anew with the content that they had."""
        self.files |= files
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir(parents=True)
        for name, content in self.files.items():
            (version / name).write_text(content)
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").rename(self.folder / "..data")
        for name in self.files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")


@dataclass
class World:
    """A worker for four platforms, whose servers accept what `rotate` made last."""

    simulators: Simulators
    hms: HmsSimulator
    hms_secrets: dict[str, str]
    expo: ExpoSimulator
    secrets: Mounted
    producer: Notifier
    worker: WorkerProcess

    def rotate(self, folder: Path, number: int) -> None:
        """New secrets of all four: their servers accept them beside the old ones, as long as FCM's tokens live."""
        folder.mkdir()
        key_id = f"ROTATED{number:03}"
        key, public = make_apns_key(folder, key_id)
        self.simulators.team_keys[key_id] = TEAM_ID, public
        account = make_service_account(folder, f"{self.simulators.fcm.url}/token", "simulated-project")
        self.simulators.fcm.trust(account)
        texts = {"key": key.read_text(), "key_id": key_id, "account": account.read_text()}
        self.secrets.write(**texts, hms=f"secret-{number}", expo=f"token-{number}")

    def forget_old(self, number: int) -> None:
        """Let the servers accept the newest alone."""
        for key_id in list(self.simulators.team_keys)[:-1]:
            del self.simulators.team_keys[key_id]
        self.simulators.fcm.expire_tokens()
        self.hms_secrets["1042"] = f"secret-{number}"
        self.hms.expire_tokens()
        self.expo.access_token = f"token-{number}"

    def logged(self, event: str, platform: str) -> bool:
        lines = self.worker.log.splitlines()
        return any(f'"{event}"' in line and f'"platform": "{platform}"' in line for line in lines)

    def deliver(self, title: str) -> None:
        """Send one to each platform, and wait until all are delivered."""
        for device in DEVICES.values():
            ends(self.producer, self.producer.send(note("ann", title, device, body="…")), "delivered")


@pytest.fixture
def world(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[World]:
    certificates, log = make_certificates(tmp_path), WireLog()
    with Simulators(tmp_path / "simulators") as simulators:
        hms = HmsSimulator(certificates=certificates, log=log, apps=(hms_secrets := {"1042": "secret-0"}))
        expo = ExpoSimulator(certificates=certificates, log=log, access_token="token-0")
        for server in (hms, expo):
            simulators.call(server.start())
        more = {"ca_file": str(certificates.ca_file), "timeout": "1s"}
        providers = simulators.providers() | {
            "hms": {"app_id": "1042", "secret_file": "s/hms", "endpoint": hms.url, "token_endpoint": hms.url} | more,
            "expo": {"access_token_file": "s/expo", "endpoint": expo.url} | more,
        }
        providers["apns"] |= {"key_file": "s/key", "key_id_file": "s/key_id"}
        del providers["apns"]["key_id"]
        providers["fcm"] |= {"service_account": "s/account"}
        config = write_config(tmp_path / "config", redis_server.url, providers)
        with client_of(config) as redis, notifier(config) as producer:
            redis.flushdb()
            running = worker(config)
            made = World(simulators, hms, hms_secrets, expo, Mounted(config.parent / "s"), producer, running)
            made.rotate(tmp_path / "0", 0)
            with running:
                running.ready(redis)
                yield made
        for server in (hms, expo):
            simulators.call(server.close())


def test_new_secrets_are_taken_up(world: World, tmp_path: Path) -> None:
    """Servers that accept the new ones alone get all that follows.

    Then half a key, and half an account: they are refused, each with a line that shows nothing of it, and the old ones
    go on. What has not changed is left alone.
    """
    world.deliver("before")
    world.rotate(tmp_path / "1", 1)
    eventually(lambda: all(world.logged("secrets_taken_up", name) for name in DEVICES))
    world.forget_old(1)
    world.deliver("after")

    half = {name: world.secrets.files[name][:100] for name in ("key", "account")}
    world.secrets.write(**half)
    eventually(lambda: all(world.logged("secrets_refused", name) for name in ("apns", "fcm")))
    world.deliver("broken")
    assert not any(world.logged("secrets_refused", name) for name in ("hms", "expo"))
    assert world.worker.log.count("secrets_taken_up") == len(DEVICES)
    lines_of_key = half["key"].splitlines()[1]
    for secret in (lines_of_key, half["account"][-40:], "secret-1", "token-1"):
        assert secret not in world.worker.log


@contextmanager
def running(*servers: Any) -> Iterator[None]:
    """These servers, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    try:
        for server in servers:
            call(server.start())
        yield
        for server in servers:
            call(server.close())
        call(let_go())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_what_a_wrong_key_held_back_goes_when_the_key_is_mended(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """A certificate that Apple does not know, and a key of another site: both circuits open, and nothing is probed.

    With the right files in their place both are probed, whatever the wait had been, and close.
    """
    certificates, log = make_certificates(tmp_path), WireLog()
    authorities = {name: Authority(tmp_path / name) for name in ("right", "wrong")}
    certified = {name: each.certificate(ExtendedKeyUsageOID.CLIENT_AUTH) for name, each in authorities.items()}
    for name in ("right", "wrong"):
        (tmp_path / f"push-{name}").mkdir()
    keys = {name: make_webpush_key(tmp_path / f"push-{name}") for name in ("wrong", "right")}
    texts = {
        name: {"cert": certified[name][0].read_text(), "key": certified[name][1].read_text()}
        | {"vapid": keys[name][0].read_text()}
        for name in ("wrong", "right")
    }
    apple = ApnsSimulator(
        certificates=certificates, log=log, topics={TOPIC}, team_keys={}, client_ca_file=authorities["right"].file
    )
    browsers = WebPushSimulator(certificates=certificates, log=log, public_key=keys["right"][1])
    with running(apple, browsers):
        more = {"ca_file": str(certificates.ca_file), "timeout": "1s"}
        providers = {
            "apns": {"topic": TOPIC, "cert_file": "s/cert", "cert_key_file": "s/key", "endpoint": apple.url} | more,
            "webpush": {
                "key_file": "s/vapid",
                "subject": "mailto:push@example.com",
                "hosts": [browsers.url.removeprefix("https://")],
            }
            | more,
        }
        tries = {"default": {"lane": "default", "attempts": 100}}
        config = write_config(tmp_path / "config", redis_server.url, providers, categories=tries)
        secrets = Mounted(config.parent / "s")
        secrets.write(**texts["wrong"])
        with client_of(config) as redis, notifier(config) as producer:
            redis.flushdb()
            with worker(config) as working:
                working.ready(redis)
                # A push service that refuses few browsers may have old subscriptions of them.
                devices = [Device("webpush", browsers.subscribe(f"b{n}")) for n in range(STRANGERS + 1)]
                devices += [apns(f"a{n}") for n in range(FAILURES)]
                producer.send_many([note(f"user-{n}", "held", device) for n, device in enumerate(devices)])
                eventually(lambda: len(exchange(redis, find_routes())) == 2, "two circuits")
                for held in exchange(redis, find_routes()):
                    waits = dict.fromkeys(("until", "others", "interval"), NEVER_US)
                    redis.hset(f"notifier:route:{held.route}", mapping=waits)
                secrets.write(**texts["right"])
                eventually(lambda: exchange(redis, find_routes()) == [], "no circuit")
                taken = {arrival.platform for arrival in log.arrivals if arrival.status == 200}
    assert taken == {"apns", "webpush"}


def test_a_new_password_of_redis_is_taken_up(tmp_path: Path) -> None:
    """Redis takes another password and ends all connections: what is sent then goes once the file has the new one.

    A file that is empty for a while changes nothing for who holds the right password.
    """
    password = tmp_path / "password"
    password.write_text("hunter-first\n")
    with EmbeddedRedis(extra_args=("--requirepass", "hunter-first")) as server:
        config = write_config(tmp_path, server.url, redis={"url": server.url, "password_file": str(password)})
        admin = Redis.from_url(server.url, password="hunter-first")
        with admin, notifier(config) as producer, worker(config) as running:
            running.ready(admin)
            ends(producer, producer.send(note("ann", "before")), "delivered")

            password.write_text("")
            _end_connections(admin)
            ends(producer, producer.send(note("ann", "empty")), "delivered")
            assert f"redis.password_file: {password} is empty" in running.log

            admin.config_set("requirepass", "hunter-second")
            _end_connections(admin)
            with pytest.raises(RedisUnusableError, match="refuses the password"):
                producer.send(note("ann", "refused"))
            password.write_text("hunter-second\n")
            ends(producer, producer.send(note("ann", "after")), "delivered")
            for secret in ("hunter-first", "hunter-second"):
                assert secret not in running.log


def _end_connections(admin: Redis) -> None:
    for kind in ("normal", "pubsub"):
        admin.client_kill_filter(_type=kind, skipme=True)
