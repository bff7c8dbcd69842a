"""Who lives where: stable for ever, evenly spread, and no more moves than must."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifier.errors import SettingsError
from notifier.settings import Settings, load_settings, parse_settings
from notifier.shards.map import Map, home, weight
from notifier.store.connection import connect

NAMES = ["a", "b", "c", "d"]
USERS = [f"user-{number}" for number in range(4_000)]
THREE = """
redis:
  password_file: all
  shards:
    - {name: a, url: redis://one:6379/0}
    - redis://u@two:6380/1?protocol=2
    - {name: c, url: redis+sentinel://three/c/0, password_file: own}
"""


def of(text: str) -> Settings:
    return parse_settings(text, name="/etc/n.yaml")


def test_where_a_user_lives_never_changes() -> None:
    """The values of today hold for ever: another hash would look for every user in the wrong place."""
    assert weight("a", "42") == 9908794223097645529
    assert [home(user, NAMES) for user in ("42", "43", "ann", "Zoë", "user-1")] == ["a", "c", "c", "d", "d"]


def test_users_are_spread_evenly() -> None:
    """Each of four shards has its quarter of 4,000 users within a tenth."""
    counts = Counter(home(user, NAMES) for user in USERS)
    assert all(abs(counts[name] - 1_000) < 100 for name in NAMES)


def test_a_shard_that_comes_takes_its_share_and_moves_nobody_else() -> None:
    """A fifth shard takes a fifth of the users, each from where it was, and one that goes gives up its own."""
    moved = [user for user in USERS if home(user, [*NAMES, "e"]) != home(user, NAMES)]
    assert all(home(user, [*NAMES, "e"]) == "e" for user in moved)
    assert abs(len(moved) - 800) < 80
    left = [user for user in USERS if home(user, NAMES[:3]) != home(user, NAMES)]
    assert {home(user, NAMES) for user in left} == {"d"}


@settings(max_examples=50)
@given(st.text(min_size=1), st.permutations(NAMES))
def test_the_order_of_the_list_is_of_no_account(user: str, names: list[str]) -> None:
    """Two hosts that list the shards in another order agree."""
    assert home(user, names) == home(user, NAMES)


def test_a_map_knows_where_a_user_was_and_is_to_be() -> None:
    """A joining shard is to have its share, and had nobody; a drained one has nobody any more."""
    between = Map(NAMES, joining=frozenset("d"))
    for user in USERS[:200]:
        assert between.home(user, without="a") == home(user, ["b", "c", "d"])
        assert between.before(user) == home(user, ["a", "b", "c"])


def test_shards_are_named_or_named_by_their_urls() -> None:
    """A plain URL is a shard's name without user and options; each shard has its own URL and the common rest."""
    redis = of(THREE).redis
    assert [shard.name for shard in redis.shards] == ["a", "two:6380/1", "c"]
    assert [redis.which(given) for given in ("1", "2", "c", "two:6380/1")] == ["a", "two:6380/1", "c", "two:6380/1"]
    assert redis.shard("a").url == "redis://one:6379/0"
    assert [str(redis.shard(name).password_file) for name in ("a", "c")] == ["/etc/all", "/etc/own"]
    assert not redis.shard("c").shards


@pytest.mark.parametrize(
    ("redis", "says"),
    [
        ("{shards: []}", "redis.shards: must be a list such as [redis://one:6379/0, redis://two:6379/0], is a list"),
        ("{shards: redis://one}", "redis.shards: must be a list such as"),
        ("{shards: [http://one]}", "redis.shards[0].url: is not the URL of a Redis"),
        ("{shards: [{name: a b, url: redis://one}]}", "redis.shards[0].name: is not a shard's name"),
        ("{shards: [{name: a, url: redis://one, joins: true}]}", "joins: unknown key; did you mean joining?"),
        ("{shards: [redis://one, redis://one]}", "redis.shards: 'one' is there twice"),
        (
            "{url: redis://one, shards: [redis://two]}",
            "redis.url: cannot be used together with shards; give one of the two",
        ),
        ("{shards: [{name: a, url: redis://one, joining: true}]}", "redis.shards: all are joining; at least one must"),
        ("{shards: ['redis://:hunter2@one']}", "redis.shards[0]: holds a password"),
    ],
)
def test_what_is_wrong_with_shards_is_said_in_a_line(redis: str, says: str) -> None:
    """A mistake in the list is told with its place, and with what would be right."""
    with pytest.raises(SettingsError) as caught:
        of(f"redis: {redis}")
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_nobody_connects_to_one_shard_for_all() -> None:
    """What wants the one Redis is told the shards' names, and so is who names one that is not there."""
    settings = of(THREE)
    with pytest.raises(SettingsError, match=r"lists a, two:6380/1, c: say which one, by --shard NAME"):
        connect(settings)
    with pytest.raises(SettingsError, match=r"there is no shard 'd'; redis\.shards lists a, two:6380/1, c$"):
        settings.redis.which("d")
    with pytest.raises(SettingsError, match=r"there is no shard 'd': the configuration has one Redis"):
        of("{}").redis.which("d")


def test_one_url_in_the_environment_stands_for_no_shards(tmp_path: Path) -> None:
    """NOTIFIER_REDIS_URL beside redis.shards is refused: some processes would go to another Redis than the rest."""
    path = tmp_path / "n.yaml"
    path.write_text(THREE, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"NOTIFIER_REDIS_URL names one Redis, and redis\.shards lists several"):
        load_settings(path, {"NOTIFIER_REDIS_URL": "redis://one"})
