"""Answers of the server: JSON, HTML and problems, each with the headers that keep a browser safe."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # A browser tells the origin of a form only where it may tell where the form stood.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ProblemError(Exception):
    """What is answered in place of what was asked for. more: further fields of the problem."""

    def __init__(self, status: int, title: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.more = status, title, detail, more


class BusyError(Exception):
    """Redis does not answer in time, or too many ask."""


def json_answer(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """A value as JSON: times in ISO 8601."""
    return Response(json.dumps(value, default=_plain), status, media_type=media_type, headers=HEADERS)


def html_answer(text: str, status: int = 200) -> Response:
    """A page."""
    return Response(text, status, media_type="text/html", headers=HEADERS)


def problem(status: int, title: str, detail: str, **more: Any) -> Response:
    """What is wrong, as RFC 9457 says."""
    told = {"title": title, "status": status, "detail": detail, **more}
    return json_answer(told, status, "application/problem+json")


def _plain(of: Any) -> Any:
    if is_dataclass(of) and not isinstance(of, type):
        return asdict(of)
    return of.isoformat() if isinstance(of, datetime) else str(of)
