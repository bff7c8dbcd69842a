"""Python processes that begin warm: each is forked from one that has imported `workers`, and is real in all else.

To import `workers` takes more than a second of CPU, and the tests start hundreds of processes that do. `Popen` takes
the command of such a process: this Python with `-m`, `-c`, `-` or a script, or a script beside it (`rq`, `notifier`).
`run` is subprocess.run of such a command, and `typed` lets a shell start them so.

Start it cold where the test asks what a process does before its imports are done, or what /proc says of its command.
RQ reads its prefix of keys when it is imported: with `anew` a process imports it again, and what imported it.
"""

import asyncio
import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

# What a worker imports, also when it starts, and what RQ's command line does. What is not named here is imported late.
MODULES: Final = (
    "workers.push",
    "notifier.providers.apns.provider",
    "notifier.providers.transport.http2.channel",
    "notifier.providers.fcm.provider",
    "notifier.simulators.apns",
    "notifier.simulators.fcm",
    "notifier.simulators.webpush",
    "rq.cli",
    # The command `notifier`, but for its `__main__`, which has to begin as one.
    "notifier.cli.app",
    "notifier.cli.configuration.config",
    "notifier.cli.configuration.redis",
    "notifier.cli.trials.preview",
    "notifier.cli.trials.record",
    *(f"notifier.cli.{name}" for name in ("explain", "health", "send", "stats")),
    "notifier.server.run",
)
OF_RQS_PREFIX: Final = frozenset({"rq", "notifier", "workers"})
TYPED: Final = Path(__file__).with_name("typed.py")
MAX_BYTES: Final = 1 << 20
PR_SET_PDEATHSIG: Final = 1


class Popen:
    """A process that was forked, with what the tests use of subprocess.Popen; its session is its own."""

    def __init__(
        self,
        args: Sequence[object],
        *,
        env: Mapping[str, str],
        stdout: Any,
        stderr: Any = None,
        cwd: Path | None = None,
        anew: bool = False,
    ) -> None:
        self.args = [str(arg) for arg in args]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdout, writes_to = _opened(stdout)
        errors_to = 2 if stderr is None else stderr.fileno()
        request = {"args": self.args, "env": dict(env), "folder": str(cwd or Path.cwd()), "anew": anew}
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, Path(os.devnull).open("rb") as nothing:
            files = [theirs.fileno(), nothing.fileno(), writes_to, errors_to]
            socket.send_fds(_forker(), [json.dumps(request).encode()], files)
        if self.stdout is not None:
            os.close(writes_to)
        words = self._told.recv(64)
        if not words:
            raise RuntimeError("the process that the others are forked from has ended")
        self.pid = int(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and _readable(self._told, 0):
                self.returncode = int(self._told.recv(64) or -signal.SIGKILL)
                self._told.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status; raise subprocess.TimeoutExpired if that takes too long."""
        if self.poll() is None:
            _readable(self._told, timeout)
        if (status := self.poll()) is None:
            self.send_signal(signal.SIGUSR1)  # it writes where it stands, see `_show_where`
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """What it writes until its end; there is nothing to tell it."""
        assert self.stdout is not None
        reader = threading.Thread(target=lambda: said.append(self.stdout.read()))  # type: ignore[union-attr]
        said: list[bytes] = []
        reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            reader.join()
        return said[0], None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _opened(stdout: Any) -> tuple[IO[bytes] | None, int]:
    if stdout != subprocess.PIPE:
        return None, stdout.fileno()
    reads_from, writes_to = os.pipe()
    return os.fdopen(reads_from, "rb"), writes_to


def _readable(told: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()  # select.select takes no file number above 1,023
    poll.register(told, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def run(
    args: Sequence[object],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout: float | None = None,
    anew: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its status and what it wrote; it is killed if that takes too long."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with Popen(args, env=env, stdout=out, stderr=err, cwd=cwd, anew=anew) as process:
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, status, out.read(), err.read())


def typed(folder: Path) -> tuple[dict[str, str], int]:
    """What lets a shell start `python`, `notifier` and `rq` warm: variables, and a file that it is to pass on."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("python", "notifier", "rq"):
        program = programs / name
        program.write_text(f"#!{sys.executable} -IS\n{TYPED.read_text(encoding='utf-8')}", encoding="utf-8")
        program.chmod(0o755)
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(programs), str(beside), os.environ["PATH"]])
    control = _forker().fileno()
    return {"PATH": path, "WARM": f"{control} {beside}"}, control


