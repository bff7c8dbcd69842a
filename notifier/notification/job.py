"""A notification as an RQ job: the function RQ knows it by, its data and its meta. JSON only, never pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickletools
import re
import zlib
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NoReturn

from notifier.errors import InvalidNotificationError, NotifierError
from notifier.notification.notification import (
    BADGES,
    COLLAPSE_ID_BYTES,
    MAPPINGS,
    MAX_DEVICES,
    NAME_FORM,
    PRIORITIES,
    USER_BYTES,
    Device,
    Notification,
    at_service,
    checked_plain,
)
from notifier.notification.platforms import find
from notifier.texts import readable
from notifier.units import from_bytes, moment

FUNCTION: Final = "notifier.deliver"

# In one of these every notification ends; notifier:stats counts them under these words.
TERMINAL: Final = ("delivered", "rejected", "expired", "cancelled", "superseded", "dropped", "failed")

# What a producer that has nothing of ours installed puts into the job's meta; the rest of meta is its own.
STEERING: Final = ("user", "category", "priority", "expires_in", "collapse_id", "zone")
ACCEPTED: Final = ("enqueued_at", "push_history")  # of a job, for `accepted_at`
WINDOW_BITS, MEMORY_LEVEL = 12, 6
MAX_BRACKETS: Final = 500
KWARGS_ONLY: Final = "takes keyword arguments only: enqueue(…, kwargs={…})"
UTF8_BYTES: Final = 4  # of a character at the most
MAX_DATA_BYTES: Final = 5_000_000  # of one call: a thousand tokens of 4,096 characters are less
MAX_VALUES: Final = 250_000  # in the JSON of one call: one of two bytes takes 64 when it is read
MAX_VALUES_OF_OURS: Final = 20_000  # of a notification, as hundreds are in flight: a thousand browsers have 8,000
MAX_REASON_BYTES: Final = 65_536  # somebody else may have written it, and people read it
DEVICE: Final = re.compile(r"(\w+):([a-z])@?(\S*)")  # in what `encode_targets` writes
DIGEST_BYTES: Final = 15  # 20 characters: two devices of a billion are taken for one by a chance of 1 in 10^18


def accepted_at(text: bytes | None, noted: bytes | None = None) -> datetime | None:
    """When a job was enqueued, of ACCEPTED: as RQ writes it, by its host's clock; by Redis's where a history is kept.

    None where it is not told, or is no time.
    """
    try:
        if noted:
            return moment(accepted_us(noted))
        at = datetime.fromisoformat((text or b"").decode())
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def accepted_us(noted: str | bytes) -> int:
    """When one was accepted, in µs: what `push_history` begins with. Raises ValueError or OverflowError."""
    return int(float(from_bytes(noted).partition(" ")[0]))


def deliver(**_notification: Any) -> NoReturn:
    """The function that a notification's job names. Only `workers.PushWorker` can carry it out.

    From a program without this library::

        Queue("default", connection=redis, serializer=JSONSerializer).enqueue(
            "notifier.deliver",
            kwargs={"user": "42", "devices": [{"platform": "fcm", "token": "…"}], "title": "Hello"},
            meta={"user": "42", "category": "default", "zone": "Europe/Berlin"},
        )
    """
    raise NotifierError("notifier.deliver runs on workers.PushWorker alone: start it by `notifier worker`")


deliver.__module__ = "notifier"  # so that RQ names it so, where it is given the function itself


def encode_data(notification: Notification) -> bytes:
    """The job's `data` field: what RQ's JSON serializer makes of the call, compressed as RQ does."""
    call: list[Any] = [FUNCTION, None, [], notification.to_kwargs()]
    # A push is small: more effort saves next to nothing, and the memory for a larger window may take ten times as long.
    packed = zlib.compressobj(1, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return packed.compress(_quick_writer()(call)) + packed.flush()


def encode_meta(
    notification: Notification,
    expires_in_us: int | None = None,
    ref: str | None = None,
    trace: Mapping[str, str] | None = None,
) -> bytes:
    """The job's `meta` field: plain JSON, because the scripts read it inside Redis.

    expires_in_us: when it expires, in µs; once it has failed and is requeued, the time begins anew.
    ref: the caller's own, which its event tells. trace: in which it is enqueued, see `Spans`.
    """
    meta: dict[str, Any] = {"user": notification.user, "category": notification.category}
    if expires_in_us is not None:
        meta["expires_in"] = expires_in_us / 1_000_000
    if notification.priority == "high":
        meta["priority"] = "high"
    if notification.zone is not None:
        meta["zone"] = notification.zone
    if notification.collapse_id is not None:
        meta["collapse_id"] = notification.collapse_id
    if notification.tags:
        meta["tags"] = list(notification.tags)
    if ref is not None:
        meta["ref"] = ref
    if trace:
        meta |= trace
    return _quick_writer()(meta)


def encode_targets(notification: Notification) -> str:
    """Describe the devices to the scripts: the notification's own app, and each one's platform, kind and digest.

    A browser's has its push service besides, because each of these is a route of its own.

    See `targets.lua`. The digest stands for the token in the names of keys.
    """
    kinds, devices = [notification.app or "-"], []
    for device in notification.devices:
        platform = find(device.platform)
        kind, host = ("n", "") if platform is None else (platform.kind(notification), platform.service_of(device.token))
        kinds.append(at_service(f"{device.platform}:{kind}", host))
        digest = hashlib.sha256(f"{device.platform} {device.token}".encode()).digest()[:DIGEST_BYTES]
        devices.append(urlsafe_b64encode(digest).decode())
    return f"{' '.join(kinds)}|{' '.join(devices)}"


def decode_targets(targets: str) -> tuple[str | None, list[tuple[str, str, str]]]:
    """Undo `encode_targets`, but for the digests: the notification's own app; each device's platform, kind, service."""
    app, _, devices = targets.partition("|")[0].partition(" ")
    return None if app in {"", "-"} else app, DEVICE.findall(devices)


def decode_data(data: bytes) -> tuple[str, Mapping[str, Any]]:
    """The function's name and its keyword arguments.

    Raises InvalidNotificationError where the bytes are not what RQ's JSON serializer writes.
    """
    function, args, kwargs = decode_call(unpack_data(data))
    if function == FUNCTION and args:
        raise InvalidNotificationError("job", KWARGS_ONLY)
    return function, kwargs


def read_notification(data: bytes) -> Notification | None:
    """The notification of a job's `data`; None for a job of another function, JSON or pickle.

    Raises InvalidNotificationError if it is malformed.
    """
    raw = unpack_data(data)
    is_small = _most_values(raw) <= MAX_VALUES_OF_OURS
    with contextlib.suppress(ValueError):  # it is another function's, or not plain, or malformed: the next lines say it
        if is_small:
            return checked_plain(_plain_reader()(raw)[3])
    function, args, kwargs = decode_call(raw)
    if function != FUNCTION:
        return None
    if not is_small:
        raise InvalidNotificationError("job", f"its data may hold at most {MAX_VALUES_OF_OURS:,} values")
    if args:
        raise InvalidNotificationError("job", KWARGS_ONLY)
    return Notification.from_kwargs(kwargs)


@cache
def _plain_reader() -> Callable[[bytes], Any]:
    """Reads the JSON of a call of FUNCTION and checks its types at once; raises ValueError for what is not plain.

    What it takes, `from_kwargs` takes too: so what a limit of bytes may exceed is not plain.
    """
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - loaded where it is used
    from pydantic_core import core_schema as of  # noqa: PLC0415 - as above

    def short(most_bytes: int) -> Any:
        return of.str_schema(min_length=1, max_length=most_bytes // UTF8_BYTES)

    def made(cls: type, fields: Mapping[str, Any], *, slots: bool = False) -> Any:
        args = [of.dataclass_field(key, schema) for key, schema in fields.items()]
        of_args = of.dataclass_args_schema(cls.__name__, args, extra_behavior="forbid")
        return of.dataclass_schema(cls, of_args, [*fields], slots=slots)

    text, name = of.str_schema(), of.str_schema(pattern=f"^{NAME_FORM.pattern}$")
    device = made(Device, {"platform": text, "token": text}, slots=True)
    optional = {
        "app": name,
        "collapse_id": short(COLLAPSE_ID_BYTES),
        "badge": of.int_schema(ge=0, lt=BADGES, strict=True),
        "priority": of.literal_schema([*PRIORITIES]),
        **dict.fromkeys(("title", "body", "sound"), text),
    }
    plain = {
        "user": short(USER_BYTES),
        "devices": of.tuple_schema([device], variadic_item_index=0, min_length=1, max_length=MAX_DEVICES),
        "category": of.with_default_schema(name, default=Notification.category),
        **{key: of.with_default_schema(schema, default=None) for key, schema in optional.items()},
        **dict.fromkeys(MAPPINGS, of.with_default_schema(of.dict_schema(text), default_factory=dict)),
    }
    call = [of.literal_schema([FUNCTION]), of.none_schema(), of.list_schema(max_length=0), made(Notification, plain)]
    return SchemaValidator(of.tuple_schema(call)).validate_json


def unpack_data(data: bytes) -> bytes:
    """A job's `data`, as its serializer wrote it. Raises InvalidNotificationError for what is too long."""
    unpack = zlib.decompressobj()
    try:
        raw, more = unpack.decompress(data, MAX_DATA_BYTES), unpack.unconsumed_tail
    except zlib.error:  # not compressed: RQ reads that too
        raw, more = data[:MAX_DATA_BYTES], data[MAX_DATA_BYTES:]
    if more:
        raise InvalidNotificationError("job", f"its data is more than {MAX_DATA_BYTES // 1_000_000} MB long")
    return raw


