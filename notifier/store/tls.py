"""Connections that tell where one side speaks TLS and the other does not, in a second and not after a timeout."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Final

import redis

from notifier.store.demoted import Leaving

PATIENCE_S: Final = 1.0  # a handshake takes milliseconds
OURS: Final = "it does not speak TLS; write redis:// in place of rediss://"
THEIRS: Final = "it speaks TLS; write rediss:// in place of redis://"
# A Redis that says one of these speaks plainly: to find out whether it speaks TLS would take a second.
ANSWERS: Final = (redis.exceptions.AuthenticationError, redis.exceptions.BusyLoadingError)


class TlsMismatchError(redis.exceptions.ConnectionError):
    """Only one side speaks TLS; the text says what to write."""


class PlainConnection(Leaving, redis.Connection):
    """A connection without TLS."""

    def connect(self) -> None:
        """See redis-py."""
        try:
            super().connect()  # type: ignore[no-untyped-call]
        except ANSWERS:
            raise
        except redis.exceptions.ConnectionError:
            if _speaks_tls(self.host, self.port):
                raise TlsMismatchError(THEIRS) from None
            raise


class TlsConnection(Leaving, redis.SSLConnection):
    """A connection over TLS: a handshake that nobody answers is given up where the other side turns out to be plain."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> Any:
        told, same = threading.Event(), os.dup(sock.fileno())

        def look() -> None:
            if _speaks_plainly(self.host, self.port):
                told.set()
                with suppress(OSError), socket.socket(fileno=os.dup(same)) as handle:
                    handle.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(PATIENCE_S, look)
        watch.daemon = True
        watch.start()
        try:
            secured = super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
        except (OSError, redis.exceptions.RedisError):
            if told.is_set():
                raise TlsMismatchError(OURS) from None
            raise
        finally:
            watch.cancel()
            watch.join()
            os.close(same)
        if told.is_set():  # on a socket that was shut down before, ssl makes no handshake, and says nothing of it
            secured.close()
            raise TlsMismatchError(OURS)
        return secured


def _speaks_plainly(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), PATIENCE_S) as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(1) in {b"+", b"-"}
    return False


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's certificates, which take long to load
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said there
    try:
        with socket.create_connection((host, port), PATIENCE_S) as sock, context.wrap_socket(sock):
            return True
    except ssl.SSLError as error:  # one that wants our certificate speaks it too
        return error.reason is not None and "ALERT" in error.reason
    except OSError:
        return False
