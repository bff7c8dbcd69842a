"""Who is at the other end, and who we are: TLS in both directions, and the errors a person gets for a wrong file."""

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from notifier.errors import SettingsError
from notifier.providers.contract import Outcome
from notifier.settings import parse_settings
from notifier.simulators.certificates import Certificates
from tests.contract.apns_rig import TOPIC, Identity, dispatch, make_provider, rig
from workers.configuration.wiring import build_providers

DAY = dt.timedelta(days=1)
LOCAL = "127.0.0.1"


@dataclass
class Authority:
    """An authority that signs what a test asks for."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        self.file = self.folder / "ca.pem"
        others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        signs = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
        made = (
            self._build(self._name, self._key, 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            # Python 3.13 verifies strictly: an authority says that it signs certificates.
            .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **signs), critical=True)
        )
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def certificate(
        self, purpose: Any, *, name: str = "localhost", valid_for: dt.timedelta = 90 * DAY, key: Any = None
    ) -> tuple[Path, Path]:
        """The files of a certificate and of its key."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(LOCAL))] if name == "localhost" else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Apple Push Services: com.example.app")])
        made = (
            self._build(subject, key, valid_for)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *addresses]), critical=False)
        )
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert_file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return cert_file, key_file

    def _build(self, subject: x509.Name, key: Any, valid_for: dt.timedelta) -> Any:
        now = dt.datetime.now(dt.UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + valid_for)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
        )


@pytest.fixture
def ours(tmp_path: Path) -> tuple[Authority, Path, Path]:
    """An authority, and a provider's certificate with its key that it signed."""
    authority = Authority(tmp_path / "ours")
    return authority, *authority.certificate(ExtendedKeyUsageOID.CLIENT_AUTH)


def by_certificate(cert_file: Path, key_file: Path | None = None) -> dict[str, Any]:
    return {"team_id": "", "key_id": "", "key": "", "cert_file": cert_file, "cert_key_file": key_file}


# Who we are.


