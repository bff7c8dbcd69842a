"""FCM's own options of a notification: what is taken, what is refused by name, and how they meet what we derive."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.errors import InvalidNotificationError
from notifier.notification import Device, Notification
from notifier.providers import check_payload
from notifier.providers.contract import Dispatch
from notifier.providers.fcm.payload import PAYLOAD_BYTES, is_short, payload_size
from notifier.providers.fcm.provider import FcmProvider
from notifier.providers.fcm.settings import FcmSettings
from notifier.simulators.checks.fcm import counted_bytes, is_valid
from notifier.simulators.fcm import make_service_account

DEVICE = Device("fcm", "device-token:0123456789abcdef")
SECOND = 1_000_000
WHOLE: dict[str, Any] = {
    "image": "https://example.com/a.png",
    "fcm_options": {"analytics_label": "spring_2026-a.b~c%"},
    "android": {
        "priority": "NORMAL",
        "restricted_package_name": "com.example.app",
        "direct_boot_ok": True,
        "bandwidth_constrained_ok": True,
        "restricted_satellite_ok": False,
        "data": {"only": "android", "n": 1},
        "fcm_options": {"analytics_label": "android"},
        "notification": {
            "title": "T",
            "body": "B",
            "icon": "bell",
            "color": "#1a2B3c",
            "sound": "chime",
            "tag": "mine",
            "click_action": "OPEN",
            "channel_id": "news",
            "ticker": "t",
            "image": "https://example.com/b.png",
            "title_loc_key": "title",
            "title_loc_args": ["a"],
            "body_loc_key": "body",
            "body_loc_args": [],
            "sticky": True,
            "local_only": True,
            "bypass_proxy_notification": False,
            "default_sound": False,
            "default_vibrate_timings": False,
            "default_light_settings": False,
            "event_time": "2030-01-31T12:00:00.5Z",
            "notification_count": 7,
            "notification_priority": "PRIORITY_MAX",
            "visibility": "SECRET",
            "proxy": "DENY",
            "vibrate_timings": ["0.5s", "1s"],
            "light_settings": {
                "color": {"red": 1, "green": 0.5, "blue": 0, "alpha": 1},
                "light_on_duration": "0.2s",
                "light_off_duration": "1.000000001s",
            },
        },
    },
    "apns": {
        "headers": {"apns-priority": "5"},
        "payload": {"aps": {"category": "NEWS", "sound": "own.caf"}, "more": [1, None]},
        "live_activity_token": "abc",
        "fcm_options": {"analytics_label": "apple", "image": "https://example.com/c.png"},
    },
    "webpush": {
        "headers": {"Urgency": "high"},
        "data": {"only": "web"},
        "notification": {"icon": "/i.png", "requireInteraction": True},
        "fcm_options": {"link": "https://example.com/", "analytics_label": "web"},
    },
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> FcmProvider:
    folder: Path = tmp_path_factory.mktemp("account")
    account = json.loads(make_service_account(folder, "https://127.0.0.1:1/token", "demo").read_text())
    return FcmProvider(FcmSettings(), account)


def note(fcm: dict[str, Any], **fields: Any) -> Notification:
    return Notification(**{"user": "7", "devices": [DEVICE], "title": "Hello", "body": "World", "fcm": fcm} | fields)


def checked(notification: Notification) -> None:
    """Check as `Notifier.send` does."""
    notification.validate()
    check_payload(notification)


def message(provider: FcmProvider, notification: Notification, ttl_us: int | None = None) -> dict[str, Any]:
    written = provider._messages.build(Dispatch("j", DEVICE, notification, ttl_us, 0.0))
    made = json.loads(written)
    assert made["validate_only"] is False
    return made["message"]


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def test_every_option_reaches_fcm(provider: FcmProvider) -> None:
    """All of Google's options travel as they were given, and a server that checks each of them takes the message."""
    given_, sent = note(WHOLE), message(provider, note(WHOLE))
    check_payload(given_)
    assert is_valid(sent)
    assert sent["notification"] == {"title": "Hello", "body": "World", "image": WHOLE["image"]}
    assert sent["fcm_options"] == WHOLE["fcm_options"]
    assert sent["apns"] == WHOLE["apns"]
    assert sent["webpush"] == WHOLE["webpush"]
    assert sent["android"] == WHOLE["android"] | {"data": {"only": "android", "n": "1"}}


