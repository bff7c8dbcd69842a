"""What no request can carry: a message's own fault ends that message, the configuration's is refused where it enters.

Neither is taken for a provider that broke, so no attempt and no permit is spent on what never left.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.token_store import LocalTokenStore
from notifier.providers.contract import Dispatch, Outcome, Provider
from notifier.providers.fcm.provider import FcmProvider
from notifier.providers.webpush.provider import WebPushProvider
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from notifier.simulators.fcm import make_service_account
from notifier.simulators.webpush_browser import subscription
from tests.harness.sections import section
from tests.harness.support import KEY_ID, TEAM_ID, TOPIC
from tests.harness.vapid import make_key
from tests.hostile.servers import H1Peer, H2Peer, HostileServer, serve_http1_well, serve_http2_well

HALF = "\ud800"  # of a surrogate pair
LONG = 10**5000  # more digits than Python writes
PLATFORMS = ("apns", "fcm", "webpush")


class Setting:
    """Certificates, keys and accounts, and the providers made of them."""

    def __init__(self, folder: Path) -> None:
        self.certificates: Certificates = make_certificates(folder)
        self.key = make_apns_key(folder, KEY_ID)[0].read_text()
        self.account: dict[str, str] = json.loads(
            make_service_account(folder, "https://127.0.0.1:1/token", "p").read_text()
        )

    def provider(self, platform: str, url: str, **options: Any) -> Provider:
        keys: dict[str, Any] = {"ca_file": self.certificates.ca_file}
        if platform == "apns":
            keys |= {"team_id": TEAM_ID, "key_id": KEY_ID, "topic": TOPIC, "endpoint": url}
            tokens = options.pop("tokens", None)
            return ApnsProvider(section("apns", **(keys | options)), key_id=KEY_ID, key=self.key, tokens=tokens)
        if platform == "fcm":
            account = {**self.account, "token_uri": f"{url}/token", **options.pop("account", {})}
            return FcmProvider(section("fcm", **(keys | {"endpoint": url} | options)), account)
        keys |= {"subject": "mailto:a@example.com", "hosts": [url.removeprefix("https://")]}
        return WebPushProvider(section("webpush", **keys), make_key())

    def server(self, platform: str) -> HostileServer:
        well, peer = (serve_http2_well, H2Peer) if platform == "apns" else (serve_http1_well, H1Peer)
        return HostileServer(self.certificates, well, well, peer)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("unsendable"))


def device(platform: str, url: str) -> Device:
    tokens = {"apns": "ab" * 32, "fcm": "fcm-registration-1", "webpush": subscription(url, "browser")}
    return Device(platform, tokens[platform])


def dispatch(to: Device, job_id: str = "job", **fields: Any) -> Dispatch:
    notification = Notification(user="u", devices=[to], **({"title": "Hello"} | fields))
    return Dispatch(job_id, to, notification, None, asyncio.get_running_loop().time() + 30)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("title", {"title": HALF}),
    ("body", {"body": f"Hello {HALF}"}),
    ("data.a[0]", {"data": {"a": [HALF]}}),
    ("data", {"data": {HALF: 1}}),
    ("data.a", {"data": {"a": LONG}}),
    ("badge", {"badge": LONG}),
]
OWN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "apns": [
        ("sound", {"sound": HALF}),
        ("apns.thread_id", {"apns": {"thread_id": HALF}}),
        ("apns.loc_args[1]", {"apns": {"loc_args": ["a", HALF]}}),
    ],
    "fcm": [
        ("fcm.apns.payload.aps.x", {"fcm": {"apns": {"payload": {"aps": {"x": HALF}}}}}),
        ("fcm.apns.payload.x", {"fcm": {"apns": {"payload": {"x": LONG}}}}),
        ("fcm.apns.headers", {"fcm": {"apns": {"headers": {HALF: "a"}}}}),
        ("fcm.android.notification.title", {"fcm": {"android": {"notification": {"title": HALF}}}}),
        ("fcm.webpush.notification.title", {"fcm": {"webpush": {"notification": {"title": HALF}}}}),
    ],
    "webpush": [
        ("sound", {"sound": HALF}),
        ("webpush.tag", {"webpush": {"tag": HALF}}),
        ("webpush.timestamp", {"webpush": {"timestamp": LONG}}),
    ],
}
CASES = [(platform, field, fields) for platform in PLATFORMS for field, fields in [*WRONG, *OWN[platform]]]


@pytest.mark.parametrize(("platform", "field", "fields"), CASES, ids=[f"{by}-{field}" for by, field, _ in CASES])
async def test_a_field_that_no_request_can_carry_ends_its_message(
    setting: Setting, platform: str, field: str, fields: dict[str, Any]
) -> None:
    """It is refused by name where it enters; written past that, it is rejected alone, and not a byte of it leaves."""
    with setting.server(platform) as server:
        to = device(platform, server.url)
        provider = setting.provider(platform, server.url)
        bad, good = await provider.send(dispatch(to, **fields)), await provider.send(dispatch(to, "next"))
        await provider.close()
        assert sum(server.arrived.values()) - server.arrived[""] == 1
    assert (bad.outcome, bad.status, bad.reason[:20]) == (Outcome.REJECTED, None, "InvalidNotification:")
    assert good.outcome is Outcome.DELIVERED
    with pytest.raises(InvalidNotificationError) as caught:
        Notification(
            **{"user": "u", "devices": [device(platform, "https://a.example")], "title": "t", **fields}
        ).validate()
    assert caught.value.field == field


@pytest.mark.parametrize("token", [HALF * 64, "ab" * 32 + "\r\nx: y", "ж" * 64, ""])
@pytest.mark.parametrize("platform", ["apns", "webpush"])
async def test_a_token_that_no_request_can_carry_ends_its_message(setting: Setting, platform: str, token: str) -> None:
    """A token goes into a path: with a line break or a letter of another alphabet in it nothing is sent."""
    with setting.server(platform) as server:
        provider = setting.provider(platform, server.url)
        bad = await provider.send(dispatch(Device(platform, token)))
        good = await provider.send(dispatch(device(platform, server.url), "next"))
        await provider.close()
        assert server.connections == 1
    assert (bad.outcome, good.outcome) == (Outcome.REJECTED, Outcome.DELIVERED)


async def test_half_a_pair_in_a_token_of_fcm_ends_its_message(setting: Setting) -> None:
    """FCM's tokens travel in JSON, where anything may stand but what is no Unicode."""
    provider = setting.provider("fcm", "https://127.0.0.1:1")
    answer = await provider.send(dispatch(Device("fcm", HALF * 20)))
    await provider.close()
    assert answer.outcome is Outcome.REJECTED


