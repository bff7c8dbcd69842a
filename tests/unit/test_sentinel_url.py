"""The URL of a Redis behind Sentinel: what it means, and that it is refused without being quoted."""

from __future__ import annotations

import pytest

from notifier.errors import SettingsError
from notifier.settings import RedisSettings, parse_settings
from notifier.settings.sentinel_url import Service, parse
from notifier.store.connection import address, connect

RIGHT = {
    "redis+sentinel://a:1,b,[::1]:3/push/2": Service("push", (("a", 1), ("b", 26379), ("::1", 3)), 2, tls=False),
    "rediss+sentinel://a/my-master": Service("my-master", (("a", 26379),), 0, tls=True),
    "redis+sentinel://u:p%40@a/s/": Service("s", (("a", 26379),), 0, tls=False, username="u", password="p@"),
}
WRONG = [
    "redis+sentinel://",
    "redis+sentinel://a:26379",
    "redis+sentinel://a:0/s",
    "redis+sentinel://a:99999/s",
    "redis+sentinel://a,,b/s",
    "redis+sentinel://a/s/x",
    "redis+sentinel://a/s?x=1",
]


@pytest.mark.parametrize("url", RIGHT)
def test_what_a_url_says(url: str) -> None:
    """Sentinels with their ports, the service, the database, TLS and who signs in."""
    assert parse(url) == RIGHT[url]


@pytest.mark.parametrize("url", WRONG)
def test_another_form_is_refused(url: str) -> None:
    """The error shows the form and not the URL, which may hold a password."""
    with pytest.raises(SettingsError) as refused:
        parse_settings(f"redis: {{url: '{url}'}}")
    assert "redis+sentinel://host:26379,host:26379/service/0" in str(refused.value)
    assert f" {url} " not in str(refused.value)


def test_a_password_does_not_belong_into_the_file() -> None:
    """As for any other URL of a Redis."""
    with pytest.raises(SettingsError, match="holds a password") as refused:
        parse_settings("redis: {url: 'redis+sentinel://u:hunter2@a/s'}")
    assert "hunter2" not in str(refused.value)


def test_a_client_is_made_without_a_connection() -> None:
    """Nothing is asked before the first command, and errors can name where it goes, without the password."""
    with connect(RedisSettings(url="redis+sentinel://u:hunter2@a:1,b/s/3")) as client:
        assert address(client) == "s by Sentinel at a:1, b:26379"
        kwargs = client.connection_pool.connection_kwargs
        assert (kwargs["db"], kwargs["password"], kwargs["protocol"]) == (3, "hunter2", 2)
        assert "hunter2" not in repr(RIGHT["redis+sentinel://u:p%40@a/s/"])
