"""Web Push in the configuration: whom to talk to, as whom, with which key; and what a producer is told."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from redis import Redis

from notifier import Device, InvalidNotificationError, Notification, Notifier, SettingsError
from notifier.notification.subscription import KNOWN_HOSTS
from notifier.providers.console import ConsoleProvider
from notifier.providers.webpush.keys import load_key, public_key
from notifier.providers.webpush.provider import WebPushProvider
from notifier.settings import parse_settings
from notifier.simulators.webpush_browser import subscription
from tests.harness.vapid import make_key
from tests.unit.settings.test_loading import only
from workers.configuration.wiring import build_providers

SUBJECT = "subject: mailto:push@example.com"


@pytest.mark.parametrize(
    ("webpush", "expected"),
    [
        ("{}", "1:13: providers.webpush.subject: is missing; give a contact address"),
        ("{subject: push@example.com}", "1:32: providers.webpush.subject: is not a contact address"),
        ("{subject: mailto:push@localhost}", "1:32: providers.webpush.subject: is not a contact address"),
        ("{subject: http://example.com}", "1:32: providers.webpush.subject: is not a contact address"),
        (
            "{client: console, hosts: []}",
            "1:47: providers.webpush.hosts: must be a list such as [fcm.googleapis.com, '*.push.apple.com'], is empty",
        ),
        ("{client: console, hosts: push.example.com}", "1:47: providers.webpush.hosts: must be a list such as"),
        ("{client: console, hosts: ['*']}", "1:47: providers.webpush.hosts: '*' is not a host"),
        ("{client: console, hosts: ['https://a.b']}", "1:47: providers.webpush.hosts: 'https://a.b' is not a host"),
        ("{client: console, hosts: ['a.b:70000']}", "1:47: providers.webpush.hosts: 'a.b:70000' is not a host"),
        ("{client: console, hosts: [7]}", "1:47: providers.webpush.hosts: a number is not a host"),
        ("{apps: {shop: {}}}", "1:30: providers.webpush.apps.shop.subject: is missing"),
    ],
)
def test_what_is_wrong_is_told_at_its_place(webpush: str, expected: str) -> None:
    """A mistake under providers.webpush is one line that names the key and what would be right."""
    assert only(f"providers: {{webpush: {webpush}}}").startswith(expected)


def test_the_known_services_are_the_default() -> None:
    """Without `hosts`, the browsers' own push services; with it, those and no others; the console needs nothing."""
    webpush = parse_settings(f"providers: {{webpush: {{{SUBJECT}}}}}").providers.webpush
    assert webpush is not None
    assert webpush.hosts == KNOWN_HOSTS
    assert webpush.timeout_us == 5_000_000
    tight = f"worker: {{lease: 6s}}\nproviders: {{webpush: {{{SUBJECT}}}}}"
    assert "too short for the timeout of providers.webpush" in only(tight)


