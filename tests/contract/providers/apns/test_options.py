"""Every type of push and every option that Apple has: refused here if wrong, else taken by a strict server, whole."""

import asyncio
import json
import time
from typing import Any

import pytest

from notifier.errors import InvalidNotificationError
from notifier.notification import Device, Notification
from notifier.providers import check_payload
from notifier.providers.apns.options import OPTIONS, PUSH_TYPES
from notifier.providers.apns.payload import payload
from notifier.providers.apns.token_store import LocalTokenStore
from notifier.providers.contract import Outcome
from notifier.simulators.checks import apns_push_types
from tests.contract.apns_rig import TOKEN, TOPIC, dispatch, make_provider, rig

NOW = 1_790_000_000
LIVE = {"push_type": "liveactivity", "event": "update", "timestamp": NOW, "content_state": {"score": 1}}
START = {**LIVE, "event": "start", "attributes_type": "Match", "attributes": {"home": "A"}}

# type, fields, apns options beside push_type, topic, priority, expiration with a ttl, aps
TAKEN: list[tuple[str, dict[str, Any], dict[str, Any], str, str, bool, Any]] = [
    ("alert", {"title": "t", "sound": "s"}, {}, "", "10", True, {"alert": {"title": "t"}, "sound": "s"}),
    ("background", {"data": {"a": 1}}, {}, "", "5", True, {"content-available": 1}),
    ("voip", {"data": {"call": "1"}}, {}, ".voip", "10", False, None),
    ("voip", {"title": "Anna"}, {"priority": 5}, ".voip", "5", False, {"alert": {"title": "Anna"}}),
    ("liveactivity", {}, LIVE, ".push-type.liveactivity", "10", True,
     {"event": "update", "timestamp": NOW, "content-state": {"score": 1}}),
    ("liveactivity", {"title": "t", "body": "b", "sound": "s"},
     {**START, "priority": 5, "stale_date": NOW + 9, "relevance_score": 75, "input_push_token": True},
     ".push-type.liveactivity", "5", True,
     {"event": "start", "timestamp": NOW, "content-state": {"score": 1}, "attributes-type": "Match",
      "attributes": {"home": "A"}, "stale-date": NOW + 9, "relevance-score": 75, "input-push-token": 1,
      "alert": {"title": "t", "body": "b", "sound": "s"}}),
    ("liveactivity", {"sound": "s"}, {"event": "end", "timestamp": NOW, "dismissal_date": 0},
     ".push-type.liveactivity", "10", True,
     {"event": "end", "timestamp": NOW, "dismissal-date": 0, "alert": {"sound": "s"}}),
    ("location", {}, {}, ".location-query", "10", True, {}),
    ("pushtotalk", {"data": {"speaker": "Anna"}}, {}, ".voip-ptt", "10", False, {}),
    ("complication", {"data": {"steps": 9}}, {}, ".complication", "10", True, None),
    ("fileprovider", {"data": {"container-identifier": "c", "domain": "d"}}, {}, ".pushkit.fileprovider", "10", True,
     None),
    ("widgets", {}, {}, ".push-type.widgets", "10", True, {"content-changed": True}),
    ("controls", {}, {}, ".push-type.controls", "10", True, {"content-changed": True}),
]  # fmt: skip


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case[0])
async def test_taken(identity, case):
    """Each type goes with its own topic, priority, expiration and payload, and a strict server takes it."""
    kind, fields, options, suffix, priority, stored, aps = case
    async with rig(identity) as r:
        answer = await r.send(ttl_us=60_000_000, apns={"push_type": kind, **options}, **fields)
        assert answer.outcome is Outcome.DELIVERED, answer
        (headers,) = r.simulator.seen
        assert headers["apns-push-type"] == kind
        assert headers["apns-topic"] == TOPIC + suffix
        assert headers["apns-priority"] == priority
        assert (int(headers["apns-expiration"]) > time.time()) == stored
        (sent,) = r.simulator.bodies
        assert json.loads(sent) == ({} if aps is None else {"aps": aps}) | fields.get("data", {})


