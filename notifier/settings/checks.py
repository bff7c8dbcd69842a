"""Check single values of the configuration, and read the secrets that it names.

A check raises ValueError, which says what is wrong and what would be right. It never quotes a value that may hold a
secret by mistake (a URL, a path). It never raises TypeError, which pydantic does not turn into a ValidationError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from notifier.errors import SettingsError
from notifier.notification.notification import NAME_FORM, USER_BYTES
from notifier.notification.subscription import HOST_PATTERN, PORTS
from notifier.rules.kinds.window import Window, parse_window
from notifier.rules.policy import Policy
from notifier.rules.rate_text import RATES_FORM, parse_rates
from notifier.rules.zones import check_zone
from notifier.settings import redis_url as several
from notifier.settings.secret_files import read_regular
from notifier.units import LONGEST_US, UNITS, WORDS, parse_duration, shown

MAX_WINDOWS: Final = 10
MAX_LISTED: Final = 20

_ENDPOINT: Final = re.compile(r"https://(?:[A-Za-z0-9.-]{1,253}|\[([0-9a-fA-F:.]+)\])(?::([0-9]{1,5}))?/?")
_PRIVATE_KEY: Final = re.compile(r"^-----BEGIN [A-Z ]*PRIVATE KEY-----", re.MULTILINE)
_APPLE: Final = {
    "team_id": (re.compile(r"[A-Za-z0-9]{10}"), "10 letters and digits, from Apple's developer account"),
    "key_id": (re.compile(r"[A-Za-z0-9]{10}"), "10 letters and digits, part of the .p8 file's name"),
    "topic": (re.compile(r"[A-Za-z0-9.-]{1,255}"), "the app's bundle id, such as com.example.app"),
}
APPLE_ENDPOINTS: Final = {
    "production": "https://api.push.apple.com",
    "sandbox": "https://api.sandbox.push.apple.com",
}
APPLE_CHANNELS: Final = {
    "production": "https://api-manage-broadcast.push.apple.com:2196",
    "sandbox": "https://api-manage-broadcast.sandbox.push.apple.com:2195",
}
# Apple answers 403 to a contact at localhost, whatever the key.
_CONTACT: Final = re.compile(r"(?:mailto:[^@\s]+@|https://)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}(?:/[!-~]*)?")

# Patterns and examples for editors, by the JSON Schema. The parsers in `units` check more.
_NUMBER: Final = r"[0-9]+(\.[0-9]+)?"
DURATION_TEXT: TypeAlias = Annotated[
    str, Field(pattern=rf"^\s*{_NUMBER}\s*({'|'.join(UNITS)})\s*$", examples=["1500ms", "1.5s", "10m", "2d"])
]
_INTERVAL: Final = rf"(({_NUMBER}\s*)?({'|'.join(UNITS)})|{'|'.join(WORDS)})\s*$"
INTERVAL_TEXT: TypeAlias = Annotated[str, Field(pattern=rf"^\s*{_INTERVAL}", examples=["1d", "10m", "day"])]
RATE_TEXT: TypeAlias = Annotated[
    str,
    Field(
        pattern=rf"^\s*[1-9][0-9]*\s*/\s*{_INTERVAL}",
        examples=["10/minute", "5/10s", "200/day", "1/2h"],
    ),
]

LIMIT_TEXT: TypeAlias = Annotated[
    str, Field(min_length=3, examples=["5/minute", "5/minute; 100/day; gap 200ms", "burst 20 then 1/3m"])
]


def kind(value: object) -> str:
    """Name the type of a YAML value in plain words."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case _:
            return "a mapping"


def wrong_at(paths: str | Sequence[str], message: str) -> PydanticCustomError:
    """Return an error that is shown at these keys, for a check that compares several keys."""
    at = [paths] if isinstance(paths, str) else list(paths)
    return PydanticCustomError("wrong_at", "{message}", {"message": message, "at": at})


def duration(*, least_us: int, max_us: int = LONGEST_US) -> PlainValidator:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"must be a duration such as 1500ms, 10s or 7d, is {kind(value)}")  # noqa: TRY004
        return parse_duration(str(value), least_us=least_us, max_us=max_us)  # refuses a bare number

    return PlainValidator(check, json_schema_input_type=DURATION_TEXT)


def _rate(value: object) -> Window:
    if not isinstance(value, str):
        raise ValueError(f"must be a rate such as 10/minute or 5/10s, is {kind(value)}")  # noqa: TRY004
    return parse_window(value)


