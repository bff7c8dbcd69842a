"""The URLs of Sentinel and of a Redis Cluster: what they mean, and that they are refused without being quoted."""

import pytest

from notifier.errors import SettingsError
from notifier.settings import RedisSettings, load_settings, parse_settings
from notifier.settings.redis_url import Servers, parse
from notifier.store.connection import address, connect

RIGHT = {
    "redis+sentinel://a:1,b,[::1]:3/push/2": Servers(
        (("a", 1), ("b", 26379), ("::1", 3)), tls=False, name="push", database=2
    ),
    "rediss+sentinel://a/my-master": Servers((("a", 26379),), tls=True, name="my-master"),
    "redis+sentinel://u:p%40@a/s/": Servers((("a", 26379),), tls=False, name="s", username="u", password="p@"),
    "redis+cluster://a:1,b,[::1]:3": Servers((("a", 1), ("b", 6379), ("::1", 3)), tls=False),
    "rediss+cluster://a/": Servers((("a", 6379),), tls=True),
    "redis+cluster://u:p%40@a": Servers((("a", 6379),), tls=False, username="u", password="p@"),
}
SENTINEL, CLUSTER = "redis+sentinel://host:26379,host:26379/service/0", "redis+cluster://host:6379,host:6379"
OTHERS = {
    SENTINEL: ("", "a:26379", "a:0/s", "a:99999/s", "a,,b/s", "a/s/x", "a/s?x=1"),
    CLUSTER: ("", "a:0", "a:99999", "a,,b", "a/0"),
}
WRONG = {f"{form.partition('//')[0]}//{rest}": form for form, rests in OTHERS.items() for rest in rests}


@pytest.mark.parametrize("url", RIGHT)
def test_what_a_url_says(url: str) -> None:
    """Servers with their ports, TLS and who signs in; the service and the database behind Sentinel."""
    assert parse(url) == RIGHT[url]


@pytest.mark.parametrize("url", WRONG)
def test_another_form_is_refused(url: str) -> None:
    """The error shows the form and not the URL, which may hold a password."""
    with pytest.raises(SettingsError) as refused:
        parse_settings(f"redis: {{url: '{url}'}}")
    assert WRONG[url] in str(refused.value)
    assert f" {url} " not in str(refused.value)


@pytest.mark.parametrize("url", ["redis+sentinel://u:hunter2@a/s", "redis+cluster://u:hunter2@a"])
def test_a_password_does_not_belong_into_the_file(url: str) -> None:
    """As for any other URL of a Redis."""
    with pytest.raises(SettingsError, match="holds a password") as refused:
        parse_settings(f"redis: {{url: '{url}'}}")
    assert "hunter2" not in str(refused.value)


def test_a_client_is_made_without_a_connection() -> None:
    """Nothing is asked before the first command, and errors can name where it goes, without the password."""
    with connect(RedisSettings(url="redis+sentinel://u:hunter2@a:1,b/s/3")) as client:
        assert address(client) == "s by Sentinel at a:1, b:26379"
        kwargs = client.connection_pool.connection_kwargs
        assert (kwargs["db"], kwargs["password"], kwargs["protocol"]) == (3, "hunter2", 2)


def test_who_prints_servers_prints_no_password() -> None:
    """Of both kinds."""
    of = [each for url, each in RIGHT.items() if "p%40" in url]
    assert [each.password for each in of] == ["p@", "p@"]
    assert not [each for each in of if "p@" in repr(each)]


@pytest.mark.parametrize(
    "option",
    [
        "ssl_cert_reqs=none",
        "ssl_cert_reqs=optional",
        "ssl_check_hostname=false",
        "ssl_check_hostname=1&ssl_check_hostname=0",
    ],
)
def test_no_url_leaves_the_servers_certificate_unchecked(option: str) -> None:
    """Wherever the URL stands; the error says what to do instead."""
    url = f"rediss://localhost:6379/0?{option}"
    says = f"has {option.partition('=')[0]}, .* leave it out, name who signed the certificate in redis.ca_file"
    with pytest.raises(SettingsError, match=says):
        parse_settings(f"redis: {{url: '{url}'}}")
    with pytest.raises(SettingsError, match=says):
        load_settings(None, {"NOTIFIER_REDIS_URL": url})


def test_a_url_may_say_that_the_certificate_is_checked() -> None:
    """As it is anyway."""
    url = "rediss://localhost:6379/0?ssl_cert_reqs=required&ssl_check_hostname=True"
    assert parse_settings(f"redis: {{url: '{url}'}}").redis.url == url