def launch(args: Sequence[object], **kwargs: Any) -> Any:
    """Start a child of tests.harness.processes: warm, unless it puts other clocks in their place before all imports."""
    if "--clock-hours" in args:
        return subprocess.Popen(args, start_new_session=True, **kwargs)
    return Popen(args, **kwargs)


@functools.cache
def _forker() -> socket.socket:
    """The way to the process that the others are forked from; it ends with this one."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("NOTIFIER_", "RQ_", "PYTHON"))}
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=environ,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @atexit.register
    def end() -> None:
        mine.shutdown(socket.SHUT_RDWR)  # a program that somebody left running may hold it too
        mine.close()
        process.wait()

    return mine


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for whoever asks, and tell the end of each; returns its command in each child, None in the end.

    Whose asker has gone is killed: it stands for the process, and nothing else can be done to it any more.
    """
    asked: dict[int, socket.socket] = {}  # by pid
    bell, rung = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if bell in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(bell, 4096)
        for pid, told_to in asked.items():
            if told_to.fileno() in ready:
                poll.unregister(told_to)
                os.kill(pid, signal.SIGKILL)
        _reap(asked, poll)
        if control.fileno() not in ready:
            continue
        told, files, _, _ = socket.recv_fds(control, MAX_BYTES, 4)
        if not told:
            return None
        request, told_to = json.loads(told), socket.socket(fileno=files[0])
        pid = os.fork()
        if not pid:
            for other in (control, told_to, *asked.values()):
                other.close()
            os.close(bell)
            signal.set_wakeup_fd(-1)
            os.close(rung)
            return _become(request, files[1:])
        for number in files[1:]:
            os.close(number)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            told_to.send(str(pid).encode())
        poll.register(told_to, 0)
        asked[pid] = told_to


def _reap(asked: dict[int, socket.socket], poll: Any) -> None:
    while asked:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with asked.pop(pid) as told_to, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            with contextlib.suppress(KeyError):
                poll.unregister(told_to)
            told_to.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], files: Sequence[int]) -> list[str]:
    """Take on what subprocess would have given a process, and what Python would have made of it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    signal.signal(signal.SIGUSR1, _show_where)
    for number in request.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)
    if request.get("anew"):
        for name in [name for name in sys.modules if name.partition(".")[0] in OF_RQS_PREFIX]:
            del sys.modules[name]
    return request["args"]


def _show_where(*_: object) -> None:
    """Write where each thread and each task stands."""
    faulthandler.dump_traceback()
    with contextlib.suppress(RuntimeError):  # no loop runs
        for task in asyncio.all_tasks():
            task.print_stack()
    sys.stderr.flush()


def _run(args: list[str]) -> None:
    """Go on as the command would have begun."""
    if args[0] == sys.executable:
        args = args[1:]
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if args[0] in {"-c", "-"}:
        code = args.pop(1) if args[0] == "-c" else sys.stdin.read()
        sys.argv = args
        sys.path[:1] = ["", *more]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif args[0] == "-m":
        sys.argv = args[1:]
        sys.path[:1] = [str(Path.cwd()), *more]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[:1] = [str(Path(args[0]).absolute().parent), *more]
        runpy.run_path(args[0], run_name="__main__")


def _assemble() -> None:
    """Make what a process keeps once it has made it: the scripts, and the schema of the usual providers."""
    from notifier.scripts.loader import names_of, script  # noqa: PLC0415 - the others that import this need none of it
    from notifier.settings.schema_providers import providers_of  # noqa: PLC0415

    for name in names_of():
        script(name)
    for names in (("apns", "fcm"), ("apns", "fcm", "webpush"), ("webpush",)):
        providers_of(names)


def main() -> None:
    """Import, then fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    sys.path[0] = str(Path.cwd())
    for module in MODULES:
        # What it cannot import, no worker imports here. The h2 of apns2's environment raises AttributeError.
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(module)
    with contextlib.suppress(ImportError, AttributeError):
        _assemble()
    gc.collect()
    gc.freeze()
    if (args := _serve(control)) is not None:
        _run(args)


if __name__ == "__main__":
    main()
