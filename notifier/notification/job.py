"""A notification as an RQ job: its function, its data and its meta. They are JSON, never pickle."""

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

# The final states of a notification. notifier:stats counts them by these names.
TERMINAL: Final = ("delivered", "rejected", "expired", "cancelled", "superseded", "dropped", "failed")

# The keys of meta that a producer without this library sets. All other keys of its meta are its own.
STEERING: Final = ("user", "category", "priority", "expires_in", "collapse_id", "zone")
ACCEPTED: Final = ("enqueued_at", "push_history")  # the fields of a job's hash that `accepted_at` reads
WINDOW_BITS, MEMORY_LEVEL = 12, 6
MAX_BRACKETS: Final = 500
KWARGS_ONLY: Final = "takes keyword arguments only: enqueue(…, kwargs={…})"
UTF8_BYTES: Final = 4  # the most that one character takes
MAX_DATA_BYTES: Final = 5_000_000  # of one call; a thousand tokens of 4,096 characters fit
MAX_VALUES: Final = 250_000  # in the JSON of one call; a value of 2 bytes takes 64 once it is parsed
MAX_VALUES_OF_OURS: Final = 20_000  # in a notification: hundreds are in flight; a thousand browsers make 8,000
MAX_REASON_BYTES: Final = 65_536  # people read it, and any program may have written it
DEVICE: Final = re.compile(r"(\w+):([a-z])@?(\S*)")  # one device in the text of `encode_targets`
DIGEST_BYTES: Final = 15  # 20 characters; the chance that two of a billion devices share one is 1 in 10^18


def accepted_at(text: bytes | None, noted: bytes | None = None) -> datetime | None:
    """When a job was enqueued, from its fields ACCEPTED; None if they hold no time.

    text: RQ's field, by the clock of a host. noted: by Redis's clock, if a history is kept; it is preferred.
    """
    try:
        if noted:
            return moment(accepted_us(noted))
        at = datetime.fromisoformat((text or b"").decode())
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def accepted_us(noted: str | bytes) -> int:
    """When a job was accepted, in µs: the first value of its `push_history`. Raises ValueError or OverflowError."""
    return int(float(from_bytes(noted).partition(" ")[0]))


def deliver(**_notification: Any) -> NoReturn:
    """The function of a notification's job. Only `workers.PushWorker` can run it.

    A program without this library enqueues a notification so::

        Queue("default", connection=redis, serializer=JSONSerializer).enqueue(
            "notifier.deliver",
            kwargs={"user": "42", "devices": [{"platform": "fcm", "token": "…"}], "title": "Hello"},
            meta={"user": "42", "category": "default", "zone": "Europe/Berlin"},
        )
    """
    raise NotifierError("notifier.deliver runs on workers.PushWorker alone: start it by `notifier worker`")


deliver.__module__ = "notifier"  # RQ takes the job's function name from it if it is given the function itself


def encode_data(notification: Notification) -> bytes:
    """The job's `data` field: the call as RQ's JSON serializer writes it, compressed as RQ compresses it."""
    call: list[Any] = [FUNCTION, None, [], notification.to_kwargs()]
    # A push is small: a higher level saves almost nothing, and to allocate a larger window may take ten times as long.
    packed = zlib.compressobj(1, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return packed.compress(_quick_writer()(call)) + packed.flush()


def encode_meta(
    notification: Notification,
    expires_in_us: int | None = None,
    ref: str | None = None,
    trace: Mapping[str, str] | None = None,
) -> bytes:
    """The job's `meta` field: plain JSON, because the scripts read it inside Redis.

    expires_in_us: the time until it expires, in µs; this time begins again if the failed job is requeued.
    ref: the caller's own reference, for the event. trace: the trace context of the producer, see `Spans`.
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
    """Describe the devices to the scripts: the notification's own app, and each device's platform, kind and digest.

    A browser also has its push service, because each push service is a route of its own. The names of keys contain the
    digest instead of the token. See `targets.lua`.
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
    """Read the text of `encode_targets`: the notification's own app; the platform, kind and service of each device."""
    app, _, devices = targets.partition("|")[0].partition(" ")
    return None if app in {"", "-"} else app, DEVICE.findall(devices)


def decode_data(data: bytes) -> tuple[str, Mapping[str, Any]]:
    """The function's name and its keyword arguments.

    Raises InvalidNotificationError if RQ's JSON serializer cannot have written the bytes.
    """
    function, args, kwargs = decode_call(unpack_data(data))
    if function == FUNCTION and args:
        raise InvalidNotificationError("job", KWARGS_ONLY)
    return function, kwargs


def read_notification(data: bytes) -> Notification | None:
    """The notification of a job's `data`; None for a job of another function.

    Raises InvalidNotificationError if it is malformed, or a pickle.
    """
    raw = unpack_data(data)
    is_small = _most_values(raw) <= MAX_VALUES_OF_OURS
    with contextlib.suppress(ValueError):  # another function, not plain, or malformed: the next lines tell which
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
    """Return a reader that parses a call of FUNCTION and checks its types in one pass. It may raise ValueError.

    It accepts nothing that `from_kwargs` refuses. It counts characters, so it refuses texts that may exceed a limit of
    bytes.
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
    """Decompress a job's `data`. Raises InvalidNotificationError if it is too long."""
    unpack = zlib.decompressobj()
    try:
        raw, more = unpack.decompress(data, MAX_DATA_BYTES), unpack.unconsumed_tail
    except zlib.error:  # not compressed: RQ reads that too
        raw, more = data[:MAX_DATA_BYTES], data[MAX_DATA_BYTES:]
    if more:
        raise InvalidNotificationError("job", f"its data is more than {MAX_DATA_BYTES // 1_000_000} MB long")
    return raw


def decode_call(raw: bytes) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """The function's name, and its arguments. Raises InvalidNotificationError if the bytes are not a call in JSON."""
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
    """An upper bound for the values in the JSON, known before parsing takes memory for them."""
    return 1 + raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _read_json(raw: bytes) -> Any:
    """Parse JSON. RQ accepts some JSON that the quick reader refuses, such as half of a surrogate pair."""
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

    RQ's tools, if called without `-S json`, replace the meta by a pickle that contains its bytes. These bytes are read
    from the constants of the pickle, which is never loaded.
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
    """Whether the scripts can read it: valid Unicode, not nested deeper than Redis's JSON parser allows."""
    try:
        written = json.dumps(meta, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return written.count(b"[") + written.count(b"{") < MAX_BRACKETS


def _constants(pickled: bytes) -> list[bytes]:
    found = []
    with contextlib.suppress(Exception):  # pickletools may raise anything for bytes that are no pickle
        for opcode, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, bytes) and opcode.name in {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}:
                found.append(argument)
    return found


def targets_in(data: bytes) -> str:
    """`encode_targets` of a job's `data`; without devices if the data is invalid: its worker reports why."""
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

    Raises ValueError for any other text.
    """
    unpack = zlib.decompressobj()
    try:
        return unpack.decompress(b64decode(text), MAX_REASON_BYTES).decode(errors="replace")
    except zlib.error as error:
        raise ValueError(str(error)) from None
