"""Throw-away certificates and keys, so that the simulators speak real TLS and check real signatures."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES: Final = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)
OTHER_NAMES: Final = (x509.DNSName("somebody-else.invalid"),)
VALID_FOR: Final = dt.timedelta(days=30)
# Machines that talk over loopback share a clock, but a clock may be set back while a certificate is in use.
VALID_BEFORE: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of one authority and of the server certificates it signed for one key, all PEM.

    wrong_name_file: a certificate for another host.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    wrong_name_file: Path


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and its certificates for localhost, 127.0.0.1 and ::1, and for a wrong name."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("push-throttle simulator authority")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "wrong-name.pem")
    write_whole(files.ca_file, ca.public_bytes(Encoding.PEM))
    for path, names in ((files.cert_file, NAMES), (files.wrong_name_file, OTHER_NAMES)):
        cert = (
            _builder(_name("localhost"), ca_name, key.public_key(), ca_key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        write_whole(path, cert.public_bytes(Encoding.PEM))
    _write_key(files.key_file, key)
    return files


def make_apns_key(folder: Path, key_id: str = "SIMULATED1") -> tuple[Path, str]:
    """Write a new provider key as Apple hands it out (P-256, PKCS #8); return its path and its public PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = folder / f"AuthKey_{key_id}.p8"
    _write_key(path, key)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return path, public.decode("ascii")


def make_webpush_key(folder: Path) -> tuple[Path, str]:
    """Write a new key of a web push sender; return its path and its public half in base64url, as a page needs it."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = folder / "webpush.pem"
    _write_key(path, key)
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return path, urlsafe_b64encode(public).rstrip(b"=").decode()


def make_secret(folder: Path, name: str) -> Path:
    """Write a new secret, one line of text, into a file of the folder; return its path."""
    path = folder / name
    write_whole(path, secrets.token_urlsafe(32).encode(), mode=0o600)
    return path


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file in one step: a worker that reads it meanwhile finds the whole old or the whole new content."""
    beside = path.with_name(path.name + ".new")
    beside.touch(mode=mode)
    beside.write_bytes(data)
    beside.replace(path)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    write_whole(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    # Both key identifiers: Python 3.13 verifies strictly and refuses a chain without them.
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID_BEFORE)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
