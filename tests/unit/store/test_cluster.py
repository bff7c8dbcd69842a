"""A client of a Redis Cluster: where it goes, how keys are named there, and how it finds who has its slot."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from notifier.scripts import keys
from notifier.settings import RedisSettings
from notifier.settings.redis_url import parse
from notifier.store.cluster import Owner, client_of
from notifier.store.connection import address, connect
from notifier.store.partitions import connect_all

SEEDS = [("a", 1), ("b", 2)]
SLOTS = [[0, 8000, [b"", 7, b"id-1"], [b"c", 8, b"id-2"]], [8001, 16383, [b"d", 9, b"id-3"]]]


@pytest.fixture(autouse=True)
def keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test names keys by is forgotten after it."""
    monkeypatch.setattr(keys, "_of_process", keys.in_force())
    monkeypatch.setattr(keys, "_asked_for", False)
    monkeypatch.delenv("RQ_KEY_PREFIX", raising=False)


def test_a_client_is_made_without_a_connection() -> None:
    """Nothing is asked before the first command, and errors can name where it goes, without the password."""
    with connect(RedisSettings(url="redis+cluster://u:hunter2@a:1,b")) as client:
        assert address(client) == "slot 128 of the cluster at a:1, b:6379"
        kwargs = client.connection_pool.connection_kwargs
        assert (kwargs["username"], kwargs["password"], kwargs["protocol"]) == ("u", "hunter2", 2)


def test_all_keys_of_a_fleet_without_partitions_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours and RQ's, whatever prefix RQ has elsewhere, are in the slot of what each call declares."""
    monkeypatch.setenv("RQ_KEY_PREFIX", "mine")
    connect(RedisSettings(url="redis+cluster://a", prefix="shop"))
    assert keys.declared() == ("{53t}shop:", "{53t}shop:rq:")
    assert keys.user_key("sent", "42") == "{53t}shop:sent:{42}"
    assert keys.rq_key("queue", "bulk") == "{53t}shop:rq:queue:bulk"
    (one,) = connect_all(RedisSettings(url="redis+cluster://a", prefix="shop"))
    assert one.prefixes == keys.in_force()


def test_an_owner_is_read_from_what_a_node_tells() -> None:
    """A node that does not know its own host is the one that was asked; nodes that are found are asked too."""
    owner = Owner("notifier", SEEDS)
    assert owner.read(SLOTS, ("b", 2)) == ("b", 7)
    assert owner.known == ("b", 7)
    assert owner.nodes == [("b", 7), ("c", 8), ("d", 9), *SEEDS]
    assert owner.read(SLOTS[1:], ("b", 2)) is None


def test_who_does_not_answer_is_asked_last() -> None:
    """So a dead node costs its time-out once, also where another tells that it has a slot."""
    owner = Owner("notifier", SEEDS)
    assert owner.candidates() == SEEDS
    owner.silent["b", 7] = 1.0
    owner.read(SLOTS, ("b", 2))
    assert owner.candidates() == [("c", 8), ("d", 9), *SEEDS, ("b", 7)]


@pytest.mark.parametrize(
    ("refusal", "known"),
    [
        (MovedError("2428 c:8"), ("c", 8)),
        (AskError("2428 c:8"), ("a", 1)),
        (TryAgainError(), ("a", 1)),
        (ClusterDownError("CLUSTERDOWN"), None),
    ],
)
def test_what_a_refusal_tells_of_the_owner(refusal: Exception, known: tuple[str, int] | None) -> None:
    """A slot that is being moved is still its old owner's; where there is none, it is looked for."""
    owner = Owner("notifier", SEEDS)
    owner.known = ("a", 1)
    owner.note(refusal)
    assert owner.known == known


def test_a_child_of_a_fork_takes_no_connection_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free belongs to the process, so a pool that is made in the child, or made anew there, has nothing."""
    nodes = parse("redis+cluster://a:1")
    with client_of("{0}", nodes, {}) as of_parent:
        pool: Any = of_parent.connection_pool
        free = pool._available_connections
        pool.connection_kwargs["owner"].known = ("a", 1)
        free.append(SimpleNamespace(host="a", port=1))
        assert len(free) == 1
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        with client_of("{1}", nodes, {}, beside=of_parent) as of_child:
            beside: Any = of_child.connection_pool
            beside.connection_kwargs["owner"].known = ("a", 1)
            assert len(beside._available_connections) == 0
            connection = SimpleNamespace(host="a", port=1)
            beside._available_connections.append(connection)
            assert free.pop() is connection
