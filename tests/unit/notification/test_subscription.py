"""Web Push before any wire: subscriptions and options are read strictly, and nothing of a subscription is shown."""

import base64
import contextlib
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from notifier.errors import InvalidNotificationError
from notifier.notification import Device, Notification, subscription
from notifier.notification.subscription import (
    KNOWN_HOSTS,
    MAX_KEPT,
    MAX_KEPT_CHARACTERS,
    P256_B,
    P256_PRIME,
    read_subscription,
)
from notifier.providers import check_payload
from notifier.providers.webpush.payload import OPTIONS, payload
from notifier.texts import mask

P256DH = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
# A point of the curve, had it not the prime added to its y: whoever encrypts for it is told that it is no key.
Y_IS_TOO_LARGE = "BNcyXXZGzWDYCpJzjOs0X4RM_681hBAiyrF29pLejeHX_____wAAAAEAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAQ"
KEYS = {"p256dh": P256DH, "auth": AUTH}
GOOD: dict[str, Any] = {
    "endpoint": "https://fcm.googleapis.com/fcm/send/abc:DEF-1",
    "expirationTime": None,
    "keys": KEYS,
}


def written(**change: Any) -> str:
    return json.dumps(GOOD | change)


def note(token: str = "", **fields: Any) -> Notification:
    return Notification(user="7", devices=[Device("webpush", token or written())], **({"title": "Hello"} | fields))


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://updates.push.services.mozilla.com/wpush/v2/gAAAAABl_-x",
        "https://wns2-par02p.notify.windows.com/w/?token=BQYAAAD%2b%2fx%3d",
        "https://web.push.apple.com/QF8w7V0M5Z3hbQiw4tIsMBJ",
        "https://127.0.0.1:8443/push/anna",
        "https://example.com/",
    ],
)
def test_subscriptions_of_all_browsers_are_read(endpoint: str) -> None:
    """What browsers hand out is a device, whatever the order of its fields, with or without an expiry."""
    for change in ({}, {"expirationTime": 1.5e12}):
        note(written(endpoint=endpoint, **change)).validate()
    bare = {"keys": KEYS, "endpoint": endpoint}
    found = read_subscription(json.dumps(bare))
    assert (found.endpoint, found.p256dh, found.auth) == (endpoint, P256DH, AUTH)
    assert endpoint.startswith(f"{found.origin}/")
    assert found.origin == f"https://{found.host}"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "JSON.stringify"),
        ("null", "JSON.stringify"),
        ("[" * 100_000, "JSON.stringify"),
        ('"https://example.com/"', "JSON.stringify"),
        (json.dumps({"endpoint": "https://example.com/"}), "JSON.stringify"),
        (written(more=1), "JSON.stringify"),
        (written(expirationTime="soon"), "expirationTime"),
        (written(expirationTime=True), "expirationTime"),
        (written(endpoint=None), "https URL"),
        (written(endpoint="http://example.com/x"), "https URL"),
        (written(endpoint="https://example.com"), "https URL"),
        (written(endpoint="https://user@example.com/x"), "https URL"),
        (written(endpoint="https://EXAMPLE.com/x"), "https URL"),
        (written(endpoint="https://example.com/x#y"), "https URL"),
        (written(endpoint="https://example.com/x y"), "https URL"),
        (written(endpoint="https://example.com/x\r\nHost: y"), "https URL"),
        (written(endpoint="https://example.com\\@internal/x"), "https URL"),
        (written(endpoint="https://[::1]/x"), "https URL"),
        (written(endpoint="https://example.com:0/x"), "https URL"),
        (written(endpoint="https://example.com:65536/x"), "https URL"),
        (written(endpoint="https://example.com./x"), "https URL"),
        (written(endpoint="https://" + "a" * 64 + ".example.com/x"), "https URL"),
        (written(endpoint="https://" + "a." * 123 + "example.com/x"), "https URL"),
        (written(endpoint="https://example.com/" + "x" * 2048), "2048 characters"),
        (written(keys=[]), "keys"),
        (written(keys={"auth": AUTH}), "keys"),
        (written(keys={**KEYS, "more": ""}), "keys"),
        (written(keys={**KEYS, "auth": AUTH + "=="}), "keys.auth"),
        (written(keys={**KEYS, "auth": AUTH[:-1]}), "keys.auth"),
        (written(keys={**KEYS, "auth": "A"}), "keys.auth"),
        (written(keys={**KEYS, "auth": 16}), "keys.auth"),
        (written(keys={**KEYS, "auth": "AAAA"}), "keys.auth has not 16 bytes"),
        (written(keys={**KEYS, "p256dh": P256DH.replace("_", "/")}), "keys.p256dh"),
        (written(keys={**KEYS, "p256dh": P256DH[:-4]}), "65 bytes"),
        (written(keys={**KEYS, "p256dh": "A" + P256DH[1:]}), "65 bytes"),
        (written(keys={**KEYS, "p256dh": P256DH[:40] + "AA" + P256DH[42:]}), "P-256"),
        (written(keys={**KEYS, "p256dh": "BP" + "_" * 85}), "P-256"),
        (written(keys={**KEYS, "p256dh": Y_IS_TOO_LARGE}), "P-256"),
    ],
)
def test_anything_else_is_refused_without_being_shown(token: str, why: str) -> None:
    """Whatever is no subscription is refused at its device, with the reason, and nothing of it is repeated."""
    with pytest.raises(InvalidNotificationError, match=why) as caught:
        note(token or " ").validate()
    assert caught.value.field == "devices[0].token"
    for secret in (AUTH, P256DH, "example.com"):
        assert secret not in str(caught.value)