def test_every_type_is_tried():
    """The table above knows every type that there is, and the simulator no other."""
    assert {case[0] for case in TAKEN} | {"mdm"} == set(PUSH_TYPES) == set(apns_push_types.RULES)


async def test_mdm(identity):
    """MDM goes by the topic of its certificate, with its magic and nothing else."""
    topic = "com.apple.mgmt.External.0a1b"
    async with rig(identity) as r:
        apns = {"push_type": "mdm", "topic": topic}
        assert (await r.send(data={"mdm": "magic"}, apns=apns)).outcome is Outcome.DELIVERED
        assert r.simulator.seen[0]["apns-topic"] == topic
        assert json.loads(r.simulator.bodies[0]) == {"mdm": "magic"}


async def test_every_option_of_an_alert(identity):
    """All options of an alert together arrive under Apple's names."""
    options = {
        "subtitle": "s", "title_loc_key": "TK", "title_loc_args": ["1"], "subtitle_loc_key": "SK",
        "subtitle_loc_args": [], "loc_key": "K", "loc_args": ["a", "b"], "launch_image": "i.png", "thread_id": "t",
        "category": "REPLY", "mutable_content": True, "content_available": True, "interruption_level": "critical",
        "relevance_score": 1.0, "target_content_id": "w", "filter_criteria": "work", "url_args": ["x"],
        "sound": {"name": "alarm.caf", "critical": True, "volume": 1.0}, "priority": 1,
    }  # fmt: skip
    async with rig(identity) as r:
        answer = await r.send(title="T", body="B", badge=3, data={"k": 1}, apns=options)
        assert answer.outcome is Outcome.DELIVERED
        assert json.loads(r.simulator.bodies[0]) == {
            "aps": {
                "alert": {
                    "title": "T", "body": "B", "subtitle": "s", "title-loc-key": "TK", "title-loc-args": ["1"],
                    "subtitle-loc-key": "SK", "subtitle-loc-args": [], "loc-key": "K", "loc-args": ["a", "b"],
                    "launch-image": "i.png",
                },
                "badge": 3, "thread-id": "t", "category": "REPLY", "mutable-content": 1, "content-available": 1,
                "interruption-level": "critical", "relevance-score": 1.0, "target-content-id": "w",
                "filter-criteria": "work", "url-args": ["x"],
                "sound": {"name": "alarm.caf", "critical": 1, "volume": 1.0},
            },
            "k": 1,
        }  # fmt: skip
        assert b"true" not in r.simulator.bodies[0], "Apple wants 1"
        assert r.simulator.seen[0]["apns-priority"] == "1"
        used = set(options) | set(START) | {"stale_date", "dismissal_date", "input_push_token", "store", "topic"}
        assert set(OPTIONS) == used | {"push_type", "input_push_channel"}


async def test_an_alert_by_its_localized_texts_alone(identity):
    """What is shown by a key of the app's own texts is an alert, though title and body are not given."""
    async with rig(identity) as r:
        assert (await r.send(apns={"loc_key": "HELLO", "sound": {"name": "a"}})).outcome is Outcome.DELIVERED
        assert r.simulator.seen[0]["apns-push-type"] == "alert"


async def test_one_attempt_and_no_storage(identity):
    """`store: false` is expiration 0 whatever time is left; `store: true` keeps a call for the time it has left."""
    now_s, loop = time.time(), asyncio.get_running_loop()
    begun = loop.time()
    async with rig(identity, client={"tokens": LocalTokenStore(lambda: now_s)}) as r:
        await r.send(title="t", ttl_us=60_000_000, apns={"store": False})
        await r.send(title="t", apns={"store": False})
        await r.send(data={"call": 1}, ttl_us=60_000_000, apns={"push_type": "voip", "store": True})
        await r.send(title="t", apns={"store": True})
        once, also, call, kept = (headers.get("apns-expiration") for headers in r.simulator.seen)
        assert (once, also, kept) == ("0", "0", None)
        assert 0 <= int(call) - (now_s + 60) <= loop.time() - begun + 1


