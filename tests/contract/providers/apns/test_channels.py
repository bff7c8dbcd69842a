"""Broadcast channels over real HTTP/2: made, sent to and deleted; the server checks what Apple's pages say."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from notifier.errors import ChannelError, InvalidNotificationError, RedisUnusableError, SettingsError
from notifier.notification import Device, Notification
from notifier.providers import check_payload
from notifier.providers.apns.broadcast import BroadcastChannel
from notifier.providers.apns.channels import ENDPOINTS, ChannelServer
from notifier.providers.apns.provider import apns_id
from notifier.providers.apns.settings import ApnsSettings
from notifier.providers.apns.token import STORE_TIMEOUT_S
from notifier.providers.apns.token_store import Kept, LocalTokenStore, TokenStoreError
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport.http2.requests import Response
from notifier.simulators.apns import ApnsChannelsSimulator
from notifier.simulators.wire import Reply
from tests.contract.apns_rig import KEY_ID, TEAM, TOPIC, Identity, Rig, dispatch, rig
from tests.harness.patient_loop import skip

ID = "dHN0LXNyY2gtY2hubA=="
UPDATE: dict[str, Any] = {
    "push_type": "liveactivity",
    "event": "update",
    "timestamp": 1_685_952_000,
    "content_state": {"score": 1},
}


@dataclass
class Both:
    """The two hosts, and who speaks to them."""

    rig: Rig
    manage: ApnsChannelsSimulator
    server: ChannelServer

    async def send(self, channel_id: str, **more: Any) -> Answer:
        options = UPDATE | more.pop("apns", {})
        made = dispatch(apns=options, **more)
        return await self.rig.provider.send(replace(made, device=Device("apns", f"channel:{channel_id}")))

    @property
    def headers(self) -> dict[str, str]:
        """Of the last message."""
        return self.rig.simulator.seen[-1]


def settings_of(identity: Identity, **given: Any) -> ApnsSettings:
    sign_in = {"team_id": TEAM, "key_id": KEY_ID, "topic": TOPIC, "ca_file": str(identity.certificates.ca_file)}
    return ApnsSettings(**{**sign_in, **given})


@contextlib.asynccontextmanager
async def both(identity: Identity) -> AsyncIterator[Both]:
    async with rig(identity) as made:
        manage = ApnsChannelsSimulator(made.simulator, certificates=identity.certificates, log=made.log)
        await manage.start()
        of = settings_of(identity, endpoint=made.simulator.url, channels_endpoint=manage.url)
        server = ChannelServer(of, None, {"NOTIFIER_APNS_KEY": identity.key}, LocalTokenStore())
        try:
            yield Both(made, manage, server)
        finally:
            await server.close()
            await manage.close()


async def test_create_send_delete(identity: Identity) -> None:
    """A channel's whole life: it is listed and read as it was made, takes messages, and none once it is deleted."""
    async with both(identity) as s:
        channel_id, storing = await s.server.create(stores=False), await s.server.create(stores=True)
        assert await s.server.list() == [channel_id, storing]
        assert await s.server.read(storing) == BroadcastChannel(storing, stores=True)
        assert await s.server.read(channel_id) == BroadcastChannel(channel_id, stores=False)
        assert (await s.send(channel_id)).outcome is Outcome.DELIVERED
        await s.server.delete(channel_id)
        assert await s.server.list() == [storing]
        answer = await s.send(channel_id)
        assert (answer.outcome, answer.reason) == (Outcome.DEAD_TOKEN, "ChannelNotRegistered")
        arrived = s.rig.log.arrivals
        assert [(each.token, each.status, each.app) for each in arrived] == [
            (f"channel:{channel_id}", 200, TOPIC),
            (f"channel:{channel_id}", 400, TOPIC),
        ]


