"""The catalogue of keys: what an audit takes for a wrong type, and removes, goes by it."""

import pytest

from notifier.scripts.key_types import TOLD, types_of
from notifier.scripts.keys import CATALOGUE

ANY = {"string", "list", "set", "zset", "hash", "stream"}


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ("notifier:backlog:{42}:chat", {"zset"}),
        ("notifier:sent:{42}", {"zset"}),
        ("notifier:burst:{42}:chat", {"hash"}),
        ("notifier:rests:{42}:chat apns", {"zset"}),
        ("notifier:history:{42}:1", {"list"}),
        ("notifier:forgotten:9083:sent:chat", {"string", "set", "zset", "hash"}),
        ("notifier:seq", {"string"}),
        ("notifier:zones:users", {"hash"}),
        ("notifier:dedupe:2:{42}:hash", {"string"}),
        ("notifier:device:9083", {"zset", "hash", "string"}),
        ("notifier:project:fcm hash", {"hash"}),
        ("notifier:quarantine:notifier:leases", ANY),
        ("rq:job:9083", {"hash", "set"}),
        ("rq:queue:default", {"list"}),
        ("rq:queue:default:intermediate:first_seen:9083", {"string"}),
        ("rq:worker:9083:executions", {"set"}),
        ("rq:suspended", None),
        ("hash", None),
    ],
)
def test_the_types_of_a_key(key: str, types: set[str] | None) -> None:
    """They are what its line names first, whatever words the rest of the line has."""
    assert types_of(key.encode()) == types


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_line_names_its_types_in_one_place(name: str) -> None:
    """What follows the name, the types by a comma and 'or', and in words what it is."""
    told = TOLD.fullmatch(CATALOGUE[name])
    assert told is not None
    assert set(told["types"].replace(" or ", ", ").split(", ")) <= ANY
    assert told["meaning"]
