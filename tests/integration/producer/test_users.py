"""What users choose for themselves by `Notifier.users`: with a real worker, and what arrives at the provider."""

import re
from datetime import UTC, datetime, time, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import (
    AsyncNotifier,
    Cancellation,
    InvalidPreferenceError,
    Mute,
    Notifier,
    Preferences,
)
from notifier.operations.action_log import read_actions, record_action
from notifier.operations.audit.audit import Audit
from notifier.operations.explain import PREFERENCES, Inspection, placed
from notifier.operations.in_force import read_known
from notifier.operations.pause import pause_it
from notifier.rules.kinds.window import Window
from notifier.store.connection import time_us
from notifier.testing.embedded import EmbeddedRedis
from notifier.units import moment
from tests.harness.support import Simulators, ends, eventually, note, notifier, worker, write_config

RATES: dict[str, Any] = {
    "user": {"windows": ["100/1h"]},
    "tiers": {"quiet": {"windows": ["1/1h"]}, "loud": {}},
    "users_may": {"tier": ["quiet"]},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent"},
        "security": {"lane": "urgent", "bypass": True},
    },
}


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    return write_config(tmp_path, redis_server.url, simulators.providers(), **RATES)


def test_what_is_muted_waits_or_ends_and_what_bypasses_goes(
    redis: Redis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """A mute holds or drops, of some categories or all; taken back, what waited is sent at once. Others go on."""
    producer.users.mute("ann", categories=["chat"])
    producer.users.mute("ann", categories=["default"], what="drop")
    with worker(config) as running:
        running.ready(redis)
        held = producer.send(note("ann", "mute-held", category="chat"))
        dropped = producer.send(note("ann", "mute-dropped"))
        for user, category in (("ann", "security"), ("bob", "chat")):
            ends(producer, producer.send(note(user, f"mute-{user}", category=category)), "delivered")
        ends(producer, dropped, "dropped")
        ends(producer, held, "waiting")
        told = producer.status(dropped), producer.status(held)
        assert [status and (status.reason, status.not_before) for status in told] == [
            ("muted", None),
            (None, "the user's mute"),
        ]
        producer.users.unmute("ann", categories=["chat"])
        ends(producer, held, "delivered")
        soon = datetime.now(UTC) + timedelta(seconds=1)
        producer.users.mute("ann", until=soon)
        late = producer.send(note("ann", "mute-late", category="chat"))
        ends(producer, late, "delivered")
        assert datetime.now(UTC) >= soon
    assert simulators.titles("mute-") == ["mute-ann", "mute-bob", "mute-held", "mute-late"]


def test_quiet_hours_of_one_user_are_no_ones_else(
    redis: Redis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """A user's own quiet hours hold where no rule of the configuration goes by the clock; the others' way is short."""
    now = datetime.now(UTC)
    quiet = f"{now - timedelta(hours=2):%H:%M}-{now + timedelta(hours=2):%H:%M}"
    producer.users.set("ann", quiet_hours=quiet)
    with worker(config) as running:
        running.ready(redis)
        held = producer.send(note("ann", "night"))
        ends(producer, held, "waiting")
        eventually(lambda: redis.exists("notifier:zones:users"), "the zone")
        ends(producer, producer.send(note("bob", "night-bob")), "delivered")
        assert not redis.exists("notifier:zones")
        status = producer.status(held)
        assert (status.held_by or "").startswith("user quiet until")
        today, later = (f"{now + timedelta(days=n):%a}".lower() for n in (0, 2))
        producer.users.set("ann", quiet_hours={today: "00:00-24:00"})
        opens = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
        eventually(lambda: (told := producer.status(held)) and told.expected_at == opens, "the new hours")
        producer.users.set("ann", quiet_hours={later: "00:00-24:00"})
        ends(producer, held, "delivered")
    assert simulators.titles("night") == ["night-bob", "night"]


def test_what_is_chosen_is_kept_told_and_copied(redis: Redis, producer: Notifier) -> None:
    """What is set stays until it is set again; all of it can be exported and applied; each change is in the log."""
    until = datetime(2030, 1, 1, tzinfo=UTC)
    producer.users.set("42", tier="quiet", gap="10m", who="support")
    producer.users.set("42", windows=["5/1h"], gap=None)
    chosen = producer.users.mute("42", until=until, categories=["chat"], what="drop")
    assert chosen == producer.users.get("42")
    assert chosen == Preferences("quiet", (Window(5, "1h"),), mutes=(Mute(until, ("chat",), "drop"),))
    exported = list(producer.users.export())
    assert exported == [{"user": "42", **chosen.as_dict()}]
    producer.users.clear("42")
    assert (producer.users.get("42"), list(producer.users.export())) == (Preferences(), [])
    assert producer.users.apply(exported) == 1
    assert producer.users.get("42") == chosen
    log: Any = redis.xrange("notifier:actions:users")
    assert [(entry[b"who"], entry[b"of"]) for _, entry in log] == [(b"support", b"42"), *[(b"", b"42")] * 4]


@pytest.mark.parametrize(
    ("given", "field", "why"),
    [
        ({"tier": "loud"}, "tier", "users_may.tier allows quiet"),
        ({"tier": "nope"}, "tier", "users_may.tier allows quiet"),
        ({"zone": "Mars/Base"}, "zone", "Mars/Base"),
        ({"windows": ["many"]}, "windows", "many"),
        ({"windows": "5/1h"}, "windows", "list"),
        ({"windows": ["5/1h"] * 6}, "windows", "at most 5"),
        ({"gap": 5}, "gap", "unit"),
        ({"quiet_hours": "8-9"}, "quiet_hours", "21:00-08:00"),
        ({"quiet_hours": "08:00-07:59:"}, "quiet_hours", "21:00-08:00"),
    ],
)
def test_what_users_may_not_choose_is_refused(
    redis: Redis, producer: Notifier, given: dict[str, Any], field: str, why: str
) -> None:
    """Before anything is written, by the name of the field and what would be right."""
    with pytest.raises(InvalidPreferenceError) as caught:
        producer.users.set("42", **given)
    assert (caught.value.field, why in str(caught.value)) == (field, True), str(caught.value)
    assert not redis.exists("notifier:preferences")


FAR_EAST = timezone(timedelta(hours=14))
BY_DAY, AT_NIGHT = "08:00-20:00", "20:00-08:00"
OF_DAY_AND_NIGHT: dict[str, Any] = {
    "tiers": {"day": {"quiet_hours": AT_NIGHT}, "night": {"quiet_hours": BY_DAY}},
    "users_may": {"tier": ["day", "night"]},
}


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"tier": "night"}, {"quiet_hours": AT_NIGHT}),
        ({"quiet_hours": AT_NIGHT}, {"tier": "night"}),
        ({"tier": "day", "quiet_hours": AT_NIGHT}, {"tier": "night", "gap": "1m"}),
    ],
)
def test_hours_that_are_chosen_in_several_calls_leave_time(
    tmp_path: Path, redis_server: EmbeddedRedis, first: dict[str, Any], then: dict[str, Any]
) -> None:
    """What would void hours that were chosen before is refused, as in one call: else the user would be woken."""
    with Notifier.from_config(write_config(tmp_path, redis_server.url, **OF_DAY_AND_NIGHT), follow=False) as made:
        chosen = made.users.set("42", **first)
        for call in (
            partial(made.users.set, "42", **then),
            partial(made.users.set, "43", **(first | then)),
            partial(made.users.apply, [{"user": "43", **first, **then}]),
        ):
            with pytest.raises(InvalidPreferenceError, match=r"quiet_hours: 20:00-08:00, beside what is configured"):
                call()
        assert list(made.users.export()) == [{"user": "42", **chosen.as_dict()}]


