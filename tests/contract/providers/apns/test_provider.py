"""The APNs provider against the APNs simulator: what arrives, what is answered, what is refused here."""

import asyncio
import time
from dataclasses import replace

import pytest
import structlog.testing

from notifier.errors import SettingsError
from notifier.log import mask_text
from notifier.notification import Notification
from notifier.providers.apns.payload import payload
from notifier.providers.apns.token import ProviderToken
from notifier.providers.apns.token_store import LocalTokenStore
from notifier.providers.contract import Answer, Outcome
from notifier.simulators.certificates import make_apns_key
from notifier.simulators.wire import Reply
from tests.contract.apns_rig import KEY_ID, MINUTE_US, TEAM, TOKEN, make_provider, rig

# What arrives.


async def test_headers(identity):
    """Push type and priority follow the content, the expiry is absolute, absent without one."""
    now_s, loop = time.time(), asyncio.get_running_loop()
    async with rig(identity, client={"tokens": LocalTokenStore(lambda: now_s)}) as r:
        begun = loop.time()
        await r.send(ttl_us=90_500_000)
        took_s = loop.time() - begun
        await r.send(data={"sync": True})
        shown, silent = r.simulator.seen
        assert (shown["apns-push-type"], shown["apns-priority"]) == ("alert", "10")
        assert (silent["apns-push-type"], silent["apns-priority"]) == ("background", "5")
        assert 0 <= int(shown["apns-expiration"]) - (now_s + 90.5) <= took_s + 1
        assert "apns-expiration" not in silent
        assert "apns-collapse-id" not in silent


# What is answered.

# Apple's own table of reasons, whole; then what stands in no table.
MESSAGE = (
    "BadCollapseId", "BadDeviceToken", "BadExpirationDate", "BadMessageId", "BadPriority", "DeviceTokenNotForTopic",
    "DuplicateHeaders", "InvalidPushType", "MissingDeviceToken", "PayloadEmpty", "NeverHeardOf", "",
)  # fmt: skip
TOPIC_IS_WRONG = ("BadTopic", "MissingTopic", "TopicDisallowed")
WHO_ASKS = (
    "BadCertificate", "BadCertificateEnvironment", "BadEnvironmentKeyIdInToken", "ExpiredProviderToken",
    "InvalidProviderToken", "MissingProviderToken", "UnrelatedKeyIdInToken", "NeverHeardOf",
)  # fmt: skip


def row(outcome: Outcome, status: int, reason: str = "", wait_us: int | None = None) -> tuple[Reply, Answer]:
    return Reply(status, reason), Answer(outcome, status, "" if reason.startswith("<") else reason, wait_us)


ANSWERS = [
    *(row(Outcome.DEAD_TOKEN, 410, reason) for reason in ("Unregistered", "ExpiredToken")),
    *(row(Outcome.REJECTED, 400, reason) for reason in MESSAGE),
    row(Outcome.REJECTED, 403, "Forbidden"),
    row(Outcome.REJECTED, 413, "PayloadTooLarge"),
    row(Outcome.REJECTED, 418),
    row(Outcome.REJECTED, 410, "NeverHeardOf"),
    *(row(Outcome.FAULT, 400, reason, MINUTE_US) for reason in TOPIC_IS_WRONG),
    *(row(Outcome.FAULT, 403, reason, MINUTE_US) for reason in WHO_ASKS),
    row(Outcome.FAULT, 429, "TooManyProviderTokenUpdates", MINUTE_US),
    row(Outcome.FAULT, 404, "BadPath", MINUTE_US),
    row(Outcome.FAULT, 405, "MethodNotAllowed", MINUTE_US),
    row(Outcome.FAULT, 404, "<html>nginx</html>", MINUTE_US),
    row(Outcome.FAULT, 407, "<html>proxy</html>", MINUTE_US),
    row(Outcome.FAULT, 302, "<html>login</html>", MINUTE_US),
    row(Outcome.BUSY, 429, "TooManyRequests", MINUTE_US),
    row(Outcome.BUSY, 429, "NeverHeardOf", MINUTE_US),
    row(Outcome.RETRY, 400, "IdleTimeout", MINUTE_US),
    row(Outcome.UNKNOWN, 500, "InternalServerError", 15 * MINUTE_US),
    row(Outcome.UNKNOWN, 503, "ServiceUnavailable", 15 * MINUTE_US),
    row(Outcome.UNKNOWN, 503, "Shutdown", 15 * MINUTE_US),
    row(Outcome.UNKNOWN, 599, "NeverHeardOf", 15 * MINUTE_US),
    row(Outcome.UNKNOWN, 502, "<html><body>Bad Gateway</body></html>", 15 * MINUTE_US),
]


