"""Redis over TLS, with a certificate of the client. It needs a server with TLS, as Debian's is: `make test-redis`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from redis import Redis

from notifier import AsyncNotifier, RedisUnusableError
from notifier.simulators.certificates import _builder, _name, make_certificates
from notifier.testing.embedded import EmbeddedRedis
from notifier.testing.ports import free_port
from tests.harness.support import ends, note, notifier, worker, write_config


class Guarded(NamedTuple):
    """A server that talks only to who shows its certificate, and a plain port for the test itself."""

    plain: EmbeddedRedis
    url: str
    files: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tls")
    server = make_certificates(folder)
    cert, key = _client_certificate(folder)
    trusted = folder / "trusted.pem"
    trusted.write_bytes(server.ca_file.read_bytes() + cert.read_bytes())
    port = free_port()
    options = {"port": port, "cert-file": server.cert_file, "key-file": server.key_file, "ca-cert-file": trusted}
    arguments = [part for name, value in options.items() for part in (f"--tls-{name}", str(value))]
    files = {"ca_file": str(server.ca_file), "cert_file": str(cert), "cert_key_file": str(key)}
    with EmbeddedRedis(extra_args=[*arguments, "--tls-auth-clients", "yes"]) as plain:
        yield Guarded(plain, f"rediss://127.0.0.1:{port}/0", files)


def _client_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("a worker")
    cert = _builder(name, name, key.public_key(), key.public_key()).sign(key, hashes.SHA256())
    (folder / "client.crt").write_bytes(cert.public_bytes(Encoding.PEM))
    (folder / "client.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "client.crt", folder / "client.key"


def config_of(folder: Path, guarded: Guarded, *names: str) -> Path:
    """A configuration that leads to the server, with these of the files."""
    path = write_config(folder, guarded.url)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["redis"] |= {name: guarded.files[name] for name in names}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_all_go_over_tls(tmp_path: Path, guarded: Guarded) -> None:
    """A worker, a producer and an asynchronous producer work over TLS, each with the client's certificate."""
    config = config_of(tmp_path, guarded, *guarded.files)
    with worker(config) as running, Redis.from_url(guarded.plain.url) as plain, notifier(config) as producer:
        running.ready(plain)
        ends(producer, producer.send(note("ada")), "delivered")

    async def send() -> str:
        async with AsyncNotifier.from_config(config, {}, follow=False) as asynchronous:
            return await asynchronous.send(note("grace"))

    assert asyncio.run(send())


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (("cert_file", "cert_key_file"), "certificate verify failed"),
        (("ca_file",), r"_ssl\.c|certificate|cannot be reached|does not answer"),
    ],
    ids=["a server of another authority", "a client without a certificate"],
)
def test_who_shows_no_right_certificate_is_refused(
    tmp_path: Path, guarded: Guarded, files: tuple[str, ...], why: str
) -> None:
    """One that nobody known has signed is not believed, and the error says so; nothing is sent."""
    with notifier(config_of(tmp_path, guarded, *files)) as producer, pytest.raises(RedisUnusableError, match=why):
        producer.send(note("ada"))


def test_a_new_certificate_is_taken_up(tmp_path: Path, guarded: Guarded) -> None:
    """The server trusts another certificate alone and ends all connections: who connects again shows the new one."""
    mine = tmp_path / "mine"
    mine.mkdir()
    files = {**guarded.files, "cert_file": str(mine / "client.crt"), "cert_key_file": str(mine / "client.key")}
    for name, path in files.items():
        if path != guarded.files[name]:
            copyfile(guarded.files[name], path)
    config = config_of(tmp_path, guarded._replace(files=files), *files)
    with Redis.from_url(guarded.plain.url) as plain, notifier(config) as producer, worker(config) as running:
        running.ready(plain)
        ends(producer, producer.send(note("ada", "before")), "delivered")

        trusted = str(plain.config_get("tls-ca-cert-file")["tls-ca-cert-file"])
        _client_certificate(mine)
        again = tmp_path / "again.pem"
        again.write_bytes(Path(files["ca_file"]).read_bytes() + (mine / "client.crt").read_bytes())
        plain.config_set("tls-ca-cert-file", str(again))
        try:
            for kind in ("normal", "pubsub"):
                plain.client_kill_filter(_type=kind, skipme=True)
            ends(producer, producer.send(note("ada", "after")), "delivered")
        finally:
            plain.config_set("tls-ca-cert-file", trusted)