def decode_call(raw: bytes) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """The function's name, and its arguments. Raises InvalidNotificationError where the bytes are no JSON of a call."""
    if _most_values(raw) > MAX_VALUES:
        raise InvalidNotificationError("job", f"its data may hold at most {MAX_VALUES:,} values")
    try:
        function, _instance, args, kwargs = _read_json(raw)
    except (ValueError, TypeError, RecursionError):
        raise InvalidNotificationError(
            "job",
            "its data is not JSON; enqueue with serializer=rq.serializers.JSONSerializer, or in another Redis database",
        ) from None
    if not isinstance(function, str) or not isinstance(kwargs, dict):
        raise InvalidNotificationError("job", "its data is not a call with keyword arguments")
    return function, args, kwargs


def _most_values(raw: bytes) -> int:
    """No JSON of these bytes holds more values: what they would become is bounded before they are read."""
    return 1 + raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _read_json(raw: bytes) -> Any:
    """Read JSON. The quick reader refuses some of what is JSON to RQ, such as half of a surrogate pair."""
    try:
        return _quick_reader()(raw)
    except ValueError:
        return json.loads(raw.decode(errors="surrogatepass"))


@cache
def _quick_reader() -> Callable[[bytes], Any]:
    from pydantic_core import from_json  # noqa: PLC0415 - loaded where it is used

    return from_json


