"""Whose fault it is decides (law 9): what a message brings upon itself ends that message, and stops no other one.

Counted at the wire and in Redis, not in seconds: how often each was sent, and whether a circuit ever opened.
"""

from pathlib import Path
from typing import Any

import pytest

from notifier import InvalidNotificationError, Notification
from notifier.notification import Device
from notifier.simulators.certificates import make_apns_key
from notifier.simulators.wire import Reply
from tests.harness.support import apns, ends, eventually, fcm, note, notifier, plain, queue, worker, write_config
from tests.laws.test_held_routes import Service, events, service, slammed_door

ATTEMPTS = 3
CATEGORIES = {"default": {"lane": "default", "attempts": ATTEMPTS}}
WRONG_TOPIC = {"topic": "com.example.other"}
THIRD_PARTY = Reply(401, "THIRD_PARTY_AUTH_ERROR")


def let_go(up: Service, job_ids: list[str]) -> None:
    """Let the waits of these be over: a test has not the minutes that providers ask for."""
    for job_id in job_ids:
        up.redis.zadd("notifier:later", {job_id: 0}, xx=True)


def end_all(up: Service, job_ids: list[str], word: str) -> None:
    """Wait until all of these have ended so, with their waits cut short."""

    def ended() -> bool:
        let_go(up, job_ids)
        found = [up.producer.status(job_id) for job_id in job_ids]
        return all(status is not None and status.state == word for status in found)

    eventually(ended, f"{word} of {len(job_ids)}")


def sends_to(up: Service, device: Device) -> int:
    return sum(1 for arrival in up.simulators.all() if arrival.token == device.token)


def no_circuit(up: Service, workers: list[Any]) -> None:
    """No circuit is open, and none ever was."""
    assert up.held() == []
    assert events(workers, "circuit_opened") == []


def repairs(workers: list[Any]) -> list[dict[str, Any]]:
    """The lines that tell a person what to repair."""
    return [line for line in events(workers, "message_fault") if line["level"] == "error"]


def faulty(kind: str, up: Service, n: int) -> Notification:
    """A message that is refused for what itself asks for."""
    if kind == "third_party":
        return note(f"bad{n}", f"bad-{n}", up.simulators.answer(fcm(f"bad{n}"), THIRD_PARTY))
    if kind == "push_type":
        device = up.simulators.answer(apns(f"bad{n}"), Reply(400, "TopicDisallowed"))
        return Notification(f"bad{n}", [device], data={"call": n}, apns={"push_type": "voip"})
    return note(f"bad{n}", f"bad-{n}", apns(f"bad{n}"), apns=WRONG_TOPIC)


def good(kind: str, n: int) -> Notification:
    device = fcm(f"good{n}") if kind == "third_party" else apns(f"good{n}")
    return note(f"good{n}", f"good-{n}", device)


KINDS = {"third_party": ATTEMPTS, "topic": 1, "push_type": 1}  # and how often each is sent in all
REASONS = {"third_party": "THIRD_PARTY_AUTH_ERROR", "topic": "TopicDisallowed", "push_type": "TopicDisallowed"}


@pytest.mark.parametrize("kind", KINDS)
def test_many_faulty_ones_stop_no_good_one(tmp_path: Path, kind: str) -> None:
    """Thirty users' faulty messages first, then ten users' good ones: these go, those end as rejected, told once."""
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        bad = [faulty(kind, up, n) for n in range(30)]
        bad_ids = up.send(bad)
        good_ids = up.send([good(kind, n) for n in range(10)])
        for job_id in good_ids:
            ends(up.producer, job_id, "delivered")
        end_all(up, bad_ids, "rejected")
        no_circuit(up, [running])
        assert {sends_to(up, notification.devices[0]) for notification in bad} == {KINDS[kind]}
        for job_id in bad_ids:
            status = up.producer.status(job_id)
            assert status is not None
            assert REASONS[kind] in (status.reason or "")
        (line,) = repairs([running])
        assert (line["reason"], bool(line["help"])) == (REASONS[kind], True)
        permits = [up.redis.zcard(f"notifier:sent:{{bad{n}}}") for n in range(30)]
        assert permits == [0] * 30, "nobody got anything"