@pytest.mark.usefixtures("redis")
def test_hours_are_judged_beside_the_tier_that_is_chosen(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Not beside everyone's rules. What a changed configuration voids hinders no other choice, and can go."""
    rates = {**OF_DAY_AND_NIGHT, "user": {"quiet_hours": BY_DAY}}
    with Notifier.from_config(write_config(tmp_path, redis_server.url, **rates), follow=False) as made:
        with pytest.raises(InvalidPreferenceError, match="quiet_hours"):
            made.users.set("42", quiet_hours=AT_NIGHT)
        made.users.set("42", tier="day")
        chosen = made.users.set("42", quiet_hours=AT_NIGHT).as_dict()
        assert chosen == {"tier": "day", "quiet_hours": AT_NIGHT}
        with pytest.raises(InvalidPreferenceError, match="quiet_hours"):
            made.users.set("42", tier=None)
    rates |= {"tiers": {"day": {"quiet_hours": BY_DAY}}, "users_may": {"tier": ["day"]}}
    with Notifier.from_config(write_config(tmp_path, redis_server.url, **rates), follow=False) as made:
        assert made.users.set("42", gap="1m") == Preferences.of({**chosen, "gap": "1m"})
        with pytest.raises(InvalidPreferenceError, match="quiet_hours"):
            made.users.set("43", tier="day", quiet_hours=AT_NIGHT)
        made.users.set("42", quiet_hours=None)
        assert made.users.get("42") == Preferences("day", gap_us=60_000_000)


@pytest.mark.parametrize(
    ("categories", "why"),
    [
        *(
            (wrong, "categories: give a list of names, at least one; or leave it out for all")
            for wrong in ("chat", [], [5], 5)
        ),
        (["chta"], "categories: 'chta' is unknown; known are chat, default, security"),
        (["chat", "chta"], "categories: 'chta' is unknown; known are chat, default, security"),
    ],
)
def test_mutes_that_are_taken_back_are_checked_too(redis: Redis, producer: Notifier, categories: Any, why: str) -> None:
    """What could be no mute's is refused: nothing would be taken back, and nobody would be told."""
    muted = producer.users.mute("42", categories=["chat"])
    with pytest.raises(InvalidPreferenceError, match=re.escape(why)):
        producer.users.unmute("42", categories=categories)
    with pytest.raises(InvalidPreferenceError, match=re.escape(why)):
        producer.users.mute("42", categories=categories)
    assert producer.users.get("42") == muted
    redis.hset("notifier:preferences", "42", '{"mutes": [{"categories": ["gone"]}]}')
    assert producer.users.unmute("42", categories=["gone"]) == Preferences()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        *((wrong, f"entries[1]: must be a mapping, is {type(wrong).__name__}") for wrong in (None, "z", 5, [])),
        *(
            (
                {"mutes": [wrong]},
                "entries[1].mutes: give each as a mapping of until, categories and what, or of some of",
            )
            for wrong in ({"untill": "2030-01-01"}, None, "chat", {5: 6})
        ),
        *(({"mutes": wrong}, "entries[1].mutes: give a list of at most 20 mutes") for wrong in (5, "chat", [{}] * 21)),
        ({"mutes": {"until": None}}, "entries[1].mutes: give each as a mapping of until, categories and what"),
        ({"mutes": [{"until": "soon"}]}, "entries[1].mutes: until: must be a datetime with a time zone"),
        ({"mutes": [{"what": []}]}, "entries[1].mutes: what: [] is neither 'hold' nor 'drop'"),
        ({"windows": 5}, "entries[1].windows: give a list of at most 5 rates, such as ['10/minute']"),
        ({5: 6}, "entries[1].5: is not a preference"),
        ({"tier": "loud"}, "entries[1].tier: "),
    ],
)
def test_an_entry_that_is_not_well_formed_is_named(redis: Redis, producer: Notifier, entry: Any, why: str) -> None:
    """Whatever it is, by an InvalidPreferenceError with its place; all before it were applied."""
    wrong = {"user": "42", **entry} if isinstance(entry, dict) else entry
    with pytest.raises(InvalidPreferenceError, match=re.escape(why)):
        producer.users.apply([{"user": "41", "windows": iter(["5/1h"])}, wrong])
    assert redis.hgetall("notifier:preferences") == {b"41": b'{"windows":["5/1h"]}'}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"until": "soon"}, "until: must be a datetime with a time zone"),
        ({"until": 5}, "until: must be a datetime with a time zone"),
        ({"until": datetime(2030, 1, 1)}, "until: must be a datetime with a time zone"),  # noqa: DTZ001 - the point
        ({"until": datetime.min.replace(tzinfo=FAR_EAST)}, "until: 0001-01-01T00:00:00+00:00 is over; `unmute` ends"),
        ({"categories": ["security"]}, "categories: "),
        ({"what": []}, "what: [] is neither 'hold' nor 'drop'"),
        ({"who": None}, "who: must be text, is NoneType"),
    ],
)
def test_a_mute_that_is_not_well_formed_is_named(
    redis: Redis, producer: Notifier, given: dict[str, Any], why: str
) -> None:
    """By the name of the argument, before anything is written. The last moment of any zone is without end."""
    with pytest.raises(InvalidPreferenceError, match=re.escape(why)):
        producer.users.mute("42", **given)
    assert not redis.exists("notifier:preferences")
    last = datetime.max.replace(tzinfo=timezone(-timedelta(hours=14)))
    assert producer.users.mute("42", until=last) == producer.users.mute("43")