def test_what_the_laws_need_is_ours_and_the_rest_theirs(provider: FcmProvider) -> None:
    """Expiry and collapse id are the notification's; sound, badge, tag and priority give way to FCM's own options."""
    notification = note(WHOLE, collapse_id="score", sound="ping", badge=0)
    sent = message(provider, notification, 90 * SECOND)
    assert is_valid(sent)
    android, apns, webpush = sent["android"], sent["apns"], sent["webpush"]
    assert (android["ttl"], android["collapse_key"], android["priority"]) == ("90s", "score", "NORMAL")
    assert (android["notification"]["tag"], android["notification"]["sound"]) == ("mine", "chime")
    assert apns["headers"].keys() == {"apns-expiration", "apns-collapse-id", "apns-priority"}
    assert apns["payload"] == {"aps": {"sound": "own.caf", "badge": 0, "category": "NEWS"}, "more": [1, None]}
    assert webpush["headers"] == {"TTL": "90", "Topic": "score", "Urgency": "high"}


@pytest.mark.parametrize(
    ("collapse_id", "apple", "web"), [("a b", True, False), ("ü", False, False), (" a", False, False)]
)
def test_a_collapse_id_goes_where_a_header_can_carry_it(
    provider: FcmProvider, collapse_id: str, apple: bool, web: bool
) -> None:
    """What Apple's or the web's headers cannot carry is left out there; Android's key takes any text."""
    sent = message(provider, note({}, collapse_id=collapse_id))
    assert sent["android"]["collapse_key"] == collapse_id
    assert ("apns" in sent, "webpush" in sent) == (apple, web)


def test_data_only_leaves_the_showing_to_the_app(provider: FcmProvider) -> None:
    """With data_only nothing is shown by the system: title, body and image travel among the data, at high priority."""
    fcm = {"data_only": True, "image": "https://example.com/a.png"}
    sent = message(provider, note(fcm, data={"n": 1}, sound="ping", badge=2, collapse_id="score"), SECOND)
    assert is_valid(sent)
    assert sent["data"] == {"n": "1", "title": "Hello", "body": "World", "image": "https://example.com/a.png"}
    assert sent["android"] == {"priority": "HIGH", "ttl": "1s", "collapse_key": "score"}
    assert sent["apns"].keys() == {"headers"}
    assert sent["apns"]["headers"]["apns-priority"] == "5"
    assert "notification" not in sent
    assert message(provider, note({"data_only": True}, title=None))["data"] == {"body": "World"}


@pytest.mark.parametrize(
    ("apns", "headers"),
    [
        ({"payload": {"aps": {"alert": {"title": "T"}, "sound": "default"}}}, None),
        ({"payload": {"aps": {"badge": 0}}}, None),
        ({"payload": {"aps": {"content-available": 1}}}, {"apns-priority": "5"}),
        ({"headers": {"Apns-Priority": "10"}}, {"Apns-Priority": "10"}),
        (
            {"headers": {"apns-priority": "10", "apns-push-type": "alert"}},
            {"apns-priority": "10", "apns-push-type": "alert"},
        ),
    ],
)
def test_only_what_shows_nothing_is_sent_to_apple_at_priority_5(
    provider: FcmProvider, apns: dict[str, Any], headers: dict[str, str] | None
) -> None:
    """An alert, sound or badge of the author's own is an alert to Apple; a header has one value, however written."""
    sent = message(provider, note({"apns": apns}, title=None, body=None, data={"n": 1}, priority="high"))
    assert sent["apns"].get("headers") == headers


