"""The log of arrivals, and the scripts of answers, which all simulators share."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias

from h2.errors import ErrorCodes
from pydantic import AfterValidator, ConfigDict


@dataclass(frozen=True, slots=True)
class Arrival:
    """One complete request as a simulator received it, accepted or refused.

    at_us: µs since 1970, taken when the last byte of the request had come, before any latency of the answer. The laws
        are measured by these times.
    status: the HTTP status of the answer; 0 for no answer.
    message_id: the apns-id or the FCM message name. data: the message's custom data as received.
    dry_run: the request asks for a validation only, so no device gets the message.
    app: the APNs topic, the FCM project, or the public key of a web push sender; the others have theirs.
    ttl_us: how long the service is to keep the message from `at_us` on; None if the request does not say.
    """

    at_us: int
    platform: str
    token: str
    status: int
    reason: str
    message_id: str
    collapse_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    dry_run: bool = False
    ttl_us: int | None = None
    app: str | None = None


def part(message: object, *path: str, kind: type) -> Any:
    """Return the value of this kind at a path of a message as received; None if there is none."""
    for key in path:
        message = message.get(key) if isinstance(message, dict) else None
    return message if isinstance(message, kind) else None


class WireLog:
    """The arrivals at the simulators: kept in `arrivals` or, with a path, appended to that file as JSON lines.

    Requests for a validation only are kept apart, in `dry_runs`: they reach no device, so no law counts them.

    Each line is flushed when written, so that another process may read while the simulators run. The file
    holds tokens in full: they belong to invented devices, never to people's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.arrivals: list[Arrival] = []
        self.dry_runs: list[Arrival] = []
        self._file: IO[str] | None = None if path is None else path.open("a", encoding="utf-8")
        self._watchers: list[Callable[[Arrival], None]] = []

    def watch(self, watcher: Callable[[Arrival], None]) -> None:
        self._watchers.append(watcher)

    def record(self, arrival: Arrival) -> None:
        for watcher in self._watchers:
            watcher(arrival)
        if self._file is None:
            (self.dry_runs if arrival.dry_run else self.arrivals).append(arrival)
            return
        self._file.write(json.dumps(asdict(arrival), separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @staticmethod
    def read(path: Path, *, dry_runs: bool = False) -> list[Arrival]:
        """Return the arrivals in a file, or its dry runs, in order. A last line without its end is left out."""
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [a for a in (Arrival(**json.loads(line)) for line in lines) if a.dry_run == dry_runs]


def _status(value: int) -> int:
    if value != 0 and value not in range(100, 600):
        raise ValueError(f"{value} is no HTTP status")
    return value


def _reset(value: str) -> str:
    if value and value not in ErrorCodes.__members__:
        raise ValueError(f"{value!r} is no error code of HTTP/2: {', '.join(sorted(ErrorCodes.__members__))}")
    return value


@dataclass(frozen=True, slots=True)
class Reply:
    """A scripted answer.

    status: the HTTP status; 200 accepts. reason: the provider's own word, put into the provider's own form
        of an error body; a reason that starts with ``<`` is sent as it is, as an HTML page of a proxy.
    delay_ms: a wait before the answer, on top of the simulator's latency.
    drop: answer nothing and cut the connection. silent: answer nothing and leave the connection as it is.
    retry_at_s: send Retry-After as a date this long after the answer. (`headers` may have Retry-After in seconds.)
    go_away: APNs alone: send GOAWAY with this reason before the answer; this request is the last one processed.
    body: APNs alone: the body of the answer, in place of the form for `reason`.
    reset: APNs alone: in place of an answer RST_STREAM with this HTTP/2 error code, such as ``REFUSED_STREAM``.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    status: Annotated[int, AfterValidator(_status)] = 200
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    drop: bool = False
    silent: bool = False
    retry_at_s: int | None = None
    go_away: str = ""
    reset: Annotated[str, AfterValidator(_reset)] = ""
    body: str = ""

    @property
    def logged_status(self) -> int:
        """The status as it stands in the wire log: 0 if there is no answer."""
        return 0 if self.drop or self.silent or self.reset else self.status

    def all_headers(self) -> dict[str, str]:
        """Return the headers, with Retry-After as a date if `retry_at_s` is given."""
        if self.retry_at_s is None:
            return dict(self.headers)
        now_s = time.time()
        dates = {
            "Date": formatdate(now_s, usegmt=True),
            "Retry-After": formatdate(now_s + self.retry_at_s, usegmt=True),
        }
        return {**dates, **self.headers}


class Refusal(Exception):  # noqa: N818 - a simulator's way out of its checks, not an error
    """The first check that failed. reply: the answer for it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.reply = Reply(status, reason)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a simulator read it. reply: the checks' answer, before any script. fields: more of its `Arrival`."""

    token: str
    reply: Reply
    id: str
    fields: Mapping[str, Any]


Scripts: TypeAlias = MutableMapping[str, Sequence[Reply]]


class Playback:
    """Scripts being played: the n-th request for a token takes its n-th reply; the last one repeats."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self._played: Counter[str] = Counter()

    def next(self, token: str) -> Reply | None:
        replies = self.scripts.get(token)
        if not replies:
            return None
        index = min(self._played[token], len(replies) - 1)
        self._played[token] += 1
        return replies[index]

    def rewrite(self, token: str, replies: Sequence[Reply]) -> None:
        """Give a token a new script, which starts with its first reply; an empty one removes the script."""
        self._played.pop(token, None)
        if replies:
            self.scripts[token] = replies
        else:
            self.scripts.pop(token, None)

    def clear(self) -> None:
        self._played.clear()
        self.scripts.clear()
