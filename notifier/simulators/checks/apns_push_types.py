"""The checks of Apple's push types. They follow Apple's pages, not the code of the provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

PAYLOAD_BYTES: Final = 4096
VOIP_BYTES: Final = 5120
LATEST_S: Final = 7_258_118_400

Aps = Mapping[str, Any]


def _shows(payload: Aps) -> bool:
    return any(key in payload.get("aps", {}) for key in ("alert", "badge", "sound"))


def _is_silent(payload: Aps) -> bool:
    return payload.get("aps", {}).get("content-available") == 1 and not _shows(payload)


def is_live_activity(payload: Aps) -> bool:
    """Whether a payload starts, updates or ends a Live Activity."""
    aps = payload.get("aps", {})
    event = aps.get("event")
    if event not in {"start", "update", "end"} or not _is_time(aps.get("timestamp")):
        return False
    if not all(_is_time(aps[key]) for key in ("stale-date", "dismissal-date") if key in aps):
        return False
    if event != "end" and not isinstance(aps.get("content-state"), dict):
        return False
    starts = isinstance(aps.get("attributes"), dict) and bool(aps.get("attributes-type")) and "alert" in aps
    return event != "start" or starts


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < LATEST_S


def _is_reload(payload: Aps) -> bool:
    return payload.get("aps", {}).get("content-changed") is True


def _has_aps(payload: Aps) -> bool:
    return isinstance(payload.get("aps"), dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """suffix: of the topic. needs: a check of the payload. by_token: Apple accepts no certificate here."""

    suffix: str
    priorities: frozenset[str]
    needs: Callable[[Aps], bool]
    payload_bytes: int = PAYLOAD_BYTES
    by_token: bool = False
    store: bool = True


ANY: Final = frozenset({"1", "5", "10"})
NOW_OR_LATER: Final = frozenset({"5", "10"})
RULES: Final[Mapping[str, Rules]] = {
    "alert": Rules("", ANY, _shows),
    "background": Rules("", frozenset({"5"}), _is_silent),
    "location": Rules(".location-query", NOW_OR_LATER, _has_aps, by_token=True),
    "voip": Rules(".voip", ANY, bool, payload_bytes=VOIP_BYTES),
    "complication": Rules(".complication", ANY, bool),
    "fileprovider": Rules(".pushkit.fileprovider", ANY, lambda payload: "container-identifier" in payload),
    "mdm": Rules("", ANY, lambda payload: isinstance(payload.get("mdm"), str)),
    "liveactivity": Rules(".push-type.liveactivity", NOW_OR_LATER, is_live_activity, by_token=True),
    "pushtotalk": Rules(".voip-ptt", frozenset({"10"}), _has_aps, store=False),
    "widgets": Rules(".push-type.widgets", ANY, _is_reload),
    "controls": Rules(".push-type.controls", ANY, _is_reload),
}
