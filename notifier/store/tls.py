"""Connections whose errors give a hint if perhaps only one side speaks TLS. They also leave a demoted server."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any, Final

import redis

from notifier.store.demoted import Leaving

OURS: Final = "it makes no TLS handshake; if it speaks no TLS, write redis:// in place of rediss://"
THEIRS: Final = "it closes new connections; if it speaks TLS alone, write rediss:// in place of redis://"
UNREADABLE: Final = "a file of redis.ca_file, cert_file or cert_key_file cannot be read: {}"
OF_FILES: Final = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EMFILE, errno.ENFILE})
# Any other error of a handshake is TLS's own, such as a refused certificate.
NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"})
CLOSED: Final = ("Connection closed by server", "Connection reset by peer")  # redis-py's texts


class TlsMismatchError(redis.exceptions.ConnectionError):
    """Perhaps only one side speaks TLS; the text says what to write then."""


class PlainConnection(Leaving, redis.Connection):
    """A connection without TLS."""

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[no-untyped-call]
        except redis.exceptions.ConnectionError as error:
            if any(text in str(error) for text in CLOSED):
                raise TlsMismatchError(THEIRS) from error
            raise


class TlsConnection(Leaving, redis.SSLConnection):
    """A connection over TLS."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> Any:
        try:
            return super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
        except OSError as error:
            if isinstance(error, ssl.SSLError):  # its numbers are no errno
                if error.reason not in NO_TLS:
                    raise
            elif error.errno in OF_FILES:
                raise redis.exceptions.ConnectionError(UNREADABLE.format(error.strerror)) from None
            raise TlsMismatchError(OURS) from error
