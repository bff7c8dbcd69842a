"""Every call of a script declares two keys that never exist: so it runs whole or not at all while its slot moves."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.limiter import Limiter
from notifier.queue import calls
from notifier.scripts import keys
from notifier.scripts.keys import declared, in_script
from notifier.scripts.loader import Call, Script, names_of, run, run_async, script
from notifier.testing.embedded import EmbeddedRedis

ROOT = Path(__file__).parents[3]
SCRIPTS = names_of()
KNOWS_SCRIPTS = {
    "notifier/operations/access.py",
    "notifier/scripts/loader.py",
    "workers/loop/mending.py",  # makes a call that failed once more, by the words of the call
}
BY_ITSELF = re.compile(r"evalsha|\.eval\(|\bEVAL\b|register_script|fcall", re.IGNORECASE)
TELL = Script.of("tell", "local _ = '@seq'; table.insert(KEYS, 1, #KEYS); table.insert(KEYS, ARGV[1]); return KEYS")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_names_keys_declares_two(name: str) -> None:
    """All but *limit*, which touches its callers' keys alone; its text holds no prefix, so one SHA serves all."""
    of = script(name)
    assert of.names_keys == (name != "limit")
    assert of.declares() == (("notifier:", "rq:") if of.names_keys else ())
    code = re.sub(r"--.*", "", of.source)
    assert not re.search(r"['\"@](notifier|rq):", code)
    assert of.names_keys or not re.search(r"call\('\w+', '[^0-9]", code)


def test_limit_touches_declared_keys_alone() -> None:
    """Where KEYS hold what it is asked for, a slot that moves refuses it whole. A piece has the key in s.key."""
    code = re.sub(r"--.*", "", script("limit").source)
    used = set(re.findall(r"call\('(\w+)'(?:, (\w+))?", code))
    assert {key for command, key in used if command != "TIME"} <= {"KEYS", "key", "s"}


@pytest.mark.parametrize("before", ["in a comment: user's @nothing", "at the end: 'x' @nothing"])
def test_names_stand_in_strings_alone(before: str) -> None:
    """What a comment says is left alone, whatever quotes stand in it."""
    text = f"-- {before}\nreturn #'@backlog' + #'@rq:', '^@wakeups:(.+)$', 'in @rq:wip: too'"
    assert in_script(text).endswith(
        f"-- {before}\nreturn #(OURS .. 'backlog') + #(RQS), '^' .. OURS .. 'wakeups:(.+)$', 'in ' .. RQS .. 'wip: too'"
    )


def asked(own: int) -> Call[Any]:
    return Call(TELL, ["own"] * own, ["arg"], list)


@pytest.mark.parametrize("own", [0, 1])
def test_each_way_to_call_declares_them(redis: Redis, redis_server: EmbeddedRedis, own: int) -> None:
    """Over a pool or by the client, awaited or not, also where Redis has lost its scripts; its own keys come after."""
    replies = []

    async def awaited(*, alone: bool) -> None:
        async with AsyncRedis.from_url(redis_server.url, protocol=2, single_connection_client=alone) as client:
            redis.script_flush()
            replies.extend([await run_async(client, asked(own)), await run_async(client, asked(own))])

    for alone in (False, True):
        with Redis.from_url(redis_server.url, protocol=2, single_connection_client=alone) as client:
            redis.script_flush()
            replies.extend([run(client, asked(own)), run(client, asked(own))])
        asyncio.run(awaited(alone=alone))
    assert replies == [[2 + own, b"notifier:", b"rq:", *[b"own"] * own, b"arg"]] * 8


def test_no_such_key_ever_exists(redis: Redis) -> None:
    """Neither by us nor by RQ: all names go on after the colon."""
    job = calls.Job("one", "bulk", b"x", b'{"user": "u", "category": "default"}')
    run(redis, calls.enqueue([job], dedupe_for_us=1, stamp=""))
    Limiter(redis, namespace="n", usage_keep="1d").acquire("k", "1/day; 3/h")
    assert redis.dbsize() > 3
    assert not redis.exists(*declared())


def test_nobody_calls_a_script_by_itself() -> None:
    """A script is called by the loader, and by nothing else here."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("notifier", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if BY_ITSELF.search(path.read_text(encoding="utf-8"))
    }
    assert found == KNOWS_SCRIPTS


def test_they_begin_as_all_keys_of_a_prefix_do() -> None:
    """With a hash tag in the prefixes all keys of a partition are in the slot of the two that are declared."""
    with keys.under(keys.Prefixes("{7}notifier", "{7}rq")):
        assert declared() == ("{7}notifier:", "{7}rq:")
        assert keys.redis_key("seq").startswith(declared()[0])
        assert keys.rq_key("queue", "bulk").startswith(declared()[1])
    assert declared() == ("notifier:", "rq:")


def test_tasks_of_one_process_may_have_prefixes_of_their_own(redis: Redis) -> None:
    """Each names its keys by its own, also in a thread and in a task that it begins, however they take turns."""

    async def count(prefixes: keys.Prefixes, turn: asyncio.Barrier) -> list[str]:
        with keys.under(prefixes):
            await turn.wait()
            inner = await asyncio.create_task(asyncio.to_thread(keys.redis_key, "seq"))
            await turn.wait()
            job = calls.Job("one", "bulk", b"x", b'{"user": "u", "category": "default"}')
            run(redis, calls.enqueue([job], dedupe_for_us=1, stamp=""))
            return [inner, keys.redis_key("seq"), keys.rq_key("queue", "bulk")]

    async def both() -> list[list[str]]:
        turn = asyncio.Barrier(2)
        return await asyncio.gather(*(count(keys.Prefixes(f"{{{n}}}n", f"{{{n}}}r"), turn) for n in (1, 2)))

    for n, (*seqs, queue) in enumerate(asyncio.run(both()), 1):
        assert seqs == [f"{{{n}}}n:seq"] * 2
        assert redis.lrange(queue, 0, -1) == [b"one"]