@pytest.mark.parametrize("kind", KINDS)
def test_a_faulty_one_on_a_quiet_route_is_alone(tmp_path: Path, kind: str) -> None:
    """The first message that a route ever sees is faulty: the next one, of somebody else, goes at once."""
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        (bad_id,) = up.send([faulty(kind, up, 0)])
        eventually(up.simulators.all, "it to arrive")
        eventually(lambda: up.redis.zcard("notifier:leases") == 0, "it to be settled")
        no_circuit(up, [running])
        (good_id,) = up.send([good(kind, 0)])
        ends(up.producer, good_id, "delivered")
        end_all(up, [bad_id], "rejected")
        no_circuit(up, [running])


def test_an_app_that_nobody_configured_is_its_messages_fault(tmp_path: Path) -> None:
    """A plain producer invents an app and a platform: its messages end badly, and no circuit bears their names."""
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        device = {"platform": "nobodys", "token": "p"}
        for n, (more, end) in enumerate((({"app": "nobodys"}, "rejected"), ({"devices": [device]}, "failed"))):
            kwargs = plain(f"p{n}", "plain", apns("p")) | more
            job = queue(up.redis).enqueue("notifier.deliver", kwargs=kwargs, meta={"user": f"p{n}"})
            end_all(up, [job.id], end)
            assert "nobodys" in (up.producer.status(job.id).reason or "")
        (good_id,) = up.send([good("topic", 0)])
        ends(up.producer, good_id, "delivered")
        no_circuit(up, [running])
        assert len(repairs([running])) == 1


def test_a_forged_job_that_no_request_can_carry_ends_alone(tmp_path: Path) -> None:
    """Half a surrogate pair deep in FCM's options: no provider breaks, no permit is spent, nobody else waits."""
    half = "\ud800"
    forged = [{"webpush": {"notification": {"title": half}}}, {"apns": {"payload": {"aps": {"x": half}}}}]
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        bad_ids = []
        for n, options in enumerate(forged):
            kwargs = plain(f"f{n}", "forged", fcm(f"f{n}"), fcm=options)
            bad_ids.append(queue(up.redis).enqueue("notifier.deliver", kwargs=kwargs, meta={"user": f"f{n}"}).id)
        good_ids = up.send([good("third_party", n) for n in range(3)])
        for job_id in good_ids:
            ends(up.producer, job_id, "delivered")
        end_all(up, bad_ids, "failed")
        eventually(lambda: up.redis.zcard("notifier:leases") == 0, "all to be settled")
        assert [sends_to(up, fcm(f"f{n}")) for n in range(len(forged))] == [0, 0]
        assert {up.redis.zcard(f"notifier:sent:{{f{n}}}") for n in range(len(forged))} == {0}, "nobody got anything"
        assert "Unicode" in (up.producer.status(bad_ids[0]).reason or "")
        no_circuit(up, [running])
        assert events([running], "provider_broke") == []


def test_a_live_activity_under_a_certificate_is_refused(tmp_path: Path) -> None:
    """`send` refuses it and says why; one from a plain producer is rejected before it reaches Apple."""
    with service(tmp_path) as up:
        folder = tmp_path / "simulators"
        sign_in = {"cert_file": str(folder / "server.pem"), "cert_key_file": str(folder / "server.key")}
        of_apns = up.simulators.providers()["apns"]
        kept = {key: of_apns[key] for key in ("client", "topic", "endpoint", "ca_file", "timeout")}
        providers = {"apns": {**kept, **sign_in}}
        config = write_config(tmp_path / "by-certificate", up.server.url, providers)
        live = Notification(
            "ann",
            [apns("ann")],
            apns={"push_type": "liveactivity", "event": "end", "timestamp": 1_800_000_000},
        )
        with notifier(config) as producer, pytest.raises(InvalidNotificationError, match=r"apns\.push_type.*token"):
            producer.send(live)
        with worker(config, name="certified") as certified:
            certified.ready(up.redis)
            job = queue(up.redis).enqueue("notifier.deliver", kwargs=live.to_kwargs(), meta={"user": "ann"})
            ends(up.producer, job.id, "rejected")
            assert events([certified], "circuit_opened") == []
        assert up.simulators.all() == []


def test_a_fault_that_no_list_has_is_proved_by_another_message(tmp_path: Path) -> None:
    """One device's messages are answered as if our address were wrong: somebody else's next message is the probe.

    It goes at once; the faulty one is asked no more than `attempts` times once others get through, and ends.
    """
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        device = up.simulators.answer(apns("odd"), Reply(404, "BadPath"))
        (bad_id,) = up.send([note("odd", "odd", device)])
        eventually(up.held, "its fault to open the circuit: nothing says that the route works")
        for n in range(5):
            (good_id,) = up.send([good("topic", n)])
            ends(up.producer, good_id, "delivered")
        end_all(up, [bad_id], "rejected")
        assert up.held() == []
        assert sends_to(up, device) <= ATTEMPTS + 1
        assert len(events([running], "circuit_opened")) == 1


