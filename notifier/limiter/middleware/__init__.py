"""Limits for web programs: ASGI and WSGI in pure form; FastAPI, Flask and Django have a module each.

`notifier.limiter.middleware.fastapi`, `.flask` and `.django` import their framework; this module imports none.
"""

from notifier.limiter.middleware.asgi import ASGILimits
from notifier.limiter.middleware.guard import SERVER_ERRORS, WebAnswer, WebLimit
from notifier.limiter.middleware.keys import api_key, client_address, user
from notifier.limiter.middleware.request import WebRequest
from notifier.limiter.middleware.wsgi import WSGILimits

__all__ = [
    "SERVER_ERRORS",
    "ASGILimits",
    "WSGILimits",
    "WebAnswer",
    "WebLimit",
    "WebRequest",
    "api_key",
    "client_address",
    "user",
]