async def test_topic_of_ones_own(identity):
    """A topic that is given goes as it is."""
    async with rig(identity) as r:
        apns = {"push_type": "voip", "topic": f"{TOPIC}.voip"}
        assert (await r.send(data={"call": 1}, apns=apns)).outcome is Outcome.DELIVERED
        apns = {"push_type": "voip", "topic": "com.example.other.voip"}
        answer = await r.send(data={"call": 1}, apns=apns)
        assert (answer.outcome, answer.reason) == (Outcome.REJECTED, "TopicDisallowed")
        assert "apns.topic" in answer.help
        # What the configuration gives is the route's fault, though the message says the same.
        assert (await r.send(apns={"topic": TOPIC})).outcome is Outcome.DELIVERED


def size_of(notification: Notification) -> int:
    return len(payload(notification))


@pytest.mark.parametrize(("kind", "most"), [("alert", 4096), ("voip", 5120)])
async def test_sizes(identity, kind, most):
    """A payload of exactly what Apple takes is taken; of one byte more it is refused, here and by a strict server."""

    def of(size: int) -> dict[str, Any]:
        empty = Notification(user="u", devices=[], title="t", body="b", apns={"push_type": kind})
        return {"title": "t", "body": "b" * (1 + size - size_of(empty)), "apns": {"push_type": kind}}

    async with rig(identity) as r:
        assert (await r.send(**of(most))).outcome is Outcome.DELIVERED
        assert len(r.simulator.bodies[0]) == most
        answer = await r.send(**of(most + 1))
        assert (answer.outcome, answer.reason) == (Outcome.REJECTED, "PayloadTooLarge")
        assert len(r.simulator.bodies) == 1, "it was not sent"
        one = dispatch(job_id="large", **of(most + 1))
        headers = {**r.simulator.seen[0], "apns-id": "0" * 8 + "-0000-4000-8000-" + "0" * 12}
        reply, _ = r.simulator.receive(headers, payload(one.notification))
        assert (reply.status, reply.reason) == (413, "PayloadTooLarge")
    check_payload(Notification(user="u", devices=[Device("apns", TOKEN)], **of(most)))
    with pytest.raises(InvalidNotificationError, match=f"at most {most} are taken"):
        check_payload(Notification(user="u", devices=[Device("apns", TOKEN)], **of(most + 1)))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"apns": {"badge": 1}, "title": "t"}, "apns.badge"),
    ({"apns": {"push_type": "Alert"}, "title": "t"}, "apns.push_type"),
    ({"apns": {"push_type": ["alert"]}, "title": "t"}, "apns.push_type"),
    ({"apns": {"push_type": "alert"}}, "apns.push_type"),
    ({"apns": {"thread_id": "x"}, "data": {"a": 1}}, "apns.thread_id"),
    ({"apns": {"thread_id": ""}, "title": "t"}, "apns.thread_id"),
    ({"apns": {"thread_id": 7}, "title": "t"}, "apns.thread_id"),
    ({"apns": {"push_type": "background"}, "title": "t"}, "title"),
    ({"apns": {"push_type": "background", "priority": 10}, "data": {"a": 1}}, "apns.priority"),
    ({"apns": {"push_type": "pushtotalk", "priority": 5}}, "apns.priority"),
    ({"apns": {"push_type": "pushtotalk", "store": True}}, "apns.store"),
    ({"apns": {"priority": 7}, "title": "t"}, "apns.priority"),
    ({"apns": {"priority": True}, "title": "t"}, "apns.priority"),
    ({"apns": {"topic": "com.a\r\nx: y"}, "title": "t"}, "apns.topic"),
    ({"apns": {"topic": "com.example.app", "push_type": "voip"}, "data": {"a": 1}}, "apns.topic"),
    ({"apns": {"mutable_content": 1}, "title": "t"}, "apns.mutable_content"),
    ({"apns": {"store": 0}, "title": "t"}, "apns.store"),
    ({"apns": {"interruption_level": "loud"}, "title": "t"}, "apns.interruption_level"),
    ({"apns": {"relevance_score": 1.5}, "title": "t"}, "apns.relevance_score"),
    *(({"apns": {"relevance_score": n}, "title": "t"}, "apns.relevance_score") for n in (float("inf"), -1, True, "1")),
    ({"apns": {"loc_args": "abc"}, "title": "t"}, "apns.loc_args"),
    ({"apns": {"loc_args": [1]}, "title": "t"}, "apns.loc_args"),
    ({"apns": {"sound": "ping"}, "title": "t"}, "apns.sound"),
    ({"apns": {"sound": {"critical": True}}, "title": "t"}, "apns.sound"),
    *(({"apns": {"sound": {"name": name}}, "title": "t"}, "apns.sound") for name in ("", 7)),
    ({"apns": {"sound": {"name": "a", "critical": 1}}, "title": "t"}, "apns.sound"),
    *(({"apns": {"sound": {"name": "a", "volume": volume}}, "title": "t"}, "apns.sound") for volume in (2, -1)),
    ({"apns": {"sound": {"name": "a"}}, "title": "t", "sound": "b"}, "apns.sound"),
    ({"apns": {"event": "update"}, "title": "t"}, "apns.event"),
    ({"apns": {"push_type": "liveactivity"}}, "apns.event"),
    ({"apns": {"push_type": "liveactivity", "event": "update", "content_state": {}}}, "apns.timestamp"),
    ({"apns": LIVE | {"timestamp": NOW * 1000}}, "apns.timestamp"),
    ({"apns": LIVE | {"timestamp": 1.5}}, "apns.timestamp"),
    ({"apns": LIVE | {"content_state": []}}, "apns.content_state"),
    ({"apns": LIVE | {"event": "start"}}, "apns.attributes_type"),
    ({"apns": START}, "title"),
    ({"apns": LIVE, "badge": 1}, "badge"),
    ({"apns": {"push_type": "mdm"}, "data": {"mdm": "x"}}, "apns.topic"),
    ({"apns": {"push_type": "mdm", "topic": "com.apple.mgmt.x"}, "data": {"a": 1}}, "data.mdm"),
    ({"apns": {"push_type": "fileprovider"}, "data": {"a": 1}}, "data.container-identifier"),
    ({"apns": {"push_type": "widgets"}, "body": "b"}, "body"),
    ({"data": {"aps": {"badge": 9}}}, "data.aps"),
    ({"title": "t", "collapse_id": " x"}, "collapse_id"),
    ({"title": "t", "collapse_id": "a\r\nb"}, "collapse_id"),
]