def test_explain_knows_them(redis: Redis, config: Path, producer: Notifier) -> None:
    """The rules that hold are those that the user chose, and says so; a mute decides when the next may go."""
    producer.users.set("42", windows=["2/1h"])
    producer.users.mute("42", categories=["chat"])
    known = read_known(config, redis)
    inspection = Inspection(redis, known.policies, "42")
    found = inspection.explain("chat")
    assert [use.rule for use in found.uses] == ["100/1h", "2/1h"]
    assert found.decided_by == "the user's mute"
    assert inspection.explain("default").decided_by is None
    assert [use.at for use in placed(found, known).uses] == [PREFERENCES] * 2
    producer.users.set("42", windows=None, gap="1m")
    by_gap = placed(Inspection(redis, known.policies, "42").explain("chat"), known)
    line = next(n for n, text in enumerate(config.read_text(encoding="utf-8").splitlines(), 1) if "100/1h" in text)
    assert [use.at for use in by_gap.uses] == [f"{config}:{line}", PREFERENCES]


def test_explain_tells_the_mutes_that_hold_by_redis_clock(redis: Redis, config: Path) -> None:
    """Not those that are over; the clock of the host that asks has no part in it."""
    now = moment(time_us(redis))
    ends = {"chat": now + timedelta(minutes=1), "marketing": now - timedelta(seconds=1)}
    mutes = [{"until": until.isoformat(), "categories": [name]} for name, until in ends.items()]
    redis.hset("notifier:preferences", "42", Preferences.of({"mutes": mutes}).encode())
    found = Inspection(redis, read_known(config, redis).policies, "42").explain("chat")
    assert [mute["categories"] for mute in found.preferences["mutes"]] == [["chat"]]