def _windows(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list such as [10/minute, 200/day], is {kind(value)}")  # noqa: TRY004
    if len(value) > MAX_WINDOWS:
        raise ValueError(f"has {len(value)} windows; at most {MAX_WINDOWS} are allowed")
    calendar = ["calendar" in str(window) for window in value]
    if calendar != sorted(calendar):
        raise ValueError("has a calendar window before another one; put those of the calendar last")
    return tuple(value)


def _zone(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a time zone such as Europe/Berlin, is {kind(value)}")  # noqa: TRY004
    return check_zone(value)


def _file(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value.strip() or "\n" in value or "\0" in value:
        raise ValueError("must be the path of a file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / Path(value).expanduser()


def _https(value: object) -> str:
    match = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if match is None or not _is_ipv6(match[1] or "::1") or (match[2] and int(match[2]) not in PORTS):
        raise ValueError("is not the address of a server; write https://host or https://host:port")
    return match[0].rstrip("/")


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def _webhook(value: object) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) and re.fullmatch("[!-~]+", value) else "")
        host = (parts.hostname or "").encode("idna")  # as DNS looks it up; an error if the text is no host name
        a_server = parts.scheme in {"https", "http"} and host and parts.port != 0
        if a_server and "@" not in parts.netloc and not parts.fragment:
            return parts.geturl()
    except ValueError:  # raised again below, without the value
        pass
    raise ValueError("is not an address to post to; write https://host/path, without user and password")


def _apple_endpoint(value: object) -> str:
    if isinstance(value, str) and value in APPLE_ENDPOINTS:
        return APPLE_ENDPOINTS[value]
    try:
        return _https(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {' or '.join(APPLE_ENDPOINTS)}") from None


def _hosts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list such as [fcm.googleapis.com, '*.push.apple.com'], is {kind(value or None)}")
    for host in value:
        match = HOST_PATTERN.fullmatch(host) if isinstance(host, str) else None
        if match is None or (match[1] and int(match[1]) not in PORTS):
            said = shown(host) if isinstance(host, str) else kind(host)
            raise ValueError(f"{said} is not a host; write push.example.com, push.example.com:8443 or '*.example.com'")
    return tuple(host.removesuffix(":443") for host in value)  # a browser leaves this port out


def _contact(value: str) -> str:
    if value and not _CONTACT.fullmatch(value):
        raise ValueError(
            "is not a contact address for push services; write mailto:you@example.com or https://example.com"
        )
    return value


CHECKED: Final = {"ssl_cert_reqs": {"required"}, "ssl_check_hostname": {"1", "true", "yes"}}


def redis_url(value: object) -> str:
    """Return the value if it is the URL of a Redis; else raise ValueError, which does not quote the value."""
    wrong = "is not the URL of a Redis; write redis://host:6379/0, rediss://host:6379/0, unix:///path/to/socket, "
    wrong += f"{several.SENTINEL_FORM} or {several.CLUSTER_FORM}"
    if not isinstance(value, str):
        raise ValueError(wrong)  # noqa: TRY004 - pydantic
    wrong += several.advice(value)
    if several.is_sentinel(value) or several.is_cluster(value):
        several.parse(value)
        return value
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise ValueError(wrong) from None
    if url.scheme == "unix":
        good = len(url.path) > 1
    else:
        # `urlsplit` accepts port 0, to which nothing can connect.
        database = re.fullmatch(r"/?|/[0-9]{1,5}", url.path)
        good = url.scheme in {"redis", "rediss"} and bool(url.hostname) and port != 0 and database is not None
    # `urlsplit` accepts a scheme in capitals, or after blanks; redis-py does not.
    if not good or url.fragment or not value.startswith(f"{url.scheme}://"):
        raise ValueError(wrong)
    for option, right in CHECKED.items():
        if not right.issuperset(each.lower() for each in parse_qs(url.query).get(option, ())):
            advice = "leave it out, name who signed the certificate in redis.ca_file, and the host by its name in it"
            raise ValueError(f"has {option}, by which the server's certificate would not be checked; {advice}")
    return value


def _name(value: str) -> str:
    if not NAME_FORM.fullmatch(value):
        raise ValueError("is not a name; use up to 64 of a-z, 0-9, '_' and '-', beginning with a letter or digit")
    return value


def check_user(value: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode text") from None
    if not 0 < size <= USER_BYTES:
        raise ValueError(f"is not a user's id; it must have 1 to {USER_BYTES} bytes")
    return value


def _limit_name(value: str) -> str:
    if not value[:1].isalpha():
        raise ValueError("the name of a limit begins with a letter, which tells it from a rate")
    return value


def _limit(value: object) -> Policy:
    if not isinstance(value, str):
        raise ValueError(f"must be rates, is {kind(value)}; {RATES_FORM}")  # noqa: TRY004
    return parse_rates(value)


def _tier(value: str, info: ValidationInfo) -> str:
    tiers = (info.context or {}).get("tiers", ())
    if value not in tiers:
        named = [name for name in tiers if NAME_FORM.fullmatch(name)]
        known = f"tiers are {', '.join(named[:MAX_LISTED])}" if named else "there are none under tiers"
        raise ValueError(f"unknown tier {shown(value)}; {known}")
    return value


PREFIX_FORM: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def _prefix(value: str) -> str:
    if not PREFIX_FORM.fullmatch(value):
        raise ValueError("must be 1 to 32 letters, digits and _, and begin with a letter")
    return value


# The types of single values.
Duration = Annotated[int, duration(least_us=0)]
Positive = Annotated[int, duration(least_us=UNITS["ms"])]
Lease = Annotated[int, duration(least_us=UNITS["ms"], max_us=10 * UNITS["m"])]  # see sweep.lua
Rate = Annotated[Window, PlainValidator(_rate, json_schema_input_type=RATE_TEXT)]
WINDOWS: Final = BeforeValidator(_windows)
Rates = Annotated[tuple[Rate, ...], WINDOWS]
Zone = Annotated[str, PlainValidator(_zone, json_schema_input_type=str)]
File = Annotated[Path, PlainValidator(_file, json_schema_input_type=str)]
AppleEndpoint = Annotated[str, PlainValidator(_apple_endpoint, json_schema_input_type=str)]
WebhookUrl = Annotated[str, PlainValidator(_webhook, json_schema_input_type=str)]
HttpsEndpoint = Annotated[str, PlainValidator(_https, json_schema_input_type=str)]
Hosts = Annotated[tuple[str, ...], PlainValidator(_hosts, json_schema_input_type=list[str])]
Contact = Annotated[str, AfterValidator(_contact)]
RedisUrl = Annotated[str, PlainValidator(redis_url, json_schema_input_type=str)]
Prefix = Annotated[str, AfterValidator(_prefix)]
Name = Annotated[str, AfterValidator(_name)]
User = Annotated[str, AfterValidator(check_user)]
Tier = Annotated[str, AfterValidator(_tier)]
LimitName = Annotated[Name, AfterValidator(_limit_name)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=300)]
Limit = Annotated[Policy, PlainValidator(_limit, json_schema_input_type=LIMIT_TEXT)]


def check_apple_id(name: str, value: str) -> None:
    """Raise ValueError unless a team_id, key_id or topic has the form that Apple gives it."""
    form, meaning = _APPLE[name]
    if not form.fullmatch(value):
        raise ValueError(f"is not what Apple calls a {name}: {meaning}")


def read_secret(path: Path, key: str) -> str:
    """Return the text of the file that `key` names; raise SettingsError if it cannot be read."""
    try:
        return read_regular(path, key).decode("utf-8-sig")
    except ValueError:
        raise SettingsError(f"{key}: {path} is not UTF-8 text") from None


def from_environment_or_file(environ: Mapping[str, str], variable: str, path: Path | None, key: str) -> tuple[str, str]:
    """Return a secret's text and, for errors, its origin; raise SettingsError if neither origin gives it."""
    if environ.get(variable):
        return environ[variable], variable
    if path is None:
        raise SettingsError(f"{key} is missing; name the file there, or set {variable}")
    return read_secret(path, key), f"{key}: {path}"


def private_pem(text: str, where: str) -> str:
    """Return a private key in PEM, its line breaks restored; raise SettingsError if it is none. where: its origin."""
    # Many hosts keep a variable in one line, in which \n stands for a line break.
    pem = text.replace("\\n", "\n").strip() + "\n"
    if not _PRIVATE_KEY.search(pem):  # openssl ecparam writes the curve's parameters first
        raise SettingsError(f"{where} is not a private key in PEM, which begins with a line BEGIN PRIVATE KEY")
    return pem


def one_line(text: str, where: str) -> str:
    """Return a secret of one line; raise SettingsError for any other text. where: its origin."""
    secret = text.strip()
    if not secret or not secret.isascii() or not secret.isprintable():
        raise SettingsError(f"{where} is not a secret: it must be one line of plain characters")
    return secret