def test_the_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """NOTIFIER_WEBPUSH_KEY goes before the file; both forms of a key are taken, and nothing else."""
    text = f"providers: {{webpush: {{{SUBJECT}, key_file: key.pem}}}}"
    webpush = parse_settings(text, name=str(tmp_path / "n.yaml")).providers.webpush
    assert webpush is not None
    with pytest.raises(SettingsError, match=r"providers\.webpush\.key_file: cannot read"):
        webpush.read_secret({})
    pem = make_key()
    (tmp_path / "key.pem").write_text(pem)
    assert webpush.read_secret({}) == pem
    assert webpush.read_secret({"NOTIFIER_WEBPUSH_KEY": pem.strip().replace("\n", "\\n")}) == pem
    assert webpush.read_secret({"NOTIFIER_WEBPUSH_KEY": "q" * 43 + "\n"}) == "q" * 43
    with pytest.raises(SettingsError, match="NOTIFIER_WEBPUSH_KEY is not a private key") as caught:
        webpush.read_secret({"NOTIFIER_WEBPUSH_KEY": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_key_after_the_parameters_of_its_curve_is_taken() -> None:
    """`openssl ecparam -name prime256v1 -genkey` writes both; what the command takes, the worker takes."""
    key = load_key(make_key()).private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    given = f"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{key}"
    webpush = parse_settings(f"providers: {{webpush: {{{SUBJECT}}}}}").providers.webpush
    assert webpush is not None
    for written in (given, given.replace("\n", "\\n")):
        read = webpush.read_secret({"NOTIFIER_WEBPUSH_KEY": written})
        assert public_key(load_key(read)) == public_key(load_key(key))


def test_the_port_of_https_may_be_written_out() -> None:
    """A browser leaves it out of its endpoint: without this every subscription would be refused."""
    hosts = "hosts: ['a.example.com:443', '*.example.org:443', 'b.example.com:8443']"
    webpush = parse_settings(f"providers: {{webpush: {{{SUBJECT}, {hosts}}}}}").providers.webpush
    assert webpush is not None
    assert webpush.hosts == ("a.example.com", "*.example.org", "b.example.com:8443")
    for host in ("a.example.com", "x.example.org", "b.example.com:8443"):
        assert webpush.why_not_to(subscription(f"https://{host}", "anna"), None) is None


def test_each_app_has_its_own_key(tmp_path: Path) -> None:
    """A named app has a provider of its own under its route; what it does not give is the section's."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.pem").write_text(make_key())
    text = f"providers: {{webpush: {{{SUBJECT}, key_file: a.pem, apps: {{shop: {{key_file: b.pem}}}}}}}}"
    providers: dict[str, Any] = build_providers(parse_settings(text, name=str(tmp_path / "n.yaml")), {})
    assert {route: type(provider) for route, provider in providers.items()} == {
        "webpush": WebPushProvider,
        "webpush/shop": WebPushProvider,
    }
    shown = [provider._vapid.authorization("https://a.example.com").header for provider in providers.values()]
    assert len({header.rpartition("k=")[2] for header in shown}) == 2
    console = build_providers(parse_settings("providers: {webpush: {client: console}}"), {})
    assert isinstance(console["webpush"], ConsoleProvider)


def test_a_missing_package_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a worker says what to install; a producer does not need it."""
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in {"pywebpush", "py_vapid"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    for name in ("notifier.providers.webpush.provider", "notifier.providers.webpush.crypto"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    settings = parse_settings(f"providers: {{webpush: {{{SUBJECT}}}}}")
    with pytest.raises(SettingsError, match=r"pip install 'push-throttle\[webpush\]'"):
        build_providers(settings, {"NOTIFIER_WEBPUSH_KEY": make_key()})


def test_a_producer_is_told_of_a_strange_service(redis: Redis) -> None:
    """A subscription at a host that is not allowed is refused before anything is written; its host is named."""
    webpush = f"{{{SUBJECT}, hosts: ['*.example.com'], apps: {{shop: {{hosts: [a.b]}}}}, key_file: x}}"
    settings = parse_settings(f"providers: {{webpush: {webpush}}}\ncategories: {{default: {{lane: default}}}}")
    producer = Notifier(redis, settings)
    good = Device("webpush", subscription("https://push.example.com", "anna"))
    bad = Device("webpush", subscription("https://10.0.0.1:9200", "anna"))
    assert producer.send(Notification("7", [good], "Hello"))
    keys = redis.dbsize()
    for devices, app, key in (([good, bad], None, "hosts"), ([good], "shop", "apps.shop.hosts")):
        with pytest.raises(InvalidNotificationError, match=f"is not among providers.webpush.{key}$") as caught:
            producer.send(Notification("7", devices, "Hello", app=app))
        assert caught.value.field == f"devices[{len(devices) - 1}].token"
        assert "/push/" not in str(caught.value)
    assert redis.dbsize() == keys
