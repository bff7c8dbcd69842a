"""Rates that cannot be used, given to a worker that runs: each is refused with its place, and the old ones hold."""

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from notifier.operations.action_log import read_actions
from notifier.queue.calls import Job, Room, Worker, enqueue, pull
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import load_settings
from notifier.store.followed import Followed
from notifier.store.partitions import Partitions
from notifier.store.published import Published, publish, rates_before, rates_in_force, read_due, withdraw
from notifier.testing.embedded import EmbeddedRedis
from notifier.units import UNITS
from workers.configuration.reload import Reload

pytestmark = pytest.mark.usefixtures("slow_looks")
BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def of_size(count: int) -> Callable[[], str]:
    """A text that is made when it is needed: each process of pytest imports this file, and keeps what it holds."""
    return lambda: "# " + "x" * count


def own(user: str) -> str:
    """The line of a user with a rule."""
    return f'{{"user": "{user}", "gap": "2s"}}\n'


# What the files hold, and what is said of it: the file, the line, and what would be right.
REFUSED: dict[str, tuple[dict[str, str | Callable[[], str]], str]] = {
    "an alias bomb": ({"n.yaml": BOMB}, "n.yaml:1:4: a: anchors and aliases (&name, *name) are not supported"),
    "100 MB": ({"n.yaml": of_size(100_000_000)}, "n.yaml: is larger than 5 MB"),
    "a key twice": ({"n.yaml": "user: {gap: 1s, gap: 2s}"}, "n.yaml:1:17: user.gap: is given twice, first in line 1"),
    "a user twice": (
        {"n.yaml": 'users:\n  "42": {gap: 1s}\n  42: {gap: 2s}'},
        "n.yaml:3:3: users.42: is given twice, first in line 2; keep one",
    ),
    "a tab": ({"n.yaml": "user:\n\tgap: 1s"}, "n.yaml:2:1: is not YAML"),
    "a unit": (
        {"n.yaml": "user: {windows: [10/fortnight]}"},
        "n.yaml:1:18: user.windows[0]: '10/fortnight': unknown unit 'fortnight'; use ms, s, m, h, d, w or second",
    ),
    "a limit of 0": ({"n.yaml": "user: {windows: [0/minute]}"}, "n.yaml:1:18: user.windows[0]: '0/minute': the limit"),
    "an interval of 0": (
        {"n.yaml": "user: {windows: [1/0s]}"},
        "n.yaml:1:18: user.windows[0]: '1/0s': the interval",
    ),
    "a century": (
        {"n.yaml": "user: {windows: [1/36525d]}"},
        "n.yaml:1:18: user.windows[0]: '1/36525d': the",
    ),
    "a gap of a century": ({"n.yaml": "user: {gap: 36525d}"}, "n.yaml:1:13: user.gap: '36525d' is outside"),
    "no such zone": ({"n.yaml": "zone: Europe/Atlantis"}, "n.yaml:1:7: zone: 'Europe/Atlantis' is not a time zone"),
    "a user's zone": (
        {"n.yaml": "user: {quiet_hours: 8-9}"},
        "n.yaml:1:21: user.quiet_hours: '8-9' are no quiet hours",
    ),
    "not UTF-8": ({"n.yaml": "user: {gap: 1s} # \udcff"}, "n.yaml:1:19: is not UTF-8 text"),
    "nothing": ({"n.yaml": ""}, "n.yaml: is empty; write at least {}"),
    "two files for one user": (
        {"n.yaml": "users_from: of", "of/a.jsonl": own("7"), "of/b.jsonl": own("8") + own("7")},
        "of/b.jsonl:2: '7' has an entry in of/a.jsonl:1 already; keep one",
    ),
    "a user in both": (
        {"n.yaml": "users: {7: {gap: 1s}}\nusers_from: of.jsonl", "of.jsonl": own("7")},
        "of.jsonl:1: '7' has an entry in users already; keep one",
    ),
    "users without end": (
        {"n.yaml": "users_from: of", "of/a.jsonl": of_size(30_000_000), "of/b.jsonl": of_size(30_000_000)},
        "b.jsonl: with it users_from has more than 50 MB",
    ),
    "a user's unit": (
        {"n.yaml": "users_from: of.jsonl", "of.jsonl": '{"user": "7", "windows": ["1/fortnight"]}'},
        "of.jsonl:1: windows[0]: '1/fortnight': unknown unit 'fortnight'",
    ),
}


