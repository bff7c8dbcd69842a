"""What is small and becomes large, or deep, or something else: in configurations, in jobs, in what is logged."""

import io
import json
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import Iterator

import pytest
import structlog
from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.serializers import JSONSerializer

from notifier import Device, InvalidNotificationError, Notification, SettingsError
from notifier.log import configure_logging
from notifier.notification.job import decode_data, decode_reason, encode_data, read_notification
from notifier.notification.rq_call import read_call
from notifier.settings import parse_settings
from notifier.simulators.webpush_browser import subscription
from workers.rq.functions import AllowedFunctions
from workers.sending.sender import Backoff

ROOM = 100_000_000  # bytes that reading one may need


def bomb() -> bytes:
    """0.3 MB that unpack to 300."""
    pack = zlib.compressobj(9)
    return b"".join(pack.compress(b"[" * 1_000_000) for _ in range(300)) + pack.flush()


@pytest.fixture
def memory() -> Iterator[None]:
    """Fails a test that needs much memory at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: " + "[" * 5_000 + "]" * 5_000, "nested more than 20 levels"),
        ("{a: " * 5_000 + "1" + "}" * 5_000, "nested more than 20 levels"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "anchors and aliases"),
        ("base: &b {gap: 1s}\nuser: {<<: *b}", "anchors and aliases"),
        ("user: !!python/object/apply:os.system [ls]", "tags"),
        ("user: !include /etc/passwd", "tags"),
        ("---\n" * 100_000, "a second document"),
        ("user: {gap: 1e999}", "is not a duration"),
        ("user: \0", r"U\+0000"),
    ],
    ids=["lists", "maps", "aliases", "merge", "tag", "include", "documents", "number", "nul"],
)
@pytest.mark.usefixtures("memory")
def test_a_configuration_is_refused_at_its_line(text: str, why: str) -> None:
    """Bombs, tags, includes and numbers without end are refused with one line of text, before much is built of them."""
    with pytest.raises(SettingsError, match=why) as refused:
        parse_settings(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("path", ["/dev/zero", "/etc", "../../nothing/here", "/proc/self/mem"])
@pytest.mark.usefixtures("memory")
def test_a_secret_is_a_small_file(path: str) -> None:
    """A key's file that is no file of text, or has no end, is refused by its name."""
    settings = parse_settings(f"redis: {{password_file: {path}}}")
    with pytest.raises(SettingsError, match=r"redis\.password_file: "):
        settings.redis.read_password()


@pytest.mark.usefixtures("memory")
def test_the_data_of_a_job_is_not_unpacked_without_end() -> None:
    """Some bytes that unpack to gigabytes are refused when they pass the limit, without the gigabytes."""
    with pytest.raises(InvalidNotificationError, match="more than"):
        decode_data(bomb())
    deep = zlib.compress(b"[" * 200_000)
    with pytest.raises(InvalidNotificationError, match="is not JSON"):
        decode_data(deep)


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"a":0}', b"0"])
@pytest.mark.usefixtures("memory")
def test_the_json_of_a_job_does_not_grow(value: bytes) -> None:
    """Values of two bytes take much more as Python's objects: there are some thousands in a notification at most."""
    data = b'["%s",null,[],{"user":"ann","devices":[{"platform":"fcm","token":"%s"}],"title":"x","data":{"a":[%s]}}]'
    for function, most, n in ((b"notifier.deliver", "20,000", 20_000), (b"app.f", "250,000", 600_000)):
        with pytest.raises(InvalidNotificationError, match=f"may hold at most {most} values"):
            read_notification(zlib.compress(data % (function, b"a" * 150, b",".join([value] * n))))


def test_the_largest_notification_is_read() -> None:
    """A thousand devices, each with the longest token that there is, or as many browsers."""
    longest = [f"{n:04}".ljust(4_096, "a") for n in range(1_000)]
    browsers = [subscription(f"https://{n}.push.example", "ann") for n in range(1_000)]
    for platform, tokens in (("fcm", longest), ("webpush", browsers)):
        devices = [Device(platform, token) for token in tokens]
        data = encode_data(Notification(user="ann", devices=devices, title="x", body="[{," * 1_300))
        found = read_notification(data)
        assert found is not None
        assert [device.token for device in found.devices] == tokens


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x96" + (2_000_000_000).to_bytes(8, "little"),  # BYTEARRAY8, of bytes that are not there
        b"\x8f" * 2_500_000,  # sets
        b"(" * 2_500_000,
        b"X" + (200_000).to_bytes(4, "little") + b"a" * 200_000 + b"\x94" + b"h\x00h\x00\x93" * 1_000,  # classes
        b"c\nx\n" + b"X" + (4_500_000).to_bytes(4, "little") + b"\xe4\xb8\xad" * 1_500_000 + b"R",  # arguments
    ],
    ids=["bytearray", "sets", "marks", "classes", "arguments"],
)
@pytest.mark.usefixtures("memory")
def test_a_pickle_does_not_grow(pickled: bytes) -> None:
    """Some bytes that ask for gigabytes, or would become them as Python's objects, are refused before."""
    with pytest.raises(InvalidNotificationError, match="neither JSON nor a pickle"):
        read_call(zlib.compress(b"\x80\x05" + pickled + b"."))


@pytest.mark.parametrize("field", [b"data", b"exc_info"])
@pytest.mark.usefixtures("memory")
def test_rq_does_not_unpack_a_job_without_end(field: bytes) -> None:
    """Nor what is scheduled, or was abandoned, which a worker reads without a lease: its death would not be counted."""
    job = AllowedFunctions([]).guarded_job()("forged", connection=Redis(), serializer=JSONSerializer)
    with pytest.raises(NoSuchJobError, match="more than 5 MB long"):
        job.restore({b"data": b"[]", field: bomb()})


@pytest.mark.usefixtures("memory")
def test_the_reason_of_a_job_is_not_unpacked_without_end() -> None:
    """A reason is read by people: what unpacks to gigabytes is cut."""
    assert len(decode_reason(b64encode(bomb()))) < 100_000


@pytest.mark.parametrize("count", [10**9, -(10**9)])
@pytest.mark.usefixtures("memory")
def test_a_count_that_any_program_wrote_makes_no_number_without_end(count: int) -> None:
    """A job's hash says how often it was refused, and the wait doubles with each."""
    assert 1 <= Backoff(2, 4).wait_us(count) <= 4


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_text_becomes_a_line_of_the_log(form: str) -> None:
    """Ends of lines and escapes in a user's id do not forge an entry, nor write to the terminal of who reads it."""
    stream = io.StringIO()
    configure_logging(form, "info", stream)
    structlog.get_logger("notifier").info("delivered", user='ada\n{"event": "forged"}\r\x1b[2J\u2028')
    (line,) = stream.getvalue().rstrip("\n").split("\n")
    assert "\x1b[2J" not in line
    assert "\r" not in line
    if form == "json":
        assert json.loads(line)["event"] == "delivered"
