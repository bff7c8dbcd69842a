"""Say in words for people why a provider cannot be reached: for `notifier routes`, the pages and the logs."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit


def unreachable_words(error: BaseException, host: str, port: int) -> str:
    """Say what went wrong on the way to a host, such as 'connection refused at localhost:8443'."""
    place = f"{host}:{port}"
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error  # aiohttp's
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"the certificate of {place} is not believed: {inner.verify_message}"
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (TimeoutError, f"no connection to {place} in time"),
        (socket.gaierror, f"no address is known for {host}"),
        (ssl.SSLError, f"TLS with {place} fails"),
        (ConnectionRefusedError, f"connection refused at {place}"),
        (ConnectionError, f"{place} closes the connection"),
    )
    return next((words for kind, words in kinds if isinstance(inner, kind)), f"{place} cannot be reached")


def origin_words(error: BaseException, origin: str) -> str:
    """As `unreachable_words`, for an origin such as https://fcm.googleapis.com."""
    url = urlsplit(origin)
    return unreachable_words(error, url.hostname or "", url.port or 443)