@given(st.text() | st.from_regex(r"\{.*\}"))
def test_any_text_is_a_subscription_or_refused(text: str) -> None:
    """Whatever a stranger sends as a subscription is read or is a ValueError, nothing else."""
    with contextlib.suppress(ValueError):
        assert read_subscription(text).host


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.sampled_from(["", ":1", ":65535", ":65536", ":99999"]))
def test_what_is_read_can_be_looked_up(labels: list[int], port: str) -> None:
    """A name that no resolver takes, or a port that there is not, never gets as far as a connection."""
    host = ".".join("x" * size for size in labels) + port
    try:
        origin = urlsplit(read_subscription(written(endpoint=f"https://{host}/x")).origin)
    except ValueError:
        return
    assert origin.hostname is not None
    assert origin.hostname.encode("idna").decode() == origin.hostname
    assert origin.port != 0


def test_nothing_of_a_subscription_is_shown() -> None:
    """Neither a mask nor a repr gives away the endpoint or a key, and two subscriptions can be told apart."""
    one, two = written(), written(endpoint="https://fcm.googleapis.com/fcm/send/abc:DEF-2")
    assert mask(one) != mask(two)
    for shown in (mask(one), repr(Device("webpush", one)), repr(note(one)), repr(read_subscription(one))):
        assert not any(secret in shown for secret in ("DEF", AUTH[:4], P256DH[:4], "/fcm/send"))


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        ("https://fcm.googleapis.com/x", True),
        ("https://web.push.apple.com/x", True),
        ("https://par02p.notify.windows.com/x", True),
        ("https://updates.push.services.mozilla.com/x", True),
        ("https://notify.windows.com/x", False),
        ("https://evilnotify.windows.com/x", False),
        ("https://evilcm.googleapis.com/x", False),
        ("https://fcm.googleapis.com:8443/x", False),
        ("https://x.notify.windows.com:22/x", False),
        ("https://fcm.googleapis.com.example.com/x", False),
        ("https://example.com/fcm.googleapis.com/", False),
        ("https://localhost/x", False),
        ("https://169.254.169.254/latest/meta-data/", False),
    ],
)
def test_known_services_are_told_from_strangers(endpoint: str, allowed: bool) -> None:
    """The allow-list names hosts and what is under a domain, at the port for https; nothing that looks alike."""
    assert read_subscription(written(endpoint=endpoint)).is_at(KNOWN_HOSTS) is allowed