@pytest.mark.usefixtures("redis")
async def test_the_same_for_asyncio(config: Path) -> None:
    """AsyncNotifier has the same, and what the one writes the other reads."""
    async with AsyncNotifier.from_config(config, {}, follow=False) as made:
        await made.users.set("42", gap="1m")
        await made.users.mute("42", categories=["chat"])
        await made.users.unmute("42")
        await made.users.apply([{"user": "43", "gap": "1m"}])
        await made.users.clear("43")
        answers = await made.users.get("42"), [entry async for entry in made.users.export()]
    assert answers == (Preferences(gap_us=60_000_000), [{"user": "42", "gap": "1m"}])
    with notifier(config) as plain:
        assert plain.users.get("42") == Preferences(gap_us=60_000_000)


def keys_with(redis: Any, word: str) -> set[str]:
    """The keys of Redis that tell of somebody, by their name or in what they hold."""
    found = set()
    for key in redis.scan_iter():
        kind = redis.type(key)
        reads = {b"hash": redis.hgetall, b"string": redis.get, b"list": lambda k: redis.lrange(k, 0, -1)}
        reads |= {b"zset": lambda k: redis.zrange(k, 0, -1), b"stream": redis.xrange, b"set": redis.smembers}
        reads[b"none"] = lambda _: None  # expired meanwhile
        if word in f"{key} {reads[kind](key)}":
            found.add(key.decode())
    return found


@pytest.mark.parametrize("hard", [False, True])
def test_who_is_forgotten_leaves_nothing_but_when_something_was_sent(
    redis: Redis, config: Path, producer: Notifier, hard: bool
) -> None:
    """What waits is cancelled, what ended goes with its text, the feeds and logs too; the limits hold, unless hard."""
    who = "forget-me"
    producer.users.set(who, gap="1s")
    with worker(config) as running:
        running.ready(redis)
        ends(producer, producer.send(note(who, tags=["t"], dedupe_key="d")), "delivered")
        producer.users.mute(who)
        waits = producer.send(note(who, tags=["t"]))
        ends(producer, waits, "waiting")
        kept = producer.send(note("other"))
        ends(producer, kept, "delivered")
        log = partial(record_action, redis, "anna", "here")
        pause_it(redis, f"user:{who}", "anna", f"{who}@example.com asked us", 0, log)
        producer.users.unmute(who)  # after the pause: the gap may be over
        eventually(lambda: redis.exists(f"notifier:waiting_for_route:user:{who}"), "it to wait for the pause")
    record_action(redis, "anna", "here", "cancel of user", f"{who} category chat", "1 cancelled")
    record_action(redis, "anna", "here", "cancel of user", "forget category chat", "1 cancelled")
    # No worker helps: nothing of it may wait for one that looks at the user again.
    assert producer.forget(who, hard=hard) == Cancellation(1)
    assert producer.status(waits) is None
    assert producer.users.get(who) == Preferences()
    assert keys_with(redis, who) == set()
    producer.acquire(who)
    assert redis.zcard(f"notifier:sent:{{{who}}}") == (1 if hard else 2)
    assert redis.exists("notifier:sent:{other}")
    assert [each.of for each in read_actions(redis, 9)] == ["forget category chat"]


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"tier": 5}', b'{"volume": 11}', b"\xff"])
def test_what_cannot_be_read_is_no_choice_and_an_audit_finds_it(
    redis: Redis, config: Path, producer: Notifier, text: bytes
) -> None:
    """A user of whom something else stands there is served by the configuration; `audit --repair` takes it out."""
    redis.hset("notifier:preferences", "ann", text)
    producer.users.set("bob", gap="1s")
    with worker(config) as running:
        running.ready(redis)
        ends(producer, producer.send(note("ann")), "delivered")
    assert producer.users.get("ann") == Preferences()
    kept: dict[str, Any] = {"lease_us": 10**7}
    for repair, left in ((False, True), (True, False)):
        (found,) = Audit(redis, repair=repair, **kept).findings()
        assert (found.what, found.left) == ("user ann", left)
    assert list(Audit(redis, **kept).findings()) == []
    assert redis.hkeys("notifier:preferences") == [b"bob"]
