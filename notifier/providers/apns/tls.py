"""The address of Apple's server, and TLS with it: the authorities to trust, the provider's own certificate."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from notifier.errors import SettingsError
from notifier.providers.apns.settings import ApnsSettings
from notifier.settings.secret_files import read_regular

HTTPS_PORT: Final = 443
SOON: Final = dt.timedelta(days=30)


def split(endpoint: str) -> tuple[str, int, bytes]:
    parts = urlsplit(endpoint)
    return parts.hostname or "", parts.port or HTTPS_PORT, parts.netloc.encode()


def context(settings: ApnsSettings) -> ssl.SSLContext:
    cert_file, cert_key_file = settings.cert_file, settings.cert_key_file
    try:
        tls = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        _refuse("ca_file", f"cannot use {settings.ca_file}: {error}")
    tls.minimum_version = ssl.TLSVersion.TLSv1_2  # Python's own least is the host's, which may be lower
    tls.set_alpn_protocols(["h2"])
    if cert_file is not None:
        _check_certificate(cert_file, cert_key_file)
        try:
            tls.load_cert_chain(cert_file, cert_key_file)
        except OSError as error:  # what OpenSSL refuses, such as a key that is too short
            _refuse("cert_file", f"cannot use {cert_file}: {error}")
    return tls


def _check_certificate(cert_file: Path, cert_key_file: Path | None) -> None:
    """Raise SettingsError in words for people, before OpenSSL uses its own. The text never shows the key."""
    try:
        certificate = x509.load_pem_x509_certificate(read_regular(cert_file, "providers.apns.cert_file"))
    except ValueError:
        how = "openssl pkcs12 -in certificate.p12 -out certificate.pem -nodes"
        _refuse("cert_file", f"{cert_file} holds no certificate in PEM; of a .p12 make one by: {how}")
    ends = certificate.not_valid_after_utc
    if ends <= dt.datetime.now(dt.UTC):
        _refuse("cert_file", f"{cert_file} expired on {ends:%Y-%m-%d}; have Apple renew it")
    if ends <= dt.datetime.now(dt.UTC) + SOON:
        structlog.get_logger(__name__).warning("certificate_ends_soon", cert_file=str(cert_file), on=f"{ends:%Y-%m-%d}")
    key_name, key_file = ("cert_file", cert_file) if cert_key_file is None else ("cert_key_file", cert_key_file)
    try:
        key = load_pem_private_key(read_regular(key_file, f"providers.apns.{key_name}"), password=None)
    except TypeError:
        _refuse(key_name, f"the key in {key_file} has a password; take it off by: openssl pkey -in … -out …")
    except (ValueError, UnsupportedAlgorithm):
        hint = "" if cert_key_file else "; name its file as cert_key_file"
        _refuse(key_name, f"{key_file} holds no private key in PEM{hint}")
    if _public(key.public_key()) != _public(certificate.public_key()):
        _refuse(key_name, f"the key in {key_file} is not that of the certificate in {cert_file}")


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _refuse(key: str, why: str) -> NoReturn:
    # From None: a parser's own words may quote the text that it could not read.
    raise SettingsError(f"providers.apns.{key}: {why}") from None