@pytest.mark.parametrize(("fields", "field_name"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
async def test_refused(identity, fields, field_name):
    """What Apple would not take, or would take and not show, is refused before it is enqueued, with its field."""
    notification = Notification(user="u", devices=[Device("apns", TOKEN)], **fields)
    with pytest.raises(InvalidNotificationError) as caught:
        check_payload(notification)
    assert caught.value.field == field_name
    provider = make_provider(identity, "https://127.0.0.1:1")  # where it would be UNSENT, if it came so far
    answer = await provider.send(dispatch(**fields))
    assert (answer.outcome, answer.reason) == (Outcome.REJECTED, f"InvalidNotification: {caught.value}")
    await provider.close()


def test_malformed_options():
    """Options that are no mapping, or not JSON, are refused by their field; so is an empty message."""
    devices = [Device("apns", TOKEN)]
    for apns, field_name in (([], "apns"), ({"a": {1}}, "apns.a"), ({1: 2}, "apns")):
        with pytest.raises(InvalidNotificationError) as caught:
            Notification(user="u", devices=devices, title="t", apns=apns).validate()
        assert caught.value.field == field_name
    Notification(user="u", devices=devices, apns={"push_type": "widgets"}).validate()
    for notification in (
        Notification(user="u", devices=devices),
        Notification(user="u", devices=[*devices, Device("fcm", "x" * 20)], apns={"push_type": "widgets"}),
    ):
        with pytest.raises(InvalidNotificationError, match="nothing to send"):
            notification.validate()