async def test_what_is_on_the_wire(identity: Identity) -> None:
    """Apple's headers and no topic; an expiration of 0, unless the message says that the channel stores."""
    async with both(identity) as s:
        channel_id, storing = await s.server.create(stores=False), await s.server.create(stores=True)
        assert (await s.send(channel_id, job_id="one", ttl_us=60_000_000)).outcome is Outcome.DELIVERED
        sent = {name: value for name, value in s.headers.items() if name not in {"authorization", ":authority"}}
        assert sent == {
            ":method": "POST",
            ":scheme": "https",
            ":path": f"/4/broadcasts/apps/{TOPIC}",
            "apns-channel-id": channel_id,
            "apns-push-type": "liveactivity",
            "apns-priority": "10",
            "apns-expiration": "0",
            "apns-request-id": apns_id("one", f"channel:{channel_id}"),
        }
        assert json.loads(s.rig.simulator.bodies[-1])["aps"]["content-state"] == {"score": 1}
        begun = time.time()
        assert (await s.send(storing, apns={"store": True}, ttl_us=60_000_000)).outcome is Outcome.DELIVERED
        assert math.floor(begun + 60) <= int(s.headers["apns-expiration"]) <= time.time() + 61
        assert (await s.send(storing, apns={"store": True, "priority": 5})).outcome is Outcome.DELIVERED
        assert int(s.headers["apns-expiration"]) >= math.floor(begun + 8 * 3600)
        refused = await s.send(channel_id, apns={"store": True})
        assert (refused.outcome, refused.reason) == (Outcome.REJECTED, "BadExpirationDate")


@pytest.mark.parametrize(
    ("reply", "outcome", "wait_us"),
    [
        (Reply(429, "TooManyRequests"), Outcome.BUSY, 60_000_000),
        (Reply(400, "FeatureNotEnabled"), Outcome.REFUSED, 60_000_000),
        (Reply(403, "TopicMismatch"), Outcome.FAULT, 60_000_000),
        (Reply(503, "Shutdown"), Outcome.UNKNOWN, 900_000_000),
        (Reply(400, "BadChannelId"), Outcome.REJECTED, None),
    ],
)
async def test_answers(identity: Identity, reply: Reply, outcome: Outcome, wait_us: int | None) -> None:
    """What Apple says of a channel; that broadcasts are not enabled holds up nothing but broadcasts."""
    async with both(identity) as s:
        channel_id = await s.server.create(stores=False)
        s.rig.simulator.playback.rewrite(f"channel:{channel_id}", [reply])
        answer = await s.send(channel_id)
        assert (answer.outcome, answer.reason, answer.retry_after_us) == (outcome, reply.reason, wait_us)
        assert bool(answer.help) == (reply.reason == "FeatureNotEnabled")


async def test_what_apple_refuses_of_channels(identity: Identity) -> None:
    """Each refusal is a ChannelError with Apple's word; the next call goes on."""
    async with both(identity) as s:
        channels = s.rig.simulator.channels
        for channel_id, reason in (("not base64!", "BadChannelId"), (ID, "ChannelNotRegistered")):
            for ask in (s.server.read, s.server.delete):
                with pytest.raises(ChannelError, match=rf"APNs answered 400 {reason}") as caught:
                    await ask(channel_id)
                assert (caught.value.status, caught.value.reason) == (400, reason)
        channels.max_channels = 1
        await s.server.create(stores=True)
        with pytest.raises(ChannelError, match="400 CannotCreateChannelConfig: the app has all the channels"):
            await s.server.create(stores=True)
        channels.without_feature.add(TOPIC)
        with pytest.raises(ChannelError, match="FeatureNotEnabled: enable Broadcast Capability"):
            await s.server.list()
        channels.without_feature.clear()
        s.rig.simulator.expire_tokens()
        with pytest.raises(ChannelError, match="403 ExpiredProviderToken"):
            await s.server.list()


class Away(LocalTokenStore):
    """A store of tokens that does not answer."""

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        raise TokenStoreError(name, seen, sealed, made_us)


class Slow(LocalTokenStore):
    """A Redis, or the way to it, that has much to do: it answers when a send would not wait for it any more."""

    async def look(self, name: str) -> Kept:
        skip(STORE_TIMEOUT_S + 0.1)
        await asyncio.sleep(0.01)
        return await super().look(name)