@cache
def _quick_writer() -> Callable[[Any], bytes]:
    from pydantic_core import to_json  # noqa: PLC0415 - as above

    return to_json


def read_meta(meta: bytes) -> dict[str, Any]:
    """Read a job's meta; {} if it is no object.

    RQ's tools, called without `-S json`, write in its place a pickle that holds the bytes which stood there: these are
    taken out of it. The pickle itself is not loaded, it is only read as a list of constants.
    """
    for text in (meta, *_constants(meta)):
        try:
            found = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(found, dict) and is_plain(found):
            return found
    return {}


def is_plain(meta: dict[str, Any]) -> bool:
    """Whether the scripts can read it: it is Unicode, and nested no deeper than Redis's JSON goes."""
    try:
        written = json.dumps(meta, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return written.count(b"[") + written.count(b"{") < MAX_BRACKETS


def _constants(pickled: bytes) -> list[bytes]:
    found = []
    with contextlib.suppress(Exception):  # pickletools raises what it likes for what is no pickle
        for opcode, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, bytes) and opcode.name in {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}:
                found.append(argument)
    return found


def targets_in(data: bytes) -> str:
    """`encode_targets` of a job's `data`; of what cannot be sent, as it names nobody: whoever takes it will say so."""
    try:
        notification = read_notification(data)
        return "-|" if notification is None else encode_targets(notification)
    except InvalidNotificationError:
        return "-|"


def encode_reason(reason: str) -> str:
    """A reason as RQ stores the text of a failure in a job's results."""
    return b64encode(zlib.compress(readable(reason).encode())).decode()


def decode_reason(text: bytes) -> str:
    """Return the text of a failure that `encode_reason`, or RQ, stored; at most MAX_REASON_BYTES of it.

    Raise ValueError where it is something else.
    """
    unpack = zlib.decompressobj()
    try:
        return unpack.decompress(b64decode(text), MAX_REASON_BYTES).decode(errors="replace")
    except zlib.error as error:
        raise ValueError(str(error)) from None