def test_a_host_may_have_a_port() -> None:
    """A service at another port is allowed with that port, and with no other."""
    there = read_subscription(written(endpoint="https://push.example.com:8443/x"))
    assert there.is_at(["push.example.com:8443"])
    assert there.is_at(["*.example.com:8443"])
    assert not there.is_at(["push.example.com", "*.example.com", "push.example.com:443"])


EVERY: dict[str, Any] = {
    "actions": [{"action": "yes", "title": "Yes", "icon": "/yes.png"}, {"action": "no", "title": "No"}],
    "badge": "/badge.png",
    "dir": "rtl",
    "icon": "https://example.com/icon.png",
    "image": "/image.png",
    "lang": "ar",
    "renotify": True,
    "requireInteraction": False,
    "silent": False,
    "tag": "score",
    "timestamp": 1_700_000_000_000,
    "url": "/match?id=7#goal",
    "vibrate": [200, 100, 200],
}


def test_every_option_is_known() -> None:
    """All options that can be given are taken together, and handed to the page as they are, the url by itself."""
    assert EVERY.keys() | {"declarative", "mutable"} == OPTIONS.keys()
    check_payload(note(webpush=EVERY))
    message = json.loads(payload(note(webpush=EVERY)))
    url = EVERY["url"]
    assert message == {"title": "Hello", "url": url, "options": {k: v for k, v in EVERY.items() if k != "url"}}


def test_a_collapse_id_is_the_tag_unless_one_is_given() -> None:
    """What replaces a message at the push service replaces it on the screen too."""
    assert json.loads(payload(note(collapse_id="a")))["options"] == {"tag": "a"}
    assert json.loads(payload(note(collapse_id="a", webpush={"tag": "b", "renotify": True})))["options"]["tag"] == "b"


def test_a_declarative_message_is_whole() -> None:
    """What a browser shows by itself: the number it knows it by, a title and an address; the rest as it names it."""
    actions = [{"action": "yes", "title": "Yes", "navigate": "https://example.com/yes"}]
    options = {"declarative": True, "mutable": True, "url": "https://example.com/7", "lang": "ar", "actions": actions}
    given = note(body="…", data={"id": "7"}, badge=3, collapse_id="chat-7", webpush=options)
    check_payload(given)
    assert json.loads(payload(given)) == {
        "web_push": 8030,
        "notification": {
            "title": "Hello",
            "navigate": "https://example.com/7",
            "body": "…",
            "data": {"id": "7"},
            "tag": "chat-7",
            "lang": "ar",
            "actions": actions,
        },
        "app_badge": 3,
        "mutable": True,
    }


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"webpush": {"declarative": True}}, "webpush.url"),
        ({"webpush": {"declarative": True, "url": "/7"}}, "webpush.url"),
        ({"title": None, "body": "b", "webpush": {"declarative": True, "url": "https://example.com"}}, "title"),
        ({"webpush": {"mutable": True}}, "webpush.mutable"),
        ({"webpush": {"declarative": "yes"}}, "webpush.declarative"),
        ({"webpush": {"actions": [{"action": "a", "title": "A", "navigate": "https://a"}]}}, "webpush.actions"),
        (
            {"webpush": {"declarative": True, "url": "https://a", "actions": [{"action": "a", "title": "A"}]}},
            "webpush.actions",
        ),
        (
            {
                "webpush": {
                    "declarative": True,
                    "url": "https://a",
                    "actions": [{"action": "a", "title": "A", "navigate": "/x"}],
                }
            },
            "webpush.actions",
        ),
    ],
)
def test_a_declarative_message_that_is_not_whole_is_refused(fields: dict[str, Any], field: str) -> None:
    """The browser would drop it, where nobody sees it."""
    with pytest.raises(InvalidNotificationError) as caught:
        check_payload(note(**fields))
    assert caught.value.field == field