async def test_a_slow_redis_is_waited_for(identity: Identity) -> None:
    """Nobody repeats a call that makes a channel, and no send waits for it: it waits as long as it would for Apple."""
    async with both(identity) as s:
        of = settings_of(identity, endpoint=s.rig.simulator.url, channels_endpoint=s.manage.url)
        server = ChannelServer(of, None, {"NOTIFIER_APNS_KEY": identity.key}, Slow())
        assert await server.list() == []
        await server.close()


async def test_without_the_teams_token_apple_is_not_asked(identity: Identity) -> None:
    """A token of one's own would be one too many for Apple: it is Redis that cannot be used."""
    async with both(identity) as s:
        of = settings_of(identity, endpoint=s.rig.simulator.url, channels_endpoint=s.manage.url)
        server = ChannelServer(of, None, {"NOTIFIER_APNS_KEY": identity.key}, Away())
        with pytest.raises(RedisUnusableError, match="does not give the team's provider token"):
            await server.list()
        await server.close()
        assert s.manage.connections_opened == 0


async def test_ten_thousand_are_listed(identity: Identity) -> None:
    """All that an app may have, in one answer of some hundred kilobytes."""
    async with both(identity) as s:
        made = {f"{n:08}{'A' * 24}==": False for n in range(10_000)}
        s.rig.simulator.channels.made[TOPIC] = made
        assert await s.server.list() == [*made]


@pytest.mark.parametrize("body", [b"<html>", b'{"message-storage-policy": "1"}', b'{"channels": [null, {"a": 1}]}'])
async def test_an_answer_that_says_nothing_is_an_error(identity: Identity, body: bytes) -> None:
    """A proxy's page, say: no channel is made up, and none is said to keep nothing."""
    async with both(identity) as s:

        async def ask(*_: object, **__: object) -> Response:
            return Response(200, {}, body)

        s.server._ask = ask  # type: ignore[method-assign]
        with pytest.raises(ChannelError, match="NoChannel"):
            await s.server.read("abc=")
        with pytest.raises(ChannelError, match="NoChannels"):
            await s.server.list()
        with pytest.raises(ChannelError, match="NoChannelId"):
            await s.server.create(stores=False)


async def test_a_server_that_is_not_there(identity: Identity) -> None:
    """A ChannelError that says so, within the timeout."""
    async with both(identity) as s:
        await s.manage.close()
        with pytest.raises(ChannelError, match="APNs did not answer: Unreachable"):
            await s.server.create(stores=False)


async def test_the_two_hosts_are_told_apart(identity: Identity) -> None:
    """Neither does the other's work; what Apple's pages call missing or wrong is named with their words."""
    wrong: list[tuple[dict[str, str], bytes, str]] = [
        ({":path": "/3/device/ab"}, b"{}", "404 BadPath"),
        ({":path": f"/1/apps/{TOPIC}/other"}, b"{}", "404 BadPath"),
        ({":method": "PUT"}, b"{}", "405 MethodNotAllowed"),
        ({":path": "/1/apps/com.example.other/channels"}, b"{}", "403 TopicMismatch"),
        ({":path": f"/1/apps/{TOPIC}.push-type.liveactivity/channels"}, b"{}", "400 TopicDisallowed"),
        ({"apns-request-id": "1"}, b"{}", "400 BadMessageId"),
        ({"authorization": ""}, b"{}", "403 MissingProviderToken"),
        ({}, b"", "400 PayloadEmpty"),
        ({}, b"[", "400 BadRequestPayload"),
        ({}, b'{"message-storage-policy": 2, "push-type": "LiveActivity"}', "400 BadRequestParams"),
        ({}, b'{"message-storage-policy": 1, "push-type": "LiveActivity", "x": 1}', "400 BadRequestParams"),
        ({}, b'{"message-storage-policy": 1}', "400 MissingPushType"),
        ({}, b'{"message-storage-policy": 1, "push-type": "alert"}', "400 InvalidPushType"),
        ({":method": "GET"}, b"", "400 MissingChannelId"),
    ]
    async with both(identity) as s:
        await s.server.list()
        right = {
            ":method": "POST",
            ":path": f"/1/apps/{TOPIC}/channels",
            "authorization": s.server._token.current().decode(),
        }
        for given, body, told in wrong:
            reply, _ = s.manage.receive({**right, **given}, body)
            assert f"{reply.status} {reply.reason}" == told, given or body
        reply, _ = s.rig.simulator.receive(right, b"{}")
        assert (reply.status, reply.reason) == (404, "BadPath")