@pytest.mark.parametrize("with_good_traffic_before", [False, True])
def test_a_wrong_key_is_no_messages_fault(tmp_path: Path, *, with_good_traffic_before: bool) -> None:
    """A key that Apple does not know opens the circuit, also in the middle of good traffic; no attempt is spent."""
    with service(tmp_path, categories=CATEGORIES) as up:
        providers = up.simulators.providers()
        running = up.work("one")
        if with_good_traffic_before:
            up.send([note(f"w{n}", "warm") for n in range(10)])
            eventually(lambda: up.delivered() == 10, "the route to have worked")
        running.end()
        (tmp_path / "other").mkdir()
        other_key, _ = make_apns_key(tmp_path / "other", "SIMULATED1")
        wrong = {**providers, "apns": {**providers["apns"], "key_file": str(other_key)}}
        config = write_config(tmp_path / "wrong", up.server.url, wrong, categories=CATEGORIES)
        ids = up.send([note(f"u{n}", f"key-u{n}-{i}") for i in range(3) for n in range(20)])
        before = up.delivered()
        with worker(config, name="wrong") as misled:
            misled.ready(up.redis)
            (route,) = eventually(up.held, "the circuit to open")
            eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") == 20, "the users to wait for a route")
            eventually(lambda: up.redis.zcard("notifier:leases") == 0, "nothing in flight")
            assert (route.kind, "InvalidProviderToken" in route.reason) == ("fault", True)
            up.nothing_spent(ids)
            assert repairs([misled]) == []
        up.work("right")
        eventually(lambda: up.delivered() == before + len(ids), "all to be delivered")


def test_a_key_that_is_revoked_in_the_middle_spends_no_attempt(tmp_path: Path) -> None:
    """Good traffic until this moment, then every message is refused for the key: the route's fault, not theirs."""
    with service(tmp_path, categories=CATEGORIES) as up:
        up.work("one")
        devices = [apns(f"r{n}") for n in range(40)]
        up.send([note(f"r{n}", "before", device) for n, device in enumerate(devices)])
        eventually(lambda: up.delivered() == 40, "the route to have worked")
        for device in devices:
            up.simulators.answer(device, Reply(403, "InvalidProviderToken"))
        ids = up.send([note(f"r{n}", "after", device) for n, device in enumerate(devices)])
        eventually(up.held, "the circuit to open")
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") == 40, "all to wait for a route")
        eventually(lambda: up.redis.zcard("notifier:leases") == 0, "nothing in flight")
        up.nothing_spent(ids)
        refused = len(events_of_refused(up))
        assert refused <= 42, "each once, and a probe"
        # A probe comes 8 s after the fault, so the route may have worked within the last ten.
        up.redis.hset("notifier:route:apns", mapping={"until": 0, "others": 0})
        eventually(lambda: len(events_of_refused(up)) > refused, "a message that was refused before to be the probe")
        eventually(lambda: up.redis.zcard("notifier:leases") == 0, "it to be settled")
        up.nothing_spent(ids)


def events_of_refused(up: Service) -> list[Any]:
    return [arrival for arrival in up.simulators.all() if arrival.status == 403]


def test_a_probe_that_fails_by_its_own_fault_is_followed_at_once(tmp_path: Path) -> None:
    """Before the outage's first good message stand ten that can never be sent: they cost no probe, and prove nothing.

    A circuit that one of them closed would open again; one that waited after each would be slow by ten waits.
    """
    with service(tmp_path) as up:
        running = up.work("one")
        with slammed_door(up.simulators):
            up.send([note("first", "first")])
            eventually(up.held, "the circuit to open")
            for n in range(10):
                kwargs = plain(f"big{n}", "x" * 5000, apns("big"))  # more than Apple takes: not a byte goes there
                queue(up.redis).enqueue("notifier.deliver", kwargs=kwargs, meta={"user": f"big{n}"})
            eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") >= 10, "them to wait for a route")
            (last_id,) = up.send([note("last", "last")])
            eventually(lambda: int(up.redis.hget("notifier:stats", "rejected") or 0) == 10, "them to have been probes")
            assert [route.state for route in up.held()] == ["stopped"], "none of them reached Apple"
            assert events([running], "circuit_closed") == []
        ends(up.producer, last_id, "delivered")
        assert len(events([running], "circuit_opened")) == 1
        assert up.held() == []
