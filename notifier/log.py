"""Logging, configured once by an entry point: JSON lines for machines, coloured lines for a terminal.

A bound id has the same name everywhere: `user`, `job_id`, `category`. Callers never log a whole token, a body or a
key. The masking is the last defence, for the records of libraries and for mistakes. In free text it recognises a
secret only by its form.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from notifier.texts import mask, without_controls

MASKED: Final = "…"
MAX_DEPTH: Final = 6
LONGEST: Final = 20_000  # characters of one value; cutting a longer one also bounds the time of the masking

# The last word of a key makes it secret: `device_token` and `apiKey` are, `key_id` and `token_count` are not.
_SECRET_WORD: Final = re.compile(
    r"authorization|body|credentials|data|jwt|key|args|kwargs|passwd|password|payload|pem|secret|title"
)
_TOKEN_WORD: Final = re.compile(r"tokens?")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_MASKED_TOKEN: Final = re.compile(r".{6}…..|…(?:[0-9a-f]{8})?")
_COLOR: Final = re.compile(r"\x1b\[[\d;]*m")
_RESULT: Final = re.compile(r"^(Worker .*?: result: ).*", re.DOTALL)
_HEX: Final = re.compile(r"[0-9a-fA-F]{64,}")
_PATTERNS: Final = (
    # A PEM block, even if its end was cut off.
    (re.compile(r"-----BEGIN .*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), MASKED),
    (re.compile(r"\beyJ[\w-]{5,4096}\.[\w-]+(?:\.[\w-]*)?"), MASKED),  # a JWT
    (re.compile(r"\b(bearer|key=)\s*[\w.~+/:=-]{8,}", re.IGNORECASE), rf"\1 {MASKED}"),
    (re.compile(r"(://[^/@\s:]{0,256}):[^/@\s]{1,512}@"), rf"\1:{MASKED}@"),  # a URL's password
    # RQ's description of a job's call, `notifier.deliver(title='…')`, and a printed dict.
    (
        re.compile(
            r"""\b(title|body|data|token|authorization|password|private_key)(['"]?\s*[=:]\s*)"""
            r"""(?:'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|\{.*)""",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\2'{MASKED}'",
    ),
)
_MARKS: Final = re.compile(
    r"-----BEGIN|eyJ|bearer|key=|://|title|body|data|token|authorization|password|private_key", re.IGNORECASE
)

# The debug records of these loggers contain headers and requests: hpack would print our bearer token.
QUIET: Final = (
    *("hpack", "h2", "apns2"),
    *("urllib3", "google", "google.auth", "requests", "asyncio", "aiohttp.access"),
)


class _Handler(logging.StreamHandler[TextIO]):
    """A class of its own, by which a second `configure_logging` finds the handler of the first and replaces it."""


def configure_logging(
    format: Literal["auto", "json", "console"] = "auto",  # noqa: A002 - the name it has in the YAML
    level: str = "info",
    stream: TextIO | None = None,
) -> None:
    """Send structlog's and the standard library's records (RQ's too) to `stream`, standard error by default.

    `auto` is `console` on a terminal and `json` elsewhere. Only entry points call this; a second call replaces the
    first. Raise ValueError for a level or format that does not exist.
    """
    stream = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None or format not in {"auto", "json", "console"}:
        raise ValueError(f"no such logging: format {format!r}, level {level!r}")
    terminal = stream.isatty()
    console = format == "console" or (format == "auto" and terminal)
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Tracebacks become text before the masking, without local variables, which contain message bodies.
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, _of_rq],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                mask_secrets,
                *_renderers(console=console, colors=terminal and not os.environ.get("NO_COLOR")),
            ],
        )
    )
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    _install(handler, number)


def _renderers(*, console: bool, colors: bool) -> list[Processor]:
    if not console:
        return [structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [
        _escape_controls,
        structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24, exception_formatter=plain),
    ]


def _of_rq(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remove colours, which our renderers would print as escapes, and results of functions from RQ's texts."""
    if event["logger"].startswith("rq."):
        event["event"] = _RESULT.sub(rf"\1{MASKED}", _COLOR.sub("", event["event"]))
    return event


def _escape_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters in keys and texts; the renderer escapes them in other values."""
    return {without_controls(key): without_controls(v) if isinstance(v, str) else v for key, v in event.items()}


def _install(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for old in root.handlers[:]:
        # basicConfig installs a bare StreamHandler, which would print each record a second time, unmasked.
        if type(old) in (_Handler, logging.StreamHandler):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name in ("rq", "rq.worker", "rq.job", "rq.queue", "rq.registry", "rq.scheduler"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask secrets, recognised by the name of the key or by their form; a structlog processor."""
    return {mask_text(key): _masked(key, value, 0) for key, value in event.items()}


@lru_cache(maxsize=1_024)
def _last_word(key: str) -> str:
    words = _WORD.findall(key)
    return words[-1].lower() if words else ""


def _masked(key: str, value: Any, depth: int) -> Any:
    word = _last_word(key)
    if value is None or isinstance(value, bool):
        return value
    if _TOKEN_WORD.fullmatch(word):
        return _masked_token(value)
    if _SECRET_WORD.fullmatch(word):
        return MASKED
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return mask_text(value) if isinstance(value, str) else _masked_inside(value, depth + 1)


def _masked_inside(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        return MASKED
    match value:
        case Mapping():
            return {mask_text(str(name)): _masked(str(name), inner, depth) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_masked("", inner, depth) for inner in value]
        case bytes() | bytearray():
            return f"<{len(value)} bytes>"
        case _:
            return mask_text(repr(value))


def _masked_token(value: Any) -> Any:
    """Mask a token, or each token of a list. A masked token stays as it is."""
    if isinstance(value, list | tuple):
        return [_masked_token(inner) for inner in value]
    if not isinstance(value, str):
        return MASKED
    return value if _MASKED_TOKEN.fullmatch(value) else mask(value)


def mask_text(text: str) -> str:
    """Mask the parts of a text that have the form of a secret: long hexadecimals, keys, JWTs, passwords in URLs."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text) - LONGEST} more)"
    text = _HEX.sub(lambda found: mask(found[0]), text)
    if _MARKS.search(text):
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
    return text
