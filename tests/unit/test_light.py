"""What a producer has: the packages that `pip install push-throttle` brings, and a hint where an extra is missing."""

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from notifier.simulators.certificates import make_apns_key

ROOT = Path(__file__).parents[2]
MAX_PACKAGES = 12
EVERYTHING = """
import notifier, notifier.limiter, notifier.testing
for package in notifier, notifier.limiter, notifier.testing:
    for name in package.__all__:
        getattr(package, name)
"""
SENDS = """
from notifier import Device, Notification
from notifier.testing import FakeNotifier
fake = FakeNotifier("config/notifier.yaml")
fake.send(Notification(user="7", devices=[Device("apns", "ab" * 32), Device("fcm", "c" * 40)], title="Hello"))
assert len(fake.delivered("7")) == 1
"""
# What Windows lacks: of modules, and of what os, signal and time have.
WITHOUT_POSIX = """
import os, signal, time
for module in os, signal, time:
    for name in %r:
        vars(module).pop(name, None)
"""
MODULES = ["fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"]
NAMES = ["O_NONBLOCK", "fork", "register_at_fork", "getuid", "geteuid", "setsid", "killpg", "uname", "mkfifo",
         "SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGCHLD", "setitimer", "clock_gettime", "tzset"]  # fmt: skip
ASKS = """
from notifier import Device, Notification, Notifier
from notifier.errors import RedisUnusableError
notification = Notification(user="7", devices=[Device("apns", "ab" * 32)], title="Hello", zone="Europe/Paris")
try:
    Notifier.from_config("CONFIG").send(notification)
except RedisUnusableError:
    pass
"""
BUILDS = """
from notifier.settings import parse_settings
from workers.configuration.wiring import build_providers
build_providers(parse_settings("providers: {%s}"), {})
"""
MODULE = "import runpy; sys.argv[1:] = %r; runpy.run_module(%r, run_name='__main__')"
APNS = "apns: {team_id: ABCDE12345, key_id: FGHIJ67890, topic: com.example.app, key_file: KEY}"
FCM = "fcm: {service_account: none.json}"


def brought() -> set[str]:
    """The distributions that push-throttle brings without an extra, itself too."""
    found, asked = set[str](), [Requirement("push-throttle")]
    while asked:
        wanted = asked.pop()
        found.add(canonicalize_name(wanted.name))
        for each in map(Requirement, requires(wanted.name) or ()):
            extras = [{"extra": extra} for extra in ("", *wanted.extras)]
            if each.marker is None or any(map(each.marker.evaluate, extras)):
                asked.append(each)
    return found


def run_without(hidden: Iterable[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that finds none of these packages."""
    start = f"import sys; sys.modules.update(dict.fromkeys({list(hidden)!r}))\n{code}"
    return subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, cwd=ROOT)


def others() -> list[str]:
    """All packages here that a producer does not have."""
    mine = brought()
    return [name for name, homes in packages_distributions().items() if not mine & set(map(canonicalize_name, homes))]


def test_a_producer_has_few_packages() -> None:
    """`pip install push-throttle` brings at most twelve distributions, redis among them and no driver."""
    found = brought()
    assert {"push-throttle", "redis", "pydantic-core"} <= found
    assert len(found) <= MAX_PACKAGES


def test_producing_needs_no_extra() -> None:
    """All public names, the limiter and the fake notifier work with what a producer has."""
    done = run_without(others(), EVERYTHING + SENDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_producing_needs_nothing_of_posix(tmp_path: Path) -> None:
    """Without what Windows lacks a program can still enqueue, with a password in a file, and test its code."""
    config, password = tmp_path / "notifier.yaml", tmp_path / "password"
    password.write_text("secret\n")
    redis = f"redis: {{url: 'redis://127.0.0.1:1/0', password_file: '{password}'}}"
    config.write_text(f"{redis}\nproviders: {{apns: {{client: console}}}}\n")
    code = EVERYTHING + SENDS + ASKS.replace("CONFIG", str(config))
    done = run_without(MODULES, WITHOUT_POSIX % NAMES + code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("hidden", "code", "extra"),
    [
        ("typer", MODULE % ([], "notifier.cli"), "worker"),
        ("rq", MODULE % (["--burst"], "workers"), "worker"),
        ("uvicorn", MODULE % (["serve"], "notifier.cli"), "server"),
        ("h2", MODULE % ([], "notifier.simulators"), "simulators"),
        ("rich", MODULE % ([], "workers.demo"), "simulators"),
        ("jwt", BUILDS % APNS, "apns"),
        ("h2", BUILDS % APNS, "apns"),
        ("pyfcm", BUILDS % FCM, "fcm"),
    ],
)
def test_what_lacks_an_extra_says_which(tmp_path: Path, hidden: str, code: str, extra: str) -> None:
    """Where a package is missing, the last line names it, and the extra that brings it."""
    key, _ = make_apns_key(tmp_path)
    done = run_without([hidden], code.replace("KEY", str(key)))
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"needs the package {hidden}, which is not installed: pip install 'push-throttle[{extra}]'")


def test_the_command_of_django_says_which_extra_it_lacks() -> None:
    """As any error of a command of `manage.py`: that sentence, and no traceback."""
    code = """
import django.conf
django.conf.settings.configure()
from notifier.django.management.commands.push_worker import Command
Command().run_from_argv(["manage.py", "push_worker", "--skip-checks", "--no-color"])
"""
    done = run_without(["typer"], code)
    lacks = "the package typer, which is not installed: pip install 'push-throttle[worker]'"
    assert (done.returncode, done.stderr) == (3, f"CommandError: manage.py push_worker needs {lacks}\n")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("-m notifier.simulators --folder sim", "notifier.simulators needs the package aiohttp|simulators"),
        ("-m workers.demo", "notifier.simulators needs the package aiohttp|simulators"),
        ("-c import\tnotifier.django.sending", "notifier.django needs the package django|django"),
    ],
)
def test_what_python_m_runs_says_which_extra_it_lacks(tmp_path: Path, run: str, says: str) -> None:
    """A command ends with that sentence alone; a module raises it."""
    lacking = "import sys; sys.modules.update(dict.fromkeys(['aiohttp', 'cryptography', 'django', 'h2', 'jwt']))"
    (tmp_path / "sitecustomize.py").write_text(lacking, encoding="utf-8")
    path = f"{tmp_path}:{ROOT}"
    command = [sys.executable, *run.split(" ")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    needs, _, extra = says.partition("|")
    sentence = f"{needs}, which is not installed: pip install 'push-throttle[{extra}]'"
    assert (done.returncode, done.stderr.splitlines()[-1].removeprefix("notifier.errors.SettingsError: ")) == (
        1,
        sentence,
    )
    assert ("Traceback" in done.stderr) == (command[1] == "-c")