LIGHT = "fcm.android.notification.light_settings"
REFUSED = [
    ("fcm.colour", {"colour": 1}),
    ("fcm.android.notification.channel", nested("android.notification.channel", "x")),
    ("fcm.android.ttl", nested("android.ttl", "5s")),
    ("fcm.android.collapse_key", nested("android.collapse_key", "x")),
    ("fcm.apns.headers.apns-expiration", nested("apns.headers.apns-expiration", "0")),
    ("fcm.apns.headers.APNS-Collapse-Id", nested("apns.headers.APNS-Collapse-Id", "x")),
    ("fcm.webpush.headers.TTL", nested("webpush.headers.TTL", "60")),
    ("fcm.webpush.headers.topic", nested("webpush.headers.topic", "x")),
    ("fcm.token", {"token": "x"}),
    ("fcm.topic", {"topic": "x"}),
    ("fcm.condition", {"condition": "'a' in topics"}),
    ("fcm.notification", {"notification": {"title": "x"}}),
    ("fcm.data", {"data": {}}),
    ("fcm.data_only", {"data_only": 1}),
    ("fcm.image", {"image": "a.png"}),
    ("fcm.android", {"android": []}),
    ("fcm.android.priority", nested("android.priority", "high")),
    ("fcm.android.direct_boot_ok", nested("android.direct_boot_ok", "true")),
    ("fcm.android.restricted_package_name", nested("android.restricted_package_name", 5)),
    ("fcm.android.data", nested("android.data", "x")),
    ("fcm.android.data.google.x", nested("android.data", {"google.x": "1"})),
    ("fcm.android.notification.color", nested("android.notification.color", "red")),
    ("fcm.android.notification.visibility", nested("android.notification.visibility", "public")),
    ("fcm.android.notification.notification_priority", nested("android.notification.notification_priority", "HIGH")),
    ("fcm.android.notification.proxy", nested("android.notification.proxy", "NEVER")),
    ("fcm.android.notification.event_time", nested("android.notification.event_time", "2030-01-31")),
    ("fcm.android.notification.notification_count", nested("android.notification.notification_count", -1)),
    ("fcm.android.notification.notification_count", nested("android.notification.notification_count", True)),
    ("fcm.android.notification.vibrate_timings", nested("android.notification.vibrate_timings", "1s")),
    ("fcm.android.notification.vibrate_timings[1]", nested("android.notification.vibrate_timings", ["1s", "2"])),
    ("fcm.android.notification.title_loc_args", nested("android.notification.title_loc_args", ["a"])),
    ("fcm.android.notification.body_loc_args[0]", nested("android.notification.body_loc_args", [1])),
    (f"{LIGHT}.light_on_duration", nested("android.notification.light_settings.color", {})),
    (f"{LIGHT}.color.red", nested("android.notification.light_settings.color.red", 255)),
    ("fcm.android.fcm_options.analytics_label", nested("android.fcm_options.analytics_label", "a b")),
    (f"{LIGHT}.color.red", nested("android.notification.light_settings.color.red", True)),
    ("fcm.apns.headers", nested("apns.headers", "x")),
    ("fcm.apns.headers.apns-priority", nested("apns.headers.apns-priority", 5)),
    ("fcm.apns.payload", nested("apns.payload", "x")),
    ("fcm.apns.payload.aps", nested("apns.payload.aps", "x")),
    ("fcm.apns.fcm_options.image", nested("apns.fcm_options.image", "ftp://x")),
    ("fcm.webpush.data.from", nested("webpush.data", {"from": "1"})),
    ("fcm.webpush.notification", nested("webpush.notification", None)),
    ("fcm.webpush.fcm_options.link", nested("webpush.fcm_options.link", "http://example.com")),
    ("fcm.fcm_options.analytics_label", nested("fcm_options.analytics_label", "x" * 51)),
    ("fcm.fcm_options.analytics_label", nested("fcm_options.analytics_label", "")),
    ("fcm.fcm_options.analytics_label", nested("fcm_options.analytics_label", "ü")),
    ("fcm.android.notification", {"data_only": True, "android": {"notification": {"icon": "x"}}}),
    ("fcm.webpush.notification", {"data_only": True, "webpush": {"notification": {}}}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "fcm"), REFUSED, ids=[field for field, _ in REFUSED])