async def looks_at_new_file(reload: Reload) -> None:
    """The first look after a change: the file may still be being written, so nothing is read, taken up or refused."""
    problem = reload.problem
    assert await reload.changed() is None
    assert reload.problem == problem


@asynccontextmanager
async def following(tmp_path: Path, url: str, beside: str = "") -> AsyncIterator[tuple[Reload, AsyncRedis]]:
    """A worker follows a file with a gap of a second."""
    path = tmp_path / "n.yaml"
    path.write_text(f"user: {{gap: 1s}}{beside}", encoding="utf-8")
    async with AsyncRedis.from_url(url, protocol=2) as client:
        reload = Reload(path, Partitions.around(client), load_settings(path, environ={}))
        await reload.begin()
        await reload.changed()
        yield reload, client


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize(("files", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_refused_changes_nothing(
    files: dict[str, str | Callable[[], str]], says: str, tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    """The worker says why, with the place, where `config status` finds it; the next good file is taken up."""
    path = tmp_path / "n.yaml"
    async with following(tmp_path, redis_server.url) as (reload, _):
        version = reload.version
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            whole = text() if callable(text) else text
            (tmp_path / name).write_text(whole, encoding="utf-8", errors="surrogateescape")
        await looks_at_new_file(reload)
        with capture_logs() as logged:
            assert await reload.changed() is None
            assert await reload.changed() is None
        (refusal,) = logged  # it is not tried again and again
        assert (refusal["event"], refusal["log_level"]) == ("config_refused", "error")
        assert says in refusal["problems"][0]
        assert reload.problem == refusal["problems"][0]
        assert len(reload.problem) < 400
        assert set(reload.told().values()) == {version, str(path), reload.problem}
        path.write_text("user: {windows: [7/minute]}", encoding="utf-8")
        await looks_at_new_file(reload)
        taken = await reload.changed()
        assert taken.for_user("7") == Policy((Window(7, interval_us=UNITS["m"]),))
        assert not reload.problem


@pytest.mark.usefixtures("redis")
async def test_a_file_is_read_once_an_open_file_is_left(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Law 7: the file has not changed since, so nothing else would have it read again."""
    path = tmp_path / "n.yaml"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with following(tmp_path, redis_server.url) as (reload, _):
        path.write_text("user: {gap: 9s}", encoding="utf-8")
        await looks_at_new_file(reload)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
        try:
            with capture_logs() as logged:
                assert await reload.changed() is None
                assert await reload.changed() is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        assert reload.problem == f"{path}: cannot be read: Too many open files"
        assert [each["event"] for each in logged] == ["config_refused"]  # it may be tried for hours
        taken = await reload.changed()
        assert taken.for_user("7").gap_us == 9 * UNITS["s"]
        assert not reload.problem


@pytest.mark.usefixtures("redis")
async def test_a_file_that_changes_between_looks_is_left_alone(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Only what is the same at two looks in a row is read: not what was there two looks ago."""
    path = tmp_path / "n.yaml"
    whole, half = tmp_path / "whole.yaml", tmp_path / "half.yaml"
    whole.write_text("user: {gap: 1s}", encoding="utf-8")
    half.write_text("user: {gap: 9s}", encoding="utf-8")

    def point_at(file: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(file)

    async with following(tmp_path, redis_server.url) as (reload, _):
        version = reload.version
        for file in (half, whole, half, whole):
            point_at(file)
            assert await reload.changed() is None
        assert reload.version == version
        point_at(half)
        assert await reload.changed() is None
        taken = await reload.changed()
        assert taken.for_user("7").gap_us == 9 * UNITS["s"]


@pytest.mark.parametrize("beside", ["", "\nusers_from: of.jsonl"])
async def test_each_change_of_a_file_is_logged(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, beside: str
) -> None:
    """Also one that is undone at once, and no mistake that was mended: the rates were the same all the while."""
    path = tmp_path / "n.yaml"
    (tmp_path / "of.jsonl").write_text(own("7"), encoding="utf-8")
    async with following(tmp_path, redis_server.url, beside) as (reload, _):
        for gap in ("9s", "1s", "", "1s", "9s"):
            path.write_text(f"user: {{gap: {gap}}}{beside}", encoding="utf-8")
            await looks_at_new_file(reload)
            await reload.changed()
    told = [action.answer.partition("; ")[2] for action in reversed(read_actions(redis, 9))]
    assert told == [
        "- user.gap: 1s; + user.gap: 9s",
        "- user.gap: 9s; + user.gap: 1s",
        "- user.gap: 1s; + user.gap: 9s",
    ]


@pytest.mark.usefixtures("redis")
async def test_a_changed_file_is_taken_up_where_no_redis_answers(tmp_path: Path) -> None:
    """Law 7: nothing else says what holds, as no rates are published as far as is known."""
    (path := tmp_path / "n.yaml").write_text("user: {gap: 1s}", encoding="utf-8")
    async with AsyncRedis(port=1, retry=None) as client:
        reload = Reload(path, Partitions.around(client), load_settings(path, environ={}))
        path.write_text("user: {gap: 2s}", encoding="utf-8")
        answers = await reload.changed() or await reload.changed()
    assert answers.everyone == Policy(gap_us=2 * UNITS["s"])


async def test_a_file_that_changes_while_a_worker_starts_is_taken_up(
    tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    """A worker takes seconds to start: what was written after it had read the file holds there too."""
    path = tmp_path / "n.yaml"
    path.write_text("user: {gap: 1s}", encoding="utf-8")
    client = AsyncRedis.from_url(redis_server.url)
    read = load_settings(path, environ={})
    path.write_text("user: {gap: 9s}", encoding="utf-8")
    reload = Reload(path, Partitions.around(client), read)
    await reload.begin()
    taken = await reload.changed() or await reload.changed()
    assert taken.for_user("7").gap_us == 9 * UNITS["s"]
    assert await reload.changed() is None
    await client.aclose()


def test_who_only_looks_leaves_a_file_alone_that_somebody_writes(tmp_path: Path, redis: Redis) -> None:
    """A program that is no worker, as a worker does: half a file may be valid, without its limits."""
    path = tmp_path / "n.yaml"
    path.write_text("user: {gap: 1s}", encoding="utf-8")
    followed = Followed(path, {})
    assert followed.look(lambda question: question(redis)) is None
    path.write_text("user: {}", encoding="utf-8")
    assert followed.look(lambda question: question(redis)) is None
    path.write_text("user: {gap: 9s}", encoding="utf-8")
    assert followed.look(lambda question: question(redis)) is None
    assert followed.look(lambda question: question(redis)).user.policy().gap_us == 9 * UNITS["s"]


def test_rates_that_could_not_be_read_are_read_at_the_next_look(tmp_path: Path, redis: Redis) -> None:
    """Redis names the new rates and goes before it has given them: they are taken up once it is back."""
    path = tmp_path / "n.yaml"
    path.write_text("user: {gap: 1s}", encoding="utf-8")
    followed = Followed(path, {})
    publish(redis, {"user": {"gap": "9s"}}, 0)

    def goes(question: Callable[[Redis], Any]) -> Any:
        if isinstance(answer := question(redis), tuple):  # with the rates
            raise RedisConnectionError("Connection reset by peer")
        return answer

    with pytest.raises(RedisConnectionError):
        followed.look(goes)
    assert followed.settings.user.policy().gap_us == UNITS["s"]
    taken = followed.look(lambda question: question(redis))
    assert taken.user.policy().gap_us == 9 * UNITS["s"]
    assert followed.look(lambda question: question(redis)) is None


@pytest.mark.parametrize("field", ["rates", "before"])
@pytest.mark.parametrize("garbage", ["garbage", "5", "[" * 100_000, b"\xff"], ids=["text", "number", "deep", "bytes"])
async def test_published_rates_that_cannot_be_read_are_refused(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, field: str, garbage: Any
) -> None:
    """A worker that starts goes by its file, and one that runs goes on; it takes up those that can be read again."""
    publish(redis, {"user": {"gap": "9s"}}, 0 if field == "rates" else 40 * UNITS["s"])
    redis.hset("notifier:rates", field, garbage)
    async with following(tmp_path, redis_server.url) as (reload, _):
        assert reload.problem.startswith("the published rates cannot be read")
        own = reload.version
        await reload.changed()  # the files are looked at once more
        with capture_logs() as logged:
            assert await reload.changed() is None
        assert ([each for each in logged if each["log_level"] == "error"], reload.version) == ([], own)
        publish(redis, {"user": {"gap": "8s"}}, 0)
        assert await reload.changed() is not None
        assert (reload.problem, reload.version != own) == ("", True)


def test_a_moment_that_cannot_be_read_is_past(redis: Redis) -> None:
    """The rates are there, and what ends with the moment from which they hold does not keep anybody from them."""
    for at in ("soon", b"\xff", "9" * 400, "9" * 5000, "-1"):
        publish(redis, {"user": {"gap": "1s"}}, 0)
        redis.hset("notifier:rates", "at", at)
        assert rates_in_force(redis)[1] == {"user": {"gap": "1s"}}


@pytest.mark.usefixtures("redis")
async def test_a_file_that_has_gone_is_told_once(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Not at the first looks, as it may be about to be replaced; the rates hold, and it may come back as it was."""
    path = tmp_path / "n.yaml"
    async with following(tmp_path, redis_server.url) as (reload, _):
        version = reload.version
        path.rename(tmp_path / "away.yaml")
        with capture_logs() as logged:
            for _look in range(4):
                assert await reload.changed() is None
            assert (logged, reload.problem) == ([], "")
            for _look in range(7):
                assert await reload.changed() is None
        problem = f"{path}: cannot be read: No such file or directory"
        assert logged == [{"event": "config_refused", "log_level": "error", "problems": [problem]}]
        assert (reload.problem, reload.version) == (problem, version)
        (tmp_path / "away.yaml").rename(path)
        await looks_at_new_file(reload)
        await reload.changed()
        assert (reload.problem, reload.version) == ("", version)
        path.unlink()
        with capture_logs() as logged:
            for _look in range(4):
                assert await reload.changed() is None
        assert logged == []


async def test_rates_that_are_withdrawn_while_they_are_read_leave_the_files_limits(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 1: for no moment does a worker go without rules."""
    publish(redis, {"user": {"gap": "9s"}}, 0)
    async with following(tmp_path, redis_server.url) as (reload, client):
        publish(redis, {"user": {"gap": "8s"}}, 0)
        read = client.hget

        async def hget(*key: Any) -> Any:
            withdraw(redis)
            return await read(*key)

        monkeypatch.setattr(client, "hget", hget)
        policies = await reload.changed()
        assert policies.for_user("7").gap_us == UNITS["s"]


async def test_rates_of_a_later_moment_hold_up_no_beat(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read just before they begin, and hold from that moment on; a file may change meanwhile."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with following(tmp_path, redis_server.url) as (reload, _):
        begins = publish(redis, {"user": {"gap": "9s"}}, 30 * UNITS["s"])
        monkeypatch.setattr(asyncio, "sleep", sleep)
        assert await reload.changed() is None
        assert slept == []
        redis.hset("notifier:rates", "at", begins.at_us - 27 * UNITS["s"])
        policies = await reload.changed()
        assert policies.for_user("7").gap_us == 9 * UNITS["s"]
        assert 0 < slept[0] < 3


@pytest.mark.parametrize("in_s", [4, 40])
@pytest.mark.parametrize("gap_s", [1, 2])
async def test_who_begins_before_published_rates_do_waits_for_nothing(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, *, gap_s: int, in_s: int
) -> None:
    """Until then it goes by those that all others still follow, the ones published before or its file."""
    if gap_s == 2:
        publish(redis, {"user": {"gap": "2s"}}, 0)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with following(tmp_path, redis_server.url) as (reload, _):
        begins = publish(redis, {"user": {"gap": "9s"}}, in_s * UNITS["s"])
        monkeypatch.setattr(asyncio, "sleep", sleep)
        assert (await reload.begin()).policies().for_user("7").gap_us == gap_s * UNITS["s"]
        assert slept == [], "it sends meanwhile"
        redis.hset("notifier:rates", "at", begins.at_us - in_s * UNITS["s"])
        policies = await reload.changed()
        assert policies.for_user("7").gap_us == 9 * UNITS["s"]


def revert(redis: Redis) -> None:
    """As the command: by the rates before, two seconds later."""
    before = rates_before(redis)
    assert before is not None
    publish(redis, before, 2 * UNITS["s"])


NONE = {"user": {"gap": "0s"}}
# What is done, and the gap that holds then: the file's, that of the rates before, or of those that begin at once.
TAKEN_BACK: dict[str, tuple[Callable[[Redis], object], int]] = {
    "withdrawn": (withdraw, 1),
    "reverted": (revert, 2),
    "put off": (lambda redis: publish(redis, {"user": {"gap": "3s"}}, 30 * UNITS["s"]), 2),
    "replaced by earlier ones": (lambda redis: publish(redis, {"user": {"gap": "3s"}}, 0), 3),
}


@pytest.mark.parametrize(("take_back", "gap_s"), TAKEN_BACK.values(), ids=TAKEN_BACK)
async def test_rates_that_are_taken_back_before_they_begin_never_hold(
    tmp_path: Path,
    redis: Redis,
    redis_server: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
    take_back: Callable[[Redis], object],
    *,
    gap_s: int,
) -> None:
    """Laws 1 and 7: a worker that has read them and waits for their moment goes by the others."""
    publish(redis, {"user": {"gap": "2s"}}, 0)
    taken: list[int] = []

    async def sleep(_: float) -> None:
        if not taken:
            taken.append(1)
            take_back(redis)

    async with following(tmp_path, redis_server.url) as (reload, _):
        publish(redis, NONE, 4 * UNITS["s"])
        monkeypatch.setattr(asyncio, "sleep", sleep)
        policies = await reload.changed()
        assert taken
        assert (policies is None) == (gap_s == 2), "the others have not changed"
        assert reload._followed.settings.user.policy().gap_us == gap_s * UNITS["s"]


@pytest.mark.parametrize("later_s", [4, 40])  # near enough to be read, or not
async def test_rates_that_are_replaced_while_they_are_read_leave_those_in_force(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, *, later_s: int
) -> None:
    """The others begin later; until then hold those whose moment has come, though a worker had not read them yet."""
    async with following(tmp_path, redis_server.url) as (reload, client):
        publish(redis, {"user": {"gap": "8s"}}, 0)
        read = client.hget

        async def hget(*key: Any) -> Any:
            if not replaced:
                replaced.append(publish(redis, NONE, later_s * UNITS["s"]))
            return await read(*key)

        replaced: list[Any] = []
        monkeypatch.setattr(client, "hget", hget)
        policies = await reload.changed()
        assert policies.for_user("7").gap_us == 8 * UNITS["s"]


@pytest.mark.parametrize("then", [[{"gap": "1s"}], [{"gap": "2s"}, {"gap": "3s"}]])
def test_rates_in_force_stay_so_until_others_begin(redis: Redis, then: list[dict[str, str]]) -> None:
    """They are applied once more for a later moment; or others are, and corrected before they begin."""
    publish(redis, {"user": {"gap": "1s"}}, 0)
    for user in then:
        publish(redis, {"user": user}, 30 * UNITS["s"])
    assert rates_in_force(redis)[1] == {"user": {"gap": "1s"}}


async def test_rates_that_held_before_redis_clock_was_set_back_hold_on(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis
) -> None:
    """For whoever starts, and for everybody else: nobody can apply rates for a moment so far ahead."""
    rates = {"user": {"gap": "9s"}}
    publish(redis, rates, 0)
    redis.hincrby("notifier:rates", "at", UNITS["h"])
    assert rates_in_force(redis)[1] == rates
    assert read_due(redis, Published()).version
    worker = Worker(name="w", lanes=LANES, lease_us=UNITS["m"])
    run(redis, enqueue([Job("a", "bulk", b"", b"")], dedupe_for_us=0, stamp=""))
    assert run(redis, pull(worker, Room(1), RuleTable(Policies(Policy())))).rates
    async with following(tmp_path, redis_server.url) as (reload, _):
        assert reload.version == read_due(redis, Published()).version
    publish(redis, rates, 2 * UNITS["s"])
    assert rates_in_force(redis)[1] == rates, "they are in force, and do not begin again"


async def test_new_rates_are_not_lost_where_redis_refuses_in_between(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read again at the next beat."""

    async def refuses(*_: Any, **__: Any) -> Any:
        raise RedisConnectionError("Connection reset by peer")

    async with following(tmp_path, redis_server.url) as (reload, client):
        publish(redis, {"user": {"gap": "9s"}}, 0)
        with monkeypatch.context() as patch:
            patch.setattr(client, "time", refuses)
            with pytest.raises(RedisConnectionError):
                await reload.changed()
        taken = await reload.changed()
        assert taken.for_user("7").gap_us == 9 * UNITS["s"]