WRONG: dict[str, list[Any]] = {
    "title": ["x"],
    "icon": ["", "javascript:alert(1)", "http://example.com/x.png", "//example.com\\x", 7],
    "url": ["/a b", "/" + "a" * 2048],
    "dir": ["up", []],
    "lang": [""],
    "silent": ["yes", 1],
    "timestamp": [-1, True],
    "vibrate": [[1, -1], [1.5], [1] * 101],
    "actions": [
        {},
        [{"action": "x"}],
        [{"action": "x", "title": "X", "url": "/"}],
        [{"action": "x", "title": 7}],
        [{"action": "x", "title": "X"}] * 11,
    ],
    "renotify": [True],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_option_is_refused_by_name(name: str, value: object) -> None:
    """An option that a browser would not take is found out by the producer, and named."""
    with pytest.raises(InvalidNotificationError) as caught:
        check_payload(note(webpush={name: value}))
    assert caught.value.field == f"webpush.{name}"
    assert caught.value.why


def test_silence_does_not_vibrate() -> None:
    """What makes showNotification fail in the browser, where nobody sees it, is refused here."""
    with pytest.raises(InvalidNotificationError, match="vibrate"):
        check_payload(note(webpush={"silent": True, "vibrate": 200}))


@pytest.mark.parametrize("webpush", [[], "x", {"icon": float("nan")}, {"actions": {1}}, {7: "x"}])
def test_options_are_json(webpush: Any) -> None:
    """What no job can carry is refused before it is written."""
    with pytest.raises(InvalidNotificationError, match="webpush"):
        note(webpush=webpush).validate()


def test_what_was_read_lately_is_kept_within_bounds() -> None:
    """A worker reads a subscription once for all its looks at it; a long text is not kept, nor more than some."""
    text = written(endpoint="https://updates.push.services.mozilla.com/wpush/v2/kept")
    assert read_subscription(text) is read_subscription(text)
    long = text + " " * MAX_KEPT_CHARACTERS
    assert read_subscription(long) == read_subscription(text)
    assert read_subscription(long) is not read_subscription(long)
    for n in range(MAX_KEPT + 10):
        token = written(endpoint=f"https://a{n}.notify.windows.com/w")
        assert Device("webpush", token).host == f"a{n}.notify.windows.com"
    assert subscription._kept.cache_info().currsize == MAX_KEPT
    assert Device("webpush", long).host == "updates.push.services.mozilla.com"
    assert not Device("webpush", "https://updates.push.services.mozilla.com").host, "it is no subscription"


@given(st.integers(min_value=1, max_value=2**255), st.sampled_from([0, 0, 1, 2**200]), st.booleans())
def test_points_of_the_curve_are_told_as_by_openssl(secret: int, off: int, over: bool) -> None:
    """A key is a point of P-256 where OpenSSL says so too: a real one, one beside it, one whose x is too large."""
    point = ec.derive_private_key(secret, ec.SECP256R1()).public_key().public_bytes(
        Encoding.X962, PublicFormat.UncompressedPoint
    )  # fmt: skip
    x, y = int.from_bytes(point[1:33]), int.from_bytes(point[33:])
    if over:  # as the point whose x is 0, by the prime
        x, y = P256_PRIME, pow(P256_B, (P256_PRIME + 1) // 4, P256_PRIME)
    raw = b"\x04" + x.to_bytes(32) + ((y + off) % 2**256).to_bytes(32)
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
        good = True
    except ValueError:
        good = False
    assert good is not (off or over)
    p256dh = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    with contextlib.nullcontext() if good else pytest.raises(ValueError, match="P-256"):
        assert read_subscription(written(keys={**KEYS, "p256dh": p256dh})).p256dh == p256dh