@pytest.mark.parametrize("job_id", ["job-\udcff", "job\r\nx: y"])
@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_job_may_have_any_id(setting: Setting, platform: str, job_id: str) -> None:
    """The id of a plain producer's job is bytes; it is in no request as it is, so its message is delivered."""
    with setting.server(platform) as server:
        provider = setting.provider(platform, server.url)
        answer = await provider.send(dispatch(device(platform, server.url), job_id))
        await provider.close()
    assert answer.outcome is Outcome.DELIVERED


SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("apns", "topic", {"topic": "com.example\r\nx: y"}),
    ("apns", "endpoint", {"endpoint": "https://a.example\r\nx: y"}),
    ("fcm", "endpoint", {"endpoint": "https://a.example\r\nx: y"}),
    ("fcm", "endpoint", {"endpoint": "https://a.example x"}),
    ("fcm", "project_id", {"account": {"project_id": "p HTTP/1.1\r\nx: y"}}),
    ("fcm", "project_id", {"account": {"project_id": "../p"}}),
    ("fcm", "token_uri", {"account": {"token_uri": "https://a.example/\r\nx: y"}}),
]


@pytest.mark.parametrize(("platform", "key", "options"), SETTINGS)
def test_a_setting_that_no_request_can_carry_is_refused(
    setting: Setting, platform: str, key: str, options: dict[str, Any]
) -> None:
    """It is named when the provider is made: no message is the first to find it out."""
    with pytest.raises(SettingsError, match=key):
        setting.provider(platform, "https://127.0.0.1:1", **options)


def test_an_app_with_a_topic_that_no_header_can_carry_is_refused(setting: Setting) -> None:
    """The same where several apps share a connection."""
    with pytest.raises(SettingsError, match="topic"):
        setting.provider("apns", "https://127.0.0.1:1", apps={"driver": {"topic": "com.example\nx: y"}})


async def test_a_stored_provider_token_with_a_line_break_is_replaced(setting: Setting) -> None:
    """What stands in the store is used only as one header's value; another is signed in its place."""
    store = LocalTokenStore()
    with setting.server("apns") as server:
        provider = setting.provider("apns", server.url, tokens=store)
        assert isinstance(provider, ApnsProvider)
        assert provider._token is not None
        name, nonce = provider._token._name, bytes(12)
        sealed = nonce + provider._token._seal.encrypt(nonce, b"bearer a\r\nx: y", name.encode())
        await store.offer(name, b"", sealed, (await store.look(name)).now_us)
        answer = await provider.send(dispatch(device("apns", server.url)))
        assert b"\n" not in provider._token.current()
        await provider.close()
    assert answer.outcome is Outcome.DELIVERED
