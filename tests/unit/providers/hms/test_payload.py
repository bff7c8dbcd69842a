"""The message of Huawei, and the ids that stand in its address."""

import json
from typing import Any

import pytest

from notifier import Device, InvalidNotificationError, Notification, SettingsError
from notifier.providers.hms.payload import payload
from notifier.settings import parse_settings

DEVICE = Device("hms", f"IQAAAACy0{'ann':_>40}")
OPENS = {"type": 3}


def message(ttl_us: int | None = None, **fields: Any) -> dict[str, Any]:
    """What Huawei gets beside the token."""
    body = json.loads(payload(Notification("ann", [DEVICE], **fields), DEVICE.token, ttl_us))
    assert body.pop("validate_only") is False
    assert body["message"].pop("token") == [DEVICE.token]
    sent: dict[str, Any] = body.pop("message")
    assert body == {}
    return sent


TEXT = {"title": "Hello", "body": "…"}
SHOWN = {**TEXT, "click_action": OPENS}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, SHOWN),
        ({"collapse_id": "score"}, SHOWN | {"tag": "score"}),
        ({"badge": 0}, SHOWN | {"badge": {"set_num": 0}}),
        ({"badge": 100}, SHOWN | {"badge": {"set_num": 99}}),
        ({"sound": "default"}, SHOWN | {"default_sound": True}),
        ({"sound": "ping"}, SHOWN | {"default_sound": False, "sound": "ping"}),
        (
            {"badge": 3, "options": {"hms": {"notification": {"badge": {"class": "A"}, "style": 1}}}},
            SHOWN | {"badge": {"set_num": 3, "class": "A"}, "style": 1},
        ),
    ],
)
def test_what_the_phone_shows(fields: dict[str, Any], shown: dict[str, Any]) -> None:
    """Each field of a notification has its place in Huawei's form, beside Huawei's own options; none is empty."""
    assert message(**TEXT, **fields) == {"android": {"notification": shown}}


def test_what_goes_beside_it() -> None:
    """Data as text, the urgency, Huawei's own options, and the time left: whole seconds, 15 days at most."""
    options = {"hms": {"bi_tag": "spring"}}
    sent = message(1_500_000, data={"n": 1}, priority="high", options=options)
    assert sent == {"data": '{"n":1}', "android": {"urgency": "HIGH", "ttl": "2s", "bi_tag": "spring"}}
    for ttl_us, written in ((0, "1s"), (10**15, "1296000s")):
        assert message(ttl_us, **TEXT)["android"]["ttl"] == written


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"title": "Hello"}, "body"),
        ({"body": "…"}, "title"),
        ({"data": {"n": 1}, "options": {"hms": {"notification": {"style": 1}}}}, "options.hms.notification"),
    ],
)
def test_what_shows_nothing_is_refused(fields: dict[str, Any], field: str) -> None:
    """Huawei shows nothing without both texts."""
    with pytest.raises(InvalidNotificationError) as caught:
        message(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("key", ["app_id", "project_id"])
def test_an_id_has_digits_only(key: str) -> None:
    """It is a part of the address that messages are sent to."""
    for wrong in ("7/messages:send?", "٣", "a"):
        with pytest.raises(SettingsError, match=rf"providers\.hms\.{key}: is not an id of AppGallery Connect"):
            parse_settings(json.dumps({"providers": {"hms": {"client": "console", key: wrong}}}))