def test_what_fcm_does_not_take_is_refused_by_name(provider: FcmProvider, field: str, fcm: dict[str, Any]) -> None:
    """A wrong option is refused when it is enqueued, the field named, and never raises anything else at a send."""
    with pytest.raises(InvalidNotificationError) as caught:
        check_payload(note(fcm))
    assert caught.value.field == field
    with pytest.raises(InvalidNotificationError):
        message(provider, note(fcm))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("data.title", {"fcm": {"data_only": True}, "data": {"title": "mine"}}),
        ("fcm.image", {"fcm": {"image": "https://example.com/a.png"}, "title": None, "body": None, "data": {"a": 1}}),
        ("fcm.android.direct_boot_ok", {"fcm": {"android": {"direct_boot_ok": {1}}}}),
        ("fcm", {"fcm": "android"}),
    ],
)
def test_options_must_suit_the_notification(field: str, fields: dict[str, Any]) -> None:
    """What two fields say against each other is refused, as is what no JSON can carry."""
    with pytest.raises(InvalidNotificationError) as caught:
        checked(note(**fields))
    assert caught.value.field == field


def test_options_are_checked_wherever_the_notification_goes() -> None:
    """An option that FCM would refuse is refused at once, also where no device of this notification is FCM's."""
    notification = note({"android": 5}, devices=[Device("apns", "ab" * 32)])
    with pytest.raises(InvalidNotificationError, match=r"fcm\.android"):
        check_payload(notification)


def test_the_options_payload_is_counted(provider: FcmProvider) -> None:
    """What the platforms' blocks carry counts against the 4,096 bytes; headers and the like do not."""
    base = payload_size(note({}))
    assert payload_size(note(nested("apns.headers.apns-push-type", "alert"))) == base
    full = note(nested("apns.payload.more", "x" * (PAYLOAD_BYTES - base - len(',"apns":{"payload":{"more":""}}'))))
    assert payload_size(full) == PAYLOAD_BYTES == counted_bytes(message(provider, full))
    check_payload(full)
    over = note(nested("apns.payload.more", full.fcm["apns"]["payload"]["more"] + "x"))
    with pytest.raises(InvalidNotificationError, match="4097 bytes"):
        check_payload(over)


@pytest.mark.parametrize("field", ["title", "body", "sound", "collapse_id"])
def test_what_is_taken_without_a_count_fits(field: str) -> None:
    """The longest text that counts as short makes a payload within the limit, whatever it is written in."""
    fields: dict[str, Any] = {"title": None, "body": None}
    longest = max(n for n in range(1, PAYLOAD_BYTES) if is_short(note({}, **{**fields, field: "\x1f" * n})))
    assert payload_size(note({}, **{**fields, field: "\x1f" * longest})) <= PAYLOAD_BYTES
    assert not is_short(note({}, data={"a": "x" * PAYLOAD_BYTES}))


PLATFORM_BLOCKS = {name: st.just(WHOLE[name]) for name in ("android", "apns", "webpush", "fcm_options")}


@given(
    fcm=st.fixed_dictionaries({}, optional=PLATFORM_BLOCKS),
    text=st.sampled_from([{"title": "T"}, {"title": None, "body": None}]),
    extra=st.fixed_dictionaries({}, optional={"sound": st.just("s"), "badge": st.just(2), "collapse_id": st.just("c")}),
    ttl_us=st.none() | st.integers(0, 10**13),
)
def test_whatever_is_combined_fcm_takes_it(
    provider: FcmProvider, fcm: dict[str, Any], text: dict[str, Any], extra: dict[str, Any], ttl_us: int | None
) -> None:
    """Every combination of blocks makes a message of FCM's form, whose size was known at enqueue, and survives
    a job.
    """
    notification = note(fcm, data={"a": [1]}, **text, **extra)
    stored = json.loads(json.dumps(notification.to_kwargs()))
    assert Notification.from_kwargs(stored) == Notification.from_kwargs(notification.to_kwargs())
    sent = message(provider, Notification.from_kwargs(stored), ttl_us)
    assert is_valid(sent)
    assert payload_size(notification) == counted_bytes(sent)


def test_no_options_leave_no_trace_in_the_job() -> None:
    """A notification without options is the job that it always was."""
    assert "fcm" not in note({}).to_kwargs()
    assert note(WHOLE).to_kwargs()["fcm"] == WHOLE