async def test_certificate_in_place_of_a_token(identity, ours):
    """With a certificate there is no authorization header, and many streams may be opened from the start."""
    authority, cert_file, key_file = ours
    client = by_certificate(cert_file, key_file)
    async with rig(identity, client=client, client_ca_file=authority.file, latency_ms=50) as r:
        answers = await asyncio.gather(*(r.send() for _ in range(20)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert not any("authorization" in headers for headers in r.simulator.seen)
        assert r.simulator.peak_streams == 20
        assert r.simulator.streams_refused == 0
        assert r.simulator.connections_opened == 1


async def test_from_the_configuration(identity, ours):
    """`cert_file` in the YAML is what a worker signs in with; no key is asked for, whatever the environment holds."""
    authority, cert_file, key_file = ours
    async with rig(identity, client_ca_file=authority.file) as r:
        section = {
            "topic": TOPIC,
            "cert_file": str(cert_file),
            "cert_key_file": str(key_file),
            "endpoint": r.simulator.url,
            "ca_file": str(identity.certificates.ca_file),
        }
        settings = parse_settings(json.dumps({"providers": {"apns": section}}))
        provider = build_providers(settings, {"NOTIFIER_APNS_KEY": "not looked at"})["apns"]
        assert (await provider.send(dispatch())).outcome is Outcome.DELIVERED
        await provider.close()


async def test_certificate_and_key_in_one_file(identity, ours):
    """The certificate's file may contain its key, as `openssl pkcs12` writes it."""
    authority, cert_file, key_file = ours
    both = cert_file.with_name("both.pem")
    both.write_bytes(cert_file.read_bytes() + key_file.read_bytes())
    async with rig(identity, client=by_certificate(both), client_ca_file=authority.file) as r:
        assert (await r.send()).outcome is Outcome.DELIVERED


async def test_what_needs_a_token(identity, ours):
    """Live Activities and location queries go by token alone: under a certificate none of them reaches Apple."""
    authority, cert_file, key_file = ours
    live = {"push_type": "liveactivity", "event": "update", "timestamp": 1_790_000_000, "content_state": {}}
    client = by_certificate(cert_file, key_file)
    async with rig(identity, client=client, client_ca_file=authority.file) as r:
        for apns in (live, {"push_type": "location"}):
            answer = await r.send(apns=apns)
            assert (answer.outcome, answer.status) == (Outcome.REJECTED, None)
            assert "needs a provider token" in answer.reason
        assert (await r.send(title="t", apns={"thread_id": "t"})).outcome is Outcome.DELIVERED


@pytest.mark.parametrize("who", ["nobody", "stranger"])
async def test_refused_by_the_server(identity, ours, tmp_path, who):
    """A server that does not take our certificate, or gets none, is said so in the log, once; nothing is lost."""
    authority, *_ = ours
    stranger = Authority(tmp_path / "stranger").certificate(ExtendedKeyUsageOID.CLIENT_AUTH)
    client = by_certificate(*stranger) if who == "stranger" else {}
    with structlog.testing.capture_logs() as logs:
        async with rig(identity, client=client, client_ca_file=authority.file) as r:
            for _ in range(3):
                answer = await r.send()
                # TLS 1.3 tells a client of this only after the client may have sent.
                assert answer.outcome in {Outcome.UNSENT, Outcome.UNKNOWN}
                r.provider._channel._not_before = 0.0
            assert r.log.arrivals == []
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["provider_unreachable"]
    # The alert itself is lost where the reset overtakes it.
    assert warnings[0]["why"].startswith("ended before it answered anything: "), warnings


def refused_settings(identity: Identity, **options: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        make_provider(identity, "https://127.0.0.1:1", **options)
    assert "PRIVATE KEY" not in str(caught.value)
    assert "MIG" not in str(caught.value)
    return str(caught.value)


def test_wrong_files(identity, ours, tmp_path):
    """Each file that cannot be used is refused at the start, with its key, its path and what would be right."""
    authority, cert_file, key_file = ours
    other = Authority(tmp_path / "other").certificate(ExtendedKeyUsageOID.CLIENT_AUTH)[1]
    expired, expired_key = authority.certificate(ExtendedKeyUsageOID.CLIENT_AUTH, name="old", valid_for=-DAY)
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    weak, weak_key = authority.certificate(ExtendedKeyUsageOID.CLIENT_AUTH, name="weak", key=short)
    locked = tmp_path / "locked.key"
    key = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")))
    p12 = tmp_path / "cert.p12"
    p12.write_bytes(b"0\x82\x0b\xad")
    cases = [
        ((tmp_path / "none.pem", None), ["providers.apns.cert_file: cannot read", "none.pem", "No such file"]),
        ((p12, None), ["providers.apns.cert_file:", "no certificate in PEM", "openssl pkcs12"]),
        ((cert_file, None), ["providers.apns.cert_file:", "no private key in PEM", "cert_key_file"]),
        ((cert_file, tmp_path / "none.key"), ["providers.apns.cert_key_file: cannot read", "No such file"]),
        ((cert_file, cert_file), ["providers.apns.cert_key_file:", "no private key in PEM"]),
        ((cert_file, other), ["providers.apns.cert_key_file:", "is not that of the certificate in"]),
        ((cert_file, locked), ["providers.apns.cert_key_file:", "has a password"]),
        ((expired, expired_key), ["providers.apns.cert_file:", "expired on"]),
        ((weak, weak_key), ["providers.apns.cert_file: cannot use", "weak.pem: ", "EE_KEY_TOO_SMALL"]),
    ]
    for files, words in cases:
        text = refused_settings(identity, **by_certificate(*files))
        assert all(word in text for word in words), text
    make_provider(identity, "https://127.0.0.1:1", **by_certificate(cert_file, key_file))


def test_a_certificate_that_ends_soon(identity, tmp_path):
    """A certificate with less than 30 days to go is used, and said at each start; a younger one is not spoken of."""
    authority = Authority(tmp_path / "soon")
    for days, said in ((29, ["certificate_ends_soon"]), (60, [])):
        files = authority.certificate(ExtendedKeyUsageOID.CLIENT_AUTH, valid_for=days * DAY)
        with structlog.testing.capture_logs() as logs:
            make_provider(identity, "https://127.0.0.1:1", **by_certificate(*files))
        assert [entry["event"] for entry in logs] == said
        assert all(entry["cert_file"] == str(files[0]) and entry["on"] > "2" for entry in logs)


# Who is at the other end.


def served(identity: Identity, files: tuple[Path, Path], authority: Authority) -> Identity:
    """An identity whose server shows another certificate."""
    return Identity(Certificates(authority.file, *files, files[0]), identity.key, identity.public)


async def test_untrusted(identity, tmp_path):
    """A server that an authority of ours did not sign for gets nothing, and that is said once."""
    strange = Authority(tmp_path / "strange").file
    await assert_refused(identity, {"ca_file": strange}, "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"name": "api.push.example"}, "IP address mismatch"), ({"valid_for": -DAY}, "certificate has expired")],
)
async def test_wrong_name_or_expired(identity, tmp_path, wrong, why):
    """A server's certificate for another host than the one that was asked for, or that has expired, is refused."""
    authority = Authority(tmp_path / "ca")
    files = authority.certificate(ExtendedKeyUsageOID.SERVER_AUTH, **wrong)
    await assert_refused(served(identity, files, authority), {}, why)


async def assert_refused(identity: Identity, client: dict[str, Any], word: str) -> None:
    """Send thrice to a server that must not be trusted. word: in the one warning."""
    with structlog.testing.capture_logs() as logs:
        async with rig(identity, client=client) as r:
            for _ in range(3):
                answer = await r.send()
                assert answer.outcome is Outcome.UNSENT
                assert answer.retry_after_us
                r.provider._channel._not_before = 0.0
            assert r.log.arrivals == []
            assert r.simulator.seen == []
    warnings = [entry for entry in logs if entry["log_level"] in {"warning", "error"}]
    assert [entry["event"] for entry in warnings] == ["provider_unreachable"]
    assert word in warnings[0]["why"], warnings[0]
    assert warnings[0]["host"] == LOCAL


async def test_old_tls(identity):
    """TLS before 1.2 is not spoken, as Apple does not."""
    provider = make_provider(identity, "https://127.0.0.1:1")
    assert provider._channel._tls.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert provider._channel._tls.check_hostname
    assert provider._channel._tls.verify_mode is ssl.CERT_REQUIRED
    await provider.close()
