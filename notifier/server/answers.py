"""Answers of the server: JSON, HTML and problems, each with the headers that keep a browser safe."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from starlette.responses import Response

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser sends `Origin: null` with a form, and the guard refuses that.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


REDIS_DOWN: Final = "/help/redis-down"
MAX_LOGGED: Final = 100
_logged: set[tuple[str, int]] = set()


class ProblemError(Exception):
    """Raised to answer a request with a problem. more: further fields of the problem."""

    def __init__(self, status: int, title: str, detail: str, **more: Any) -> None:
        super().__init__(f"{title}: {detail}")
        self.status, self.title, self.detail, self.more = status, title, detail, more


def tell_unreadable(error: Exception) -> str:
    """Return the message for unreadable data in Redis. The traceback is logged once for each type and line of error."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    kind = type(error).__name__, where.tb_lineno if where is not None else 0
    if kind not in _logged and len(_logged) < MAX_LOGGED:
        _logged.add(kind)
        structlog.get_logger("notifier.server").error("unreadable", exc_info=error)
    return "Redis holds something that cannot be read; see the server's log, and notifier audit"


def json_answer(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """Answer with a value as JSON; times are in ISO 8601."""
    return Response(json.dumps(value, default=_plain), status, media_type=media_type, headers=HEADERS)


def html_answer(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html", headers=HEADERS)


def problem(status: int, title: str, detail: str, **more: Any) -> Response:
    """Answer with a problem in the form of RFC 9457."""
    body = {"title": title, "status": status, "detail": detail, **more}
    return json_answer(body, status, "application/problem+json")


def _plain(of: Any) -> Any:
    if is_dataclass(of) and not isinstance(of, type):
        return asdict(of)
    return of.isoformat() if isinstance(of, datetime) else str(of)
