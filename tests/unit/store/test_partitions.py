"""Partitions: where a user is, what a job id shows, and what is refused before anything is asked of Redis."""

import json
from dataclasses import replace

import pytest

from notifier import Notifier, RedisUnusableError
from notifier.cli.worker import chosen
from notifier.errors import InvalidNotificationError, NotifierError, SettingsError
from notifier.producer.routing import first_known
from notifier.queue.circuits import Held, by_route, worst
from notifier.scripts import keys
from notifier.scripts.rule_table import RuleTable
from notifier.settings import RedisSettings, load_settings, parse_settings
from notifier.store.cluster import Owner
from notifier.store.connection import connect
from notifier.store.partitions import Partition, Partitions, connect_all
from notifier.store.pipelining import whole
from notifier.store.tags import prefixes_of
from notifier.units import moment

CLUSTER = "redis+cluster://127.0.0.1:1"


def four() -> Partitions:
    return connect_all(RedisSettings(url=CLUSTER, partitions=4))


def test_all_keys_of_a_partition_begin_with_its_tag() -> None:
    """Ours and RQ's, behind the prefix of the fleet; a user's braces name no other slot."""
    config = RedisSettings(url=CLUSTER, partitions=64, prefix="shop")
    with keys.under(prefixes_of(config, 58)):
        assert keys.declared() == ("{2z4}shop:", "{2z4}shop:rq:")
        assert keys.user_key("sent", "42") == "{2z4}shop:sent:{42}"
        with keys.under(None):
            assert keys.rq_key("queue", "bulk") == "{2z4}shop:rq:queue:bulk"


def test_a_job_id_shows_its_partition() -> None:
    """So `status` asks one; an id of the caller's own shows none, and all are asked."""
    partitions = four()
    where = partitions.of_user("42")
    assert partitions.of_job(partitions.job_id("42", None)) == (where,)
    assert partitions.of_job(partitions.job_id("42", "mine")) == partitions
    assert partitions.of_job("p99-") == ()


def test_an_id_that_shows_another_partition_is_refused() -> None:
    """Or `status` would look for it there."""
    partitions = four()
    other = (partitions.of_user("42").number + 1) % 4
    with pytest.raises(InvalidNotificationError, match="begins like the ids that show a partition"):
        partitions.job_id("42", f"p{other:02}-x")


def test_one_partition_is_as_ever() -> None:
    """Ids show nothing, and keys are named as the process names them."""
    one = Partitions.around(object())
    assert len(one) == 1
    assert one.of_job("p07-x") == one
    assert one[0].prefixes is None
    assert len(one.job_id("42", None)) == 20
    assert Partitions.around(one) is one


def test_what_is_known_of_a_node_is_known_of_all_slots() -> None:
    """One answer tells the owners of all partitions, and their connections are those to a node, whoever opened them."""
    partitions = four()
    owners = [at.client.connection_pool.connection_kwargs["owner"] for at in partitions]
    slots = [[0, 8_191, [b"a", 1, b"i"]], [8_192, 16_383, [b"b", 2, b"j"]]]
    owners[3].read(slots, ("a", 1))
    assert [owner.known for owner in owners] == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]
    assert all(isinstance(owner, Owner) and owner.free is owners[0].free for owner in owners)


@pytest.mark.parametrize("number", [0, 65])
def test_a_wrong_number_is_refused(number: int) -> None:
    """By the schema, with the key."""
    with pytest.raises(SettingsError, match="partitions"):
        parse_settings(f"redis: {{url: 'redis+cluster://a', partitions: {number}}}")


def test_one_redis_has_one_partition() -> None:
    """Several are for a cluster alone, and the error shows its URL."""
    with pytest.raises(SettingsError, match=r"redis\.partitions is for a Redis Cluster"):
        connect_all(RedisSettings(partitions=2))


def test_what_works_with_one_redis_says_so() -> None:
    """A client of redis-py stands for one partition: the rest would be missing."""
    config = RedisSettings(url=CLUSTER, partitions=64)
    with pytest.raises(SettingsError, match="in 64 partitions"):
        connect(config)
    settings = parse_settings(f"redis: {{url: '{CLUSTER}', partitions: 64}}")
    with pytest.raises(SettingsError, match=r"redis\.partitions is 64"):
        Notifier(four()[0].client, settings)