def test_what_a_channel_cannot_be_sent_is_refused_at_enqueue() -> None:
    """Anything but the update or end of a Live Activity, an id that is none, and more than Apple takes there."""

    def check(token: str = f"channel:{ID}", **apns: Any) -> None:
        note = Notification(user="u", devices=[Device("apns", token)], apns={**UPDATE, **apns})
        note.validate()
        check_payload(note)

    check()
    check(event="end")
    check(content_state={"text": "x" * 4800})
    for wrong, field in (
        ({"event": "start", "attributes_type": "A", "attributes": {}}, r"apns\.event"),
        ({"token": "channel:no id"}, r"devices\[0\]\.token"),
        ({"token": "channel:"}, r"devices\[0\]\.token"),
        ({"content_state": {"text": "x" * 5100}}, "body"),
    ):
        with pytest.raises(InvalidNotificationError, match=field):
            check(**wrong)  # type: ignore[arg-type]
    alert = Notification(user="u", devices=[Device("apns", f"channel:{ID}")], title="Hello")
    with pytest.raises(InvalidNotificationError, match=r"apns\.push_type: must be liveactivity"):
        check_payload(alert)


def test_a_token_of_another_platform_is_no_channel() -> None:
    """However it begins; and to a channel beside another platform's device goes as much as to a channel alone."""
    other = Device("fcm", f"channel:{'x' * 140}")
    check_payload(Notification(user="u", devices=[Device("apns", "ab" * 32), other], title="Hello"))
    apns = {**UPDATE, "content_state": {"text": "x" * 4800}}
    devices = [Device("apns", f"channel:{ID}"), Device("fcm", "x" * 140)]
    check_payload(Notification(user="u", devices=devices, title="Hello", apns=apns))


def test_where_channels_are_made(identity: Identity) -> None:
    """Apple's two hosts follow from `endpoint`; of another server the address is to be given."""
    assert ENDPOINTS == {
        "https://api.push.apple.com": "https://api-manage-broadcast.push.apple.com:2196",
        "https://api.sandbox.push.apple.com": "https://api-manage-broadcast.sandbox.push.apple.com:2195",
    }
    environ, store = {"NOTIFIER_APNS_KEY": identity.key}, LocalTokenStore()
    ChannelServer(settings_of(identity, endpoint="sandbox"), None, environ, store)
    with pytest.raises(SettingsError, match=r"providers\.apns\.channels_endpoint: is missing"):
        ChannelServer(settings_of(identity, endpoint="https://127.0.0.1:1"), None, environ, store)
    with pytest.raises(SettingsError, match="console has no channels"):
        ChannelServer(ApnsSettings(client="console"), None, environ, store)
    with pytest.raises(SettingsError, match=r"providers\.apns\.cert_file: channels need a provider token"):
        ChannelServer(ApnsSettings.model_validate({"topic": TOPIC, "cert_file": "c.pem"}), None, environ, store)


async def test_a_forged_job_ends_alone(identity: Identity) -> None:
    """One that was written past the producer's checks: no header breaks the connection."""
    async with both(identity) as s:
        channel_id = await s.server.create(stores=False)
        forged = dispatch(apns=UPDATE)
        answer = await s.rig.provider.send(replace(forged, device=Device("apns", "channel:a\r\nb: c")))
        assert answer.outcome is Outcome.REJECTED
        plain: Dispatch = replace(dispatch(title="Hello"), device=Device("apns", f"channel:{channel_id}"))
        assert (await s.rig.provider.send(plain)).outcome is Outcome.REJECTED
        assert (await s.send(channel_id)).outcome is Outcome.DELIVERED