@pytest.mark.parametrize(("reply", "expected"), ANSWERS, ids=lambda v: f"{v.status}{v.reason[:20]}")
async def test_answers(identity, reply, expected):
    """Each status and reason has its meaning, and one that was never seen before has one too."""
    async with rig(identity, scripts={TOKEN: [reply]}) as r:
        before_us = time.time_ns() // 1000
        answer = await r.send()
        assert replace(answer, gone_at_us=None) == expected
        if expected.outcome is Outcome.DEAD_TOKEN:  # since when, by Apple's clock, which counts in milliseconds
            assert answer.gone_at_us % 1000 == 0
            assert before_us - 1000 <= answer.gone_at_us <= time.time_ns() // 1000
        else:
            assert answer.gone_at_us is None
        assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED


async def test_the_other_environment(identity):
    """A BadDeviceToken is said once, with what it may mean; a thousand of them are not a thousand warnings."""
    with structlog.testing.capture_logs() as logs:
        async with rig(identity, scripts={TOKEN: [Reply(400, "BadDeviceToken")]}) as r:
            for _ in range(5):
                assert await r.send() == Answer(Outcome.REJECTED, 400, "BadDeviceToken")
    (warning,) = [entry for entry in logs if entry["event"] == "bad_device_token"]
    assert "sandbox" in warning["hint"]
    assert TOKEN not in str(logs)


async def test_strange_key(identity, tmp_path):
    """A provider token signed with another team's key is refused, and the message is kept."""
    other = make_apns_key(tmp_path)[0].read_text()
    async with rig(identity, client={"key": other}) as r:
        answer = await r.send()
        assert (answer.outcome, answer.reason) == (Outcome.FAULT, "InvalidProviderToken")


async def test_fresh_token_called_expired(identity):
    """A new provider token that Apple calls expired is a fault of a clock: no other is made instead."""
    async with rig(identity, clock=lambda: time.time() + 7200) as r:
        answers = [await r.send() for _ in range(3)]
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.FAULT, "ExpiredProviderToken")}
        assert len({headers["authorization"] for headers in r.simulator.seen}) == 1


async def test_expired_token_is_renewed(identity):
    """A provider token of over 20 minutes that Apple calls expired is made anew once, for all who used it.

    Their messages had no part in it, and spend no attempt.
    """
    async with rig(identity) as r:
        clock = [time.time() - 70 * 60]
        store = LocalTokenStore(lambda: clock[0])
        r.provider._token = ProviderToken(team_id=TEAM, key_id=KEY_ID, key=identity.key, store=store)
        assert (await r.send()).outcome is Outcome.FAULT
        clock[0] += 25 * 60
        r.provider._token._refused_at = -1.0  # that was a while ago
        answers = await asyncio.gather(*(r.send() for _ in range(5)))
        assert {a.outcome for a in answers} - {Outcome.DELIVERED} == {Outcome.UNSENT}
        assert (await r.send()).outcome is Outcome.DELIVERED
        assert len({headers["authorization"] for headers in r.simulator.seen}) == 2


# What is refused here.


def test_payload_bytes():
    """The payload is compact UTF-8, shown content under aps and custom data beside it."""
    shown = Notification(user="u", devices=[], title="ü", badge=0, data={"a": 1})
    assert payload(shown) == '{"aps":{"alert":{"title":"ü"},"badge":0},"a":1}'.encode()
    assert payload(Notification(user="u", devices=[], data={"a": 1})) == b'{"aps":{"content-available":1},"a":1}'


@pytest.mark.parametrize(
    "options",
    [
        {"key": "-----BEGIN PRIVATE KEY-----\nMIGHAgEAsecret\n-----END PRIVATE KEY-----"},
        {"key": "secret"},
        {"endpoint": "http://api.push.apple.com"},
        {"endpoint": "https://host:port"},
        {"endpoint": "https://user:secret@host/path"},
    ],
)
def test_settings(identity, options):
    """What cannot be used is refused when the provider is built, with a text that never shows the key.

    The log masks nothing of it: what would be right can be read there too.
    """
    settings = {"endpoint": "https://127.0.0.1:1", **options}
    with pytest.raises(SettingsError) as caught:
        make_provider(identity, **settings)
    assert "providers.apns." in str(caught.value)
    assert "MIGHAgEA" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert mask_text(str(caught.value)) == str(caught.value)


def test_missing_authority(identity, tmp_path):
    """A file of authorities that is not there is an error of the settings."""
    with pytest.raises(SettingsError, match="ca_file"):
        make_provider(identity, "https://127.0.0.1:1", ca_file=tmp_path / "none.pem")
