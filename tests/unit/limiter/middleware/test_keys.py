"""Whom a web request counts for: nothing that a client writes is believed unless a proxy of ours wrote it."""

from typing import Any

import pytest

from notifier.limiter import MemoryLimiter
from notifier.limiter.middleware import WebLimit, WebRequest, api_key, client_address, user
from notifier.limiter.middleware.headers import item_name, policy_items
from notifier.limiter.middleware.request import of_environ
from notifier.limiter.rates import parse_rates


def request(peer: str | None = "203.0.113.7", raw: Any = None, **headers: str) -> WebRequest:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return WebRequest("GET", "/", names, peer, {} if raw is None else raw)


@pytest.mark.parametrize(
    ("peer", "forwarded", "key"),
    [
        ("203.0.113.7", "198.51.100.1", "ip:203.0.113.7"),  # no proxy of ours
        ("10.0.0.1", "", "ip:10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "ip:198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 10.0.0.2", "ip:198.51.100.1"),
        ("10.0.0.1", "10.9.9.9, 10.0.0.2", "ip:10.9.9.9"),  # all are ours: the outermost
        ("10.0.0.1", "1.1.1.1, unknown", "ip:10.0.0.1"),
        ("10.0.0.1", "1.1.1.1, , 10.0.0.2", "ip:10.0.0.2"),
        ("10.0.0.1", "198.51.100.1:4711", "ip:198.51.100.1"),
        ("10.0.0.1", "[2001:db8:1:2:3::4]:4711", "ip:2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "198.51.100.1", "ip:198.51.100.1"),
        ("64:ff9b::203.0.113.7", "", "ip:203.0.113.7"),  # behind a NAT64
        ("2001:db8:1:2:3::4", "", "ip:2001:db8:1:2::/64"),
        ("fe80::1%eth0", "", "ip:fe80::/64"),
        (None, "198.51.100.1", "ip:198.51.100.1"),
        ("testclient", "198.51.100.1", "ip:unknown"),
    ],
)
def test_a_clients_address(peer: str | None, forwarded: str, key: str) -> None:
    """X-Forwarded-For is read from the right, as long as the one that wrote it is a proxy of ours."""
    found = client_address(["10.0.0.0/8", "unix"])(request(peer, x_forwarded_for=forwarded))
    assert found == key


def test_nobody_is_trusted_unless_named() -> None:
    """Without proxies the header is nothing; over a Unix socket all then share one budget, which is the safe side."""
    assert client_address()(request("10.0.0.1", x_forwarded_for="198.51.100.1")) == "ip:10.0.0.1"
    assert client_address()(request(None, x_forwarded_for="198.51.100.1")) == "ip:unknown"


@pytest.mark.parametrize(
    ("proxies", "error", "why"),
    [
        ("10.0.0.0/8", TypeError, r"such as \['10.0.0.0/8'\]"),
        (["*"], ValueError, "write addresses and networks"),
        (["0.0.0.0/0"], ValueError, "trusts every client to name itself"),
        (["10.0.0.1/8"], ValueError, "has host bits set"),
    ],
)
def test_who_may_not_be_trusted(proxies: Any, error: type[Exception], why: str) -> None:
    """To trust everybody is refused, as it is to trust nobody in particular."""
    with pytest.raises(error, match=why):
        client_address(proxies)


@pytest.mark.parametrize("name", ["", "localhost"])
def test_a_unix_socket_is_one_however_a_server_names_it(name: str) -> None:
    """waitress gives localhost as the address of the other end, others give none."""
    asked = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": name, "HTTP_X_FORWARDED_FOR": "198.51.100.1"}
    assert client_address(["unix"])(of_environ(asked)) == "ip:198.51.100.1"
    assert client_address()(of_environ(asked)) == "ip:unknown"


def test_an_api_key_is_never_kept() -> None:
    """The key in Redis tells keys apart and gives none away; without one it is the address."""
    one, other = (api_key()(request(x_api_key=secret)) for secret in ("s3cret", "s3crets"))
    assert one != other
    assert "s3cret" not in str(one)
    assert api_key()(request()) == "ip:203.0.113.7"


@pytest.mark.parametrize(
    ("found", "key"),
    [("ann", "user:ann"), (0, "user:0"), *[(nobody, "ip:203.0.113.7") for nobody in ("", None, False)]],
)
def test_a_user(found: Any, key: str) -> None:
    """Who signed in, whatever a framework calls it; nobody is an address, also by `is_authenticated and pk`."""
    assert user(lambda raw: raw["id"])(request(raw={"id": found})) == key


@pytest.mark.parametrize("found", [object(), True])
def test_a_user_is_an_id(found: Any) -> None:
    """Of an object, or of what was not awaited, each request would have a budget of its own; of True, all one."""
    with pytest.raises(TypeError, match=r"gives the user's id, text or a number, not (<object|True)"):
        user(lambda _: found)(request())


def test_a_user_or_somebody_else() -> None:
    """A request of nobody goes by `otherwise`."""
    by_session = user(lambda raw: raw.get("session"), otherwise=lambda _: "nobody")
    assert [by_session(request(raw=raw)) for raw in ({"session": 7}, {})] == ["user:7", "nobody"]


def test_what_a_client_chose_may_be_long() -> None:
    """A long key is hashed: it can be neither refused nor grow Redis."""
    long = [WebLimit("api", "1/s", key=lambda _, end=end: "k" * 5000 + end).asked(request()) for end in "ab"]
    assert long[0] is not None
    assert long[0] != long[1]
    assert len(long[0][0]) < 100


@pytest.mark.parametrize("chosen", ["\ud800", "a\nb", "}a", ""])
def test_what_a_client_chose_may_be_any_text(chosen: str) -> None:
    """A limiter refuses half of a surrogate pair, which would be our error for a client's mistake: it is hashed."""
    asked = WebLimit("api", "1/s", key=lambda _: chosen).asked(request())
    assert asked is not None
    assert MemoryLimiter().acquire(*asked[:2])


def test_what_rules_are_called() -> None:
    """One rule has the limit's name, several have names of their own; only whole seconds are told."""
    assert list(policy_items("a", parse_rates("5/minute"))) == ['"a";q=5;w=60']
    several = parse_rates("5/minute; 9/minute; 3/500ms; gap 200ms; burst 20 then 1/3m")
    assert list(policy_items("a", several)) == [
        '"a-5-per-1m";q=5;w=60',
        '"a-9-per-1m";q=9;w=60',
        '"a-500ms";q=3',
        '"a-gap";q=1',
        '"a-burst";q=20;w=3600',
    ]
    assert item_name("a", several, "5/1m") == "a-5-per-1m"
