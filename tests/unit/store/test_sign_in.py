"""What connections to Redis sign in with: read again for each one, and the last good one where that cannot be used."""

import asyncio
import json
import re
import resource
import socket
import ssl
from pathlib import Path

import pytest
import redis.asyncio
import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from structlog.testing import capture_logs

from notifier.errors import SettingsError
from notifier.settings import parse_settings
from notifier.settings.secret_files import LastGood, read_regular
from notifier.simulators.certificates import make_certificates
from notifier.store.connection import connect
from notifier.store.sign_in import renewing
from notifier.store.tls import TlsConnection

RIGHT = {"ca_file": "cert", "cert_file": "cert", "cert_key_file": "key"}


def test_the_password_is_read_for_each_connection(tmp_path: Path) -> None:
    """With the user of the URL; an empty file is told once, however many connect, and the last password holds on."""
    file = tmp_path / "password"
    file.write_text("one\n")
    redis = parse_settings("redis: {password_file: password}", name=str(tmp_path / "notifier.yaml")).redis
    client = connect(redis.model_copy(update={"url": "redis://worker@localhost/0"}))
    source = client.connection_pool.connection_kwargs["credential_provider"]
    assert source.get_credentials() == ("worker", "one")
    file.write_text("two\n")
    assert asyncio.run(source.get_credentials_async()) == ("worker", "two")
    file.write_text("")
    with capture_logs() as logs:
        assert [source.get_credentials() for _ in range(3)] == [("worker", "two")] * 3
    assert [(line["event"], line["platform"]) for line in logs] == [("secrets_refused", "redis")]
    assert "two" not in str(logs)


def test_somebody_elses_program_hears_by_its_own_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A producer in it has configured no structlog, which would print to its standard output."""
    file = tmp_path / "password"
    file.write_text("one")
    password = LastGood("redis", lambda: read_regular(file, "redis.password_file").decode())
    file.unlink()
    structlog.reset_defaults()
    assert password() == "one"
    [record] = caplog.records
    assert (record.name, record.levelname) == ("notifier", "ERROR")
    assert "redis" in record.message
    assert "No such file or directory" in record.message
    assert capsys.readouterr().out == ""


def test_a_password_in_the_url_goes_before_the_file(tmp_path: Path) -> None:
    """The URL of one deployment may have its own."""
    (tmp_path / "password").write_text("of the file")
    redis = parse_settings("redis: {password_file: password}", name=str(tmp_path / "notifier.yaml")).redis
    client = connect(redis.model_copy(update={"url": "redis://:own@localhost/0"}))
    assert client.connection_pool.connection_kwargs["password"] == "own"
    assert "credential_provider" not in client.connection_pool.connection_kwargs


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"ca_file": "junk"}, "redis.ca_file: cannot use {folder}/junk: NO_CERTIFICATE_OR_CRL_FOUND; it is to hold"),
        ({"cert_file": "cert", "cert_key_file": "junk"}, "redis.cert_file: cannot use {folder}/cert with"),
        ({"cert_file": "junk", "cert_key_file": "key"}, "redis.cert_file: cannot use {folder}/junk with"),
        ({"cert_file": "cert"}, "redis.cert_file: cannot use {folder}/cert with the key in {folder}/cert"),
        ({"cert_file": "cert", "cert_key_file": "locked"}, "redis.cert_file: cannot use {folder}/cert with"),
        (
            {"cert_file": "cert", "cert_key_file": "other"},
            "redis.cert_file: cannot use {folder}/cert with the key in {folder}/other: KEY_VALUES_MISMATCH; both are",
        ),
    ],
)
def test_files_that_cannot_work_are_refused_before_anything_connects(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    """They are no Redis that is away: nobody waits for it, and nobody is asked for a password."""
    made, other = make_certificates(tmp_path), ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "junk").write_text("no certificate")
    (tmp_path / "cert").write_bytes(made.cert_file.read_bytes().partition(b"-----BEGIN PRIVATE")[0])
    (tmp_path / "key").write_bytes(made.key_file.read_bytes())
    for name, lock in (("other", NoEncryption()), ("locked", BestAvailableEncryption(b"hunter2"))):
        (tmp_path / name).write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    document = {"redis": {"url": "rediss://localhost/0", **files}}
    settings = parse_settings(json.dumps(document), name=str(tmp_path / "notifier.yaml"))
    with pytest.raises(SettingsError, match=re.escape(says.format(folder=tmp_path))):
        connect(settings.redis)
    right = settings.redis.model_copy(update={name: tmp_path / to for name, to in RIGHT.items()})
    connect(right)


def test_certificates_are_read_for_each_connection(tmp_path: Path) -> None:
    """Half a file leaves the old one in force; where there was none before, it is an error."""
    file = make_certificates(tmp_path).ca_file
    whole = file.read_text()
    connection = renewing(redis.asyncio.SSLConnection)(ssl_ca_certs=str(file))
    first = connection._connection_arguments()["ssl"]
    file.write_text(whole[:100])
    with capture_logs() as logs:
        assert connection._connection_arguments()["ssl"] is first
        assert connection._connection_arguments()["ssl"] is first  # each connection asks, and one tells of it
    assert [line["event"] for line in logs] == ["secrets_refused"]
    with pytest.raises(ssl.SSLError):
        renewing(redis.asyncio.SSLConnection)(ssl_ca_certs=str(file))._connection_arguments()
    file.write_text(whole)
    assert connection._connection_arguments()["ssl"] is not first


def test_a_file_that_is_gone_is_no_fault_of_the_server(tmp_path: Path) -> None:
    """Nobody is told to give TLS up for it."""
    connection = TlsConnection(ssl_ca_certs=str(tmp_path / "gone"))
    says = r"redis\.ca_file, .* cannot be read: No such file"
    with socket.socket() as sock, pytest.raises(redis.exceptions.ConnectionError, match=says):
        connection._wrap_socket_with_ssl(sock)


def test_no_files_left_are_no_fault_of_the_server(tmp_path: Path) -> None:
    """Nobody is told to give TLS up for it."""
    connection = TlsConnection(ssl_ca_certs=str(make_certificates(tmp_path).ca_file))
    says = r"redis\.ca_file, .* cannot be read: Too many open files"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as sock:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
        try:
            with pytest.raises(redis.exceptions.ConnectionError, match=says):
                connection._wrap_socket_with_ssl(sock)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