def test_one_partition_may_be_meant(tmp_path: object) -> None:
    """`NOTIFIER_PARTITION` names it; a number that there is not is refused."""
    config = tmp_path / "notifier.yaml"  # type: ignore[operator]
    config.write_text(f"redis: {{url: '{CLUSTER}', partitions: 4}}")
    assert load_settings(config, {"NOTIFIER_PARTITION": "3"}).redis.partition == 3
    for wrong in ("4", "-1", "x"):
        with pytest.raises(SettingsError, match="is none of 0 to 3"):
            load_settings(config, {"NOTIFIER_PARTITION": wrong})


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0-2", [0, 1, 2]), ("3,0-1", [0, 1, 3]), (None, [0, 1, 2, 3])]
)
def test_a_worker_may_serve_some(text: str | None, numbers: list[int]) -> None:
    """By their numbers, in any order."""
    assert [at.number for at in chosen(four(), text)] == numbers


@pytest.mark.parametrize("text", ["4", "2-1", "", "a", "0-4", "1,,2"])
def test_a_worker_is_told_which_there_are(text: str) -> None:
    """Anything else is refused with the numbers that there are."""
    with pytest.raises(SettingsError, match="numbers from 0 to 3"):
        chosen(four(), text)


AWAY = RedisUnusableError("Redis does not answer")


def parts(count: int) -> list[Partition]:
    return [Partition(number, count, None, None) for number in range(count)]


def test_a_node_that_is_away_names_its_partitions() -> None:
    """Of all that were asked."""
    errors: list[int | NotifierError] = [1, AWAY, 2, AWAY]
    with pytest.raises(RedisUnusableError, match="Redis does not answer; asked for partitions 1, 3 of 4"):
        whole(parts(4), errors)
    assert first_known(parts(4), errors) == 1
    with pytest.raises(RedisUnusableError, match="1 of 2"):
        first_known(parts(2), [None, AWAY])


def test_a_route_is_named_once() -> None:
    """With all that waits for it in all partitions; since the first of them met it, until one of them tries again."""
    held = Held("apns", "stopped", None, 3)
    assert by_route([[held], [], [held]]) == [Held("apns", "stopped", None, 6)]
    first = Held("apns", "stopped", moment(90_000_000), 3, reason="refused", since=moment(1_000_000))
    last = Held("apns", "stopped", moment(70_000_000), 4, reason="timeout", since=moment(20_000_000))
    slow = Held("apns", "slow", moment(60_000_000), 5, "full", since=moment(0))
    both = replace(first, next_at=last.next_at, waiting=7)
    for pair in ([first, last], [last, first]):
        assert by_route([each] for each in pair) == [both]
        assert worst(by_route([each] for each in (*pair, slow))) == {"apns": replace(both, waiting=12)}


SHARES = {
    "limit of providers.fcm": "providers: {fcm: {client: console, limits: {project: 3/1m}}}",
    "max_waiting, which is 3": "max_waiting: 3",
}


@pytest.mark.parametrize("said", SHARES)
def test_what_all_users_share_is_enough_for_all(said: str) -> None:
    """Each partition has its share of it, and that is at least one."""
    with pytest.raises(SettingsError, match=said):
        parse_settings(f"redis: {{url: '{CLUSTER}', partitions: 4}}\n{SHARES[said]}")
    larger = SHARES[said].replace("3", "9")
    assert parse_settings(f"redis: {{url: '{CLUSTER}', partitions: 4}}\n{larger}").max_waiting_here in {None, 2}


def test_a_partition_has_its_share_of_a_project() -> None:
    """So that all of them together keep its limit."""
    settings = parse_settings("providers: {fcm: {client: console, limits: {project: 100/1m}}}")
    assert json.loads(RuleTable(settings.policies(), partitions=8).text)["projects"]["fcm"][0] == 12
