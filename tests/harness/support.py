"""What the integration tests share: simulators in a thread, configurations, worker processes, and patience."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Self, TypeVar

import yaml
from redis import Redis
from rq import Queue
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer

from notifier import Notification, Notifier
from notifier.notification import Device
from notifier.scripts.keys import user_key
from notifier.settings import load_settings
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.wire import Arrival, Reply, WireLog
from tests.harness import warm
from tests.harness.asking import InMemory

T = TypeVar("T")

PATIENCE_S: Final = 60.0  # how long a test waits for what should come soon, also on a machine with much to do
POLL_S: Final = 0.01
HELD_MS: Final = 600_000  # of an answer that a test lets go: longer than any waits for it
STOP_US: Final = 100_000  # by which a send is longer than others where the machine, or a part of it, stood still
OLD_S: Final = 60.0  # of a configuration: a worker that starts waits for a new one to be whole
TOPIC: Final = "com.example.app"
TEAM_ID: Final = "SIMTEAM001"
KEY_ID: Final = "SIMULATED1"
LANES: Final = ("urgent", "default", "bulk")

# A machine with much to do may be silent for seconds: a test that waits for a timeout or a lease asks for short ones.
WORKER: Final = {"lease": "10s", "grace": "4s", "backoff": {"first": "50ms", "most": "200ms"}}


def eventually(condition: Callable[[], T], what: str = "", *, within_s: float = PATIENCE_S) -> T:
    """The first true value of the condition; fails the test, saying `what`, if none comes within `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'the condition'} did not come about within {within_s} s; last: {value!r}")
        time.sleep(POLL_S)


def apns(name: str) -> Device:
    """A device of Apple's, another one for each name."""
    return Device("apns", name.encode().hex().rjust(64, "0")[-64:])


def fcm(name: str) -> Device:
    """A device of Firebase's, another one for each name."""
    return Device("fcm", f"fcm-registration-{name}")


def note(user: str, title: str = "Hello", *devices: Device, **fields: Any) -> Notification:
    """A notification for a user, to the user's one Apple device unless devices are given."""
    return Notification(user=user, devices=devices or (apns(user),), title=title, **fields)


def plain(user: str, title: str, *devices: Device, **fields: Any) -> dict[str, Any]:
    """The same as the arguments of a job that is enqueued without our library."""
    to = [{"platform": device.platform, "token": device.token} for device in devices or (apns(user),)]
    return {"user": user, "devices": to, "title": title, **fields}


class _Held(Reply):
    """An answer that comes when a test lets it go."""


class _Loop(asyncio.SelectorEventLoop):
    """The simulators' loop. held: the answers that wait to be let go, each with what gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Reply, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Note it where it is a held answer that is to be given."""
        self.held += [(each, partial(callback, *args)) for each in args if isinstance(each, _Held)]
        return super().call_later(delay, callback, *args, context=context)


class Simulators:
    """Both simulators, in a thread of this process: what arrived is in `arrivals`, answers go into `scripts`.

    apps: further ones, each with the topic com.example.<app> and the project simulated-<app>.
    """

    def __init__(self, folder: Path, *, apps: Sequence[str] = (), **apns_options: Any) -> None:
        self._folder = folder
        self._topics = {app: f"com.example.{app}" for app in apps}
        self._apns_options = apns_options
        self._log = WireLog()
        self.scripts: dict[str, Sequence[Reply]] = {}
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulators")

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        certificates = make_certificates(self._folder)
        self._key, public = make_apns_key(self._folder, KEY_ID)
        self.team_keys = {KEY_ID: (TEAM_ID, public)}  # of Apple's
        self._ca_file = str(certificates.ca_file)
        self.apns = ApnsSimulator(
            certificates=certificates,
            log=self._log,
            scripts=self.scripts,
            topics={TOPIC, *self._topics.values()},
            team_keys=self.team_keys,
            **self._apns_options,
        )
        self.fcm = FcmSimulator(certificates=certificates, log=self._log, scripts=self.scripts)
        self._thread.start()
        self.call(self.apns.start())
        self.call(self.fcm.start())
        token_uri = f"{self.fcm.url}/token"
        self._account = make_service_account(self._folder, token_uri, "simulated-project")
        self._accounts = {
            app: make_service_account(self._folder, token_uri, f"simulated-{app}", app) for app in self._topics
        }
        for account in (self._account, *self._accounts.values()):
            self.fcm.trust(account)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.apns.close())
        self.call(self.fcm.close())
        self.call(let_go())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the simulators' loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def answer(self, device: Device, *replies: Reply) -> Device:
        """Script the answers to a device's messages; the last one repeats."""
        self.scripts[device.token] = replies
        return device

    def delay(self, device: Device, ms: int) -> Device:
        """Let each answer to this device wait."""
        return self.answer(device, Reply(200, delay_ms=ms))

    def hold(self, device: Device) -> Callable[[], None]:
        """Keep the first answer to an Apple device until what is returned is called; the next ones come at once.

        A delay would have to be longer than a machine may be busy, and is over where the simulator was busy itself.
        """
        held = _Held(200, delay_ms=HELD_MS)
        self.answer(device, held, Reply(200))

        async def let_it_go() -> None:
            self.answer(device, Reply(200))  # where it is still on its way
            for reply, give in self._loop.held:
                if reply is held:
                    give()  # a second time, when its delay is over, it does nothing

        return lambda: self.call(let_it_go())

    def arrived(self, title: str) -> list[Arrival]:
        """What arrived under a title, in order, accepted or not."""
        return [arrival for arrival in list(self._log.arrivals) if arrival.title == title]

    def all(self) -> list[Arrival]:
        """All that arrived, in order, accepted or not."""
        return list(self._log.arrivals)

    def dry_runs(self) -> list[Arrival]:
        """What was only validated, in order."""
        return list(self._log.dry_runs)

    def titles(self, prefix: str) -> list[str]:
        """The titles of what was accepted and begins so, in the order of arrival."""
        arrivals = list(self._log.arrivals)
        return [a.title for a in arrivals if a.status == 200 and a.title is not None and a.title.startswith(prefix)]

    def providers(self, *apps: str, timeout: str = "8s") -> dict[str, Any]:
        """The section `providers` of a configuration, with these named apps."""
        shared = {"ca_file": self._ca_file, "timeout": timeout}
        return {
            "apns": {
                "client": "h2",
                "team_id": TEAM_ID,
                "key_id": KEY_ID,
                "topic": TOPIC,
                "key_file": str(self._key),
                "endpoint": self.apns.url,
                "apps": {app: {"topic": self._topics[app]} for app in apps},
                **shared,
            },
            "fcm": {
                "client": "pyfcm",
                "service_account": str(self._account),
                "endpoint": self.fcm.url,
                "apps": {app: {"service_account": str(self._accounts[app])} for app in apps},
                **shared,
            },
        }


async def let_go() -> None:
    """Close the connections whose handshake has not ended: else some later test fails, when they are collected."""
    begun = asyncio.all_tasks() - {asyncio.current_task()}
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    await asyncio.sleep(0)  # a transport closes its socket in the turn after


CONSOLE: Final = {
    "apns": {"client": "console", "timeout": "8s"},
    "fcm": {"client": "console", "timeout": "8s"},
}


def write_config(folder: Path, url: str, providers: Any = CONSOLE, **sections: Any) -> Path:
    """A configuration in a file: a category for each lane, short times, and what is given."""
    document = {
        "redis": {"url": url},
        "categories": {
            "default": {"lane": "default"},
            "chat": {"lane": "urgent"},
            "marketing": {"lane": "bulk"},
        },
        "providers": providers,
        "worker": WORKER,
        "log": {"format": "json", "level": "info"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "notifier.yaml"
    path.write_text(yaml.safe_dump(document | sections), encoding="utf-8")
    os.utime(path, (time.time() - OLD_S,) * 2)
    return path


class WorkerProcess:
    """A worker in a process of its own, ended with the `with` block; `log` is what it has written.

    It is forked from a process that has done the imports, unless it is to be `cold`.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        config: Path,
        *,
        name: str,
        python_path: Path | None = None,
        cold: bool = False,
    ) -> None:
        self.name = name
        self._cold = cold
        self._log = config.with_name(f"{name}.log")
        self._command = command
        self._environ = clean_environ(NOTIFIER_CONFIG=str(config))
        if python_path is not None:
            self._environ["PYTHONPATH"] = str(python_path)

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            if self._cold:
                self.process: Any = subprocess.Popen(
                    self._command,
                    env=self._environ,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            else:
                self.process = warm.Popen(self._command, env=self._environ, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                raise

    @property
    def log(self) -> str:
        """All that it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ready(self, redis: Redis) -> Self:
        """Wait until it has registered and looks for work."""

        def registered() -> bool:
            assert self.process.poll() is None, self.log
            return redis.hget(f"rq:worker:{self.name}", "state") in {b"idle", b"busy", b"suspended"}

        eventually(registered, f"the start of {self.name}")
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def worker(
    config: Path, *arguments: str, name: str = "worker", python_path: Path | None = None, cold: bool = False
) -> WorkerProcess:
    """`python -m workers`, to be started by `with`."""
    command = [sys.executable, "-m", "workers", "--name", name, *arguments]
    return WorkerProcess(command, config, name=name, python_path=python_path, cold=cold)


def rq(*arguments: str, config: Path | None = None, within_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Run RQ's command line to its end."""
    named = {} if config is None else {"NOTIFIER_CONFIG": str(config)}
    return warm.run(rq_command(*arguments), env=clean_environ(**named), timeout=within_s)


def rq_command(*arguments: str) -> list[str]:
    """RQ's command line as it is typed, by full path."""
    return [str(Path(sys.executable).with_name("rq")), *arguments]


def clean_environ(**more: str) -> dict[str, str]:
    """This process's environment without a configuration of ours, and with what is given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NOTIFIER_", "RQ_", "PYTHON"))}
    # The packages under test are found from wherever the tests are started.
    return kept | more


def type_in(
    script: str, folder: Path, redis_url: str, *, within_s: float = 120, cold: bool = False, **environ: str
) -> str:
    """What a page's commands print when they are typed in a folder, one after the other; each has to work.

    cold: RQ is to be imported by the commands themselves, with the prefix that their configuration wants.
    """
    variables, controls = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}, []
    if not cold:
        variables, control = warm.typed(folder)
        controls = [control]
    said = folder / "said.log"
    with (
        said.open("wb") as log,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=clean_environ(NOTIFIER_REDIS_URL=redis_url, **variables, **environ),
            stdout=log,
            stderr=log,
            pass_fds=controls,
            start_new_session=True,
        ) as typed,
    ):
        try:
            assert typed.wait(within_s) == 0, said.read_text()
        except BaseException:  # what it left running in the background would run on
            with suppress(ProcessLookupError):
                os.killpg(typed.pid, signal.SIGKILL)
            raise
        finally:
            _end_below(folder)
    return said.read_text(encoding="utf-8")


def _end_below(folder: Path) -> None:
    """End whatever works in a folder, daemons of sessions of their own too."""
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has gone, or is somebody else's
            if cwd.readlink().is_relative_to(folder):
                os.kill(int(cwd.parent.name), signal.SIGKILL)


@contextmanager
def notifier(config: Path) -> Iterator[Notifier]:
    """A producer by a configuration, whatever this process's environment says."""
    with Notifier.from_config(config, {}, follow=False) as producer:  # no thread that asks Redis beside a test's own
        yield producer


def state(producer: Notifier, job_id: str) -> str | None:
    """The state of a notification, None for an unknown one."""
    status = producer.status(job_id)
    return None if status is None else status.state


def ends(producer: Notifier, job_id: str, state_: str) -> None:
    """Wait until a notification is in a state."""
    eventually(lambda: state(producer, job_id) == state_, f"{state_!r} of {job_id}, now {state(producer, job_id)!r},")


def waits_its_time(redis: Redis, job_id: str) -> bool:
    """Whether it waits for a time of its own, such as one that a provider has asked for."""
    return redis.hexists(f"rq:job:{job_id}", "push_wait") or redis.zscore("notifier:later", job_id) is not None


def queue(redis: Redis, lane: str = "default") -> Any:
    """A lane as another program opens it."""
    return Queue(lane, connection=redis, serializer=JSONSerializer)


def scheduled(redis: Redis, lane: str = "default") -> Any:
    """RQ's registry of what waits in a lane."""
    return ScheduledJobRegistry(queue=queue(redis, lane))  # type: ignore[no-untyped-call]


def client_of(config: Path) -> Redis:
    """A plain client to the Redis of a configuration."""
    return Redis.from_url(load_settings(config, {}).redis.url)


def stood_still_us(spans: Sequence[tuple[int, int]]) -> int:
    """For how long all stood still: while sends, from one moment to another, took far longer than most of them."""
    lost = until = 0
    long = 2 * median([ended - begun for begun, ended in spans] or [0]) + STOP_US
    for begun, ended in sorted(spans):
        if ended - begun > long:
            lost += max(0, ended - max(begun, until))
            until = max(until, ended)
    return lost


def let_pass(redis: Redis, us: int) -> None:
    """Let keys expire as if so much more time had passed, or less: a test's clock moves, and Redis's own by itself."""
    for key in redis.keys("*"):
        if (left := redis.pttl(key)) > 0:
            redis.pexpire(key, max(0, left - us // 1_000))


def expire_alike(redis: Redis, memory: InMemory, now_us: int) -> None:
    """Let the sends in Redis expire by the clock of a test, when those in memory are over."""
    for user, category, sends in [(user, name, each) for user, of in memory.sends.items() for name, each in of.items()]:
        if sends.until_us > now_us:
            sends.until_us = max(sends.until_us, now_us + 1_000_000)  # Redis's own time goes on during the call
            redis.pexpire(user_key("sent", user, category), (sends.until_us - now_us) // 1_000 + 1)
        else:
            redis.delete(*(user_key(name, user, category) for name in ("sent", "counts", "burst")))
            del memory.sends[user][category]
