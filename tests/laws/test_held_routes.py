"""Circuits with real workers and simulators: a provider that is away holds up nobody but those who go by it alone."""

import asyncio
import json
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Device, Held, Notification, Notifier
from notifier.simulators.simulator import stop_accepting
from notifier.simulators.wire import Reply
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import (
    Simulators,
    WorkerProcess,
    apns,
    client_of,
    eventually,
    fcm,
    note,
    notifier,
    plain,
    queue,
    worker,
    write_config,
)
from workers.sending.circuits import FAILURES

USERS = 30


@dataclass
class Service:
    """Simulators, a Redis, a producer; workers are started by the tests."""

    simulators: Simulators
    config: Path
    server: MortalRedis
    redis: Redis
    producer: Notifier
    stack: ExitStack

    def work(self, name: str, config: Path | None = None, *lanes: str) -> WorkerProcess:
        """Start one more worker, of these lanes or of all."""
        started = self.stack.enter_context(worker(config or self.config, *lanes, name=name))
        return started.ready(self.redis)

    def send(self, notifications: list[Notification]) -> list[str]:
        """Accept these; returns their ids."""
        ids: list[str] = []
        self.producer.send_many(notifications, on_accepted=ids.extend)
        return ids

    def delivered(self) -> int:
        """How many have been delivered in all."""
        return int(self.redis.hget("notifier:stats", "delivered") or 0)  # type: ignore[arg-type]

    def returned(self) -> int:
        """How many came back unsent, in all."""
        return int(self.redis.hget("notifier:stats", "returned") or 0)  # type: ignore[arg-type]

    def held(self) -> list[Held]:
        """What is held by a circuit or for its project; how much a route bears at once is another matter."""
        return [route for route in self.producer.routes() if route.kind != "busy"]

    def nothing_spent(self, ids: list[str], *, probing: bool = False) -> None:
        """No attempt was spent on what still waits, nor a permit. probing: one may be leased now."""
        for job_id in ids:
            with self.redis.pipeline() as pipe:
                pipe.hmget(f"rq:job:{job_id}", "push_attempts", "push_permit").zscore("notifier:leases", job_id)
                spent, leased = pipe.execute()
            assert spent == [None, None] or (probing and leased)


@contextmanager
def service(tmp_path: Path, **sections: Any) -> Iterator[Service]:
    with ExitStack() as stack:
        simulators = stack.enter_context(Simulators(tmp_path / "simulators"))
        server = stack.enter_context(MortalRedis())
        config = write_config(tmp_path, server.url, simulators.providers(), **sections)
        producer = stack.enter_context(notifier(config))
        redis = stack.enter_context(client_of(config))
        yield Service(simulators, config, server, redis, producer, stack)


@contextmanager
def slammed_door(simulators: Simulators) -> Iterator[list[float]]:
    """In the simulator's place something that takes every connection and closes it; when each came."""
    tries: list[float] = []

    async def slam(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(time.monotonic())
        writer.transport.abort()

    port = int(simulators.apns.url.rpartition(":")[2])
    simulators.call(simulators.apns.close())
    server = simulators.call(asyncio.start_server(slam, "127.0.0.1", port))
    try:
        yield tries
    finally:

        async def leave() -> None:
            await stop_accepting(*server.sockets)
            server.close()
            await server.wait_closed()

        simulators.call(leave())
        simulators.call(simulators.apns.start())


def events(workers: list[WorkerProcess], name: str) -> list[dict[str, Any]]:
    """What the workers logged under this event."""
    lines = [json.loads(line) for one in workers for line in one.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def order_by_user(arrivals: list[Any]) -> dict[str, list[int]]:
    """The numbers in the titles `<prefix>-<user>-<number>` by prefix and user, in the order of arrival."""
    found: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        who, _, number = arrival.title.rpartition("-")
        found[f"{arrival.platform} {who}"].append(int(number))
    return found


def test_apns_is_away_and_fcm_goes_on(tmp_path: Path) -> None:
    """Two workers, users of either platform and of both; nothing is lost, delayed at the other, spent or disordered.

    No storm of connections, and no herd of looks.
    """
    with service(tmp_path) as up:
        workers = [up.work("one"), up.work("two")]
        up.send([note(f"warm{n}", f"warm-warm{n}-0", apns(f"w{n}"), fcm(f"w{n}")) for n in range(20)])
        eventually(lambda: up.delivered() == 20, "the connections to be open")
        with slammed_door(up.simulators) as tries:
            begun = time.monotonic()
            sent: list[Notification] = []
            for n in range(4):
                sent += [note(f"a{u}", f"apns-a{u}-{n}", apns(f"a{u}")) for u in range(USERS)]
                sent += [note(f"f{u}", f"fcm-f{u}-{n}", fcm(f"f{u}")) for u in range(USERS)]
                sent += [note(f"b{u}", f"both-b{u}-{n}", apns(f"b{u}"), fcm(f"b{u}")) for u in range(USERS)]
            ids = up.send(sent)
            eventually(lambda: len(up.simulators.titles("fcm-")) == 4 * USERS, "what goes by FCM alone")
            eventually(lambda: len(up.simulators.titles("both-")) == 4 * USERS, "what goes by FCM as well")
            eventually(lambda: up.redis.zcard("notifier:leases") == 0, "nothing in flight")
            time.sleep(max(0.0, begun + 4 - time.monotonic()))  # the length of the outage is the fault
            waiting = [job_id for job_id in ids if up.redis.exists(f"rq:job:{job_id}")]
            assert len(waiting) == 8 * USERS
            up.nothing_spent(waiting, probing=True)
            looked = int(up.redis.hget("notifier:stats", "looked") or 0)
            tried, away_s = len(tries), time.monotonic() - begun
        eventually(lambda: up.delivered() == 20 + len(ids), "all to be delivered")
        log = [len(events(workers, name)) for name in ("circuit_opened", "circuit_closed")]

        arrived = [a for a in up.simulators.all() if a.status == 200]
        assert tried <= 8 + away_s  # two workers, and then probes, a second apart or more
        assert looked <= 3 * len(ids)
        assert log == [1, 1], "told once, not for each message"
        assert int(up.redis.hget("notifier:stats", "retried") or 0) == 0
        disordered = {who: n for who, n in order_by_user(arrived).items() if n != sorted(set(n))}
        assert disordered == {}
        assert len(arrived) == 40 + 4 * USERS * 4
        assert up.redis.smembers("notifier:routes") == set()


def test_a_plain_job_waits_for_its_route_as_well(tmp_path: Path) -> None:
    """A job that RQ alone enqueued waits for its route and is delivered, though no script can read its data."""
    with service(tmp_path) as up:
        up.simulators.call(up.simulators.apns.close())
        try:
            up.work("one")
            for n in range(3):
                queue(up.redis).enqueue("notifier.deliver", kwargs=plain("plain", f"plain-{n}"), meta={"user": "plain"})
            eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns"), "the user to wait for a route")
        finally:
            up.simulators.call(up.simulators.apns.start())
        eventually(lambda: up.delivered() == 3, "all to be delivered")
        assert up.simulators.titles("plain-") == ["plain-0", "plain-1", "plain-2"]


def test_a_wrong_topic_stops_the_app_and_shouts_once(tmp_path: Path) -> None:
    """One line at error level for a thousand messages, none of them burnt; a worker with the right one frees all."""
    with service(tmp_path) as up:
        providers = up.simulators.providers()
        wrong = {**providers, "apns": {**providers["apns"], "topic": "com.example.wrong"}}
        config = write_config(tmp_path / "wrong", up.server.url, wrong)
        ids = up.send([note(f"u{n % 50}", f"topic-u{n % 50}-{n}") for n in range(1_000)])
        up.send([note(f"f{n}", f"free-f{n}-0", fcm(f"f{n}")) for n in range(50)])
        with worker(config, name="wrong") as misled:
            misled.ready(up.redis)
            eventually(lambda: len(up.simulators.titles("free-")) == 50, "what goes by FCM")
            eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") == 50, "the users to wait for a route")
            eventually(lambda: up.redis.zcard("notifier:leases") == 0, "nothing in flight")
            errors = [line for line in misled.log.splitlines() if '"level": "error"' in line]
        assert len(errors) == 1, errors
        assert "circuit_opened" in errors[0]
        assert "TopicDisallowed" in errors[0] or "BadTopic" in errors[0]
        up.nothing_spent(ids)
        refused = [a for a in up.simulators.all() if a.status != 200]
        assert len(refused) <= 500, "what was under way when it showed, and a probe now and then"
        up.work("right")
        eventually(lambda: up.delivered() == 1_050, "all to be delivered")
        arrived = [a for a in up.simulators.all() if a.status == 200]
        assert all(numbers == sorted(set(numbers)) for numbers in order_by_user(arrived).values())
        assert int(up.redis.hget("notifier:stats", "retried") or 0) == 0


def test_a_prober_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    """A worker dies with the probe in its hands; the next probe is another worker's, and all is delivered."""
    with service(tmp_path) as up:
        up.simulators.call(up.simulators.apns.close())
        named = {name: up.work(name) for name in ("one", "two")}
        probed = up.simulators.answer(apns("u0"), *[Reply(200, silent=True)] * 2, Reply(200))
        ids = up.send([note(f"u{n}", f"kill-u{n}-0") for n in range(20)])
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns"), "the circuit to open")
        assert probed
        for device in range(20):
            up.simulators.delay(apns(f"u{device}"), 900)
        up.simulators.call(up.simulators.apns.start())
        prober = eventually(lambda: up.redis.hget("notifier:route:apns", "prober"), "a probe")
        victim = named[prober.decode()].process
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        for device in range(20):
            up.simulators.answer(apns(f"u{device}"), Reply(200))
        eventually(lambda: up.delivered() == len(ids), "all to be delivered")


def test_one_workers_broken_network_stops_nobody(tmp_path: Path) -> None:
    """Where one worker of two cannot reach APNs it steps back; the other serves all, and few are given back."""
    small = {"grace": "4s", "batch": 10, "in_flight": 10}  # so that both are needed
    with service(tmp_path, worker=small) as up:
        providers = up.simulators.providers()
        nowhere = {**providers, "apns": {**providers["apns"], "endpoint": "https://127.0.0.1:1"}}
        broken = write_config(tmp_path / "broken", up.server.url, nowhere, worker=small)
        workers = [up.work("good"), up.work("broken", broken)]
        for n in range(40):
            up.send([note(f"u{n}-{i}", f"alone-{n}-{i}") for i in range(50)])
            eventually(lambda n=n: up.delivered() == 50 * (n + 1), f"number {n}")
        # At each of its tries it takes a batch or two, and gives them back; then it steps back, for ever longer.
        tries = 3 + len(events(workers, "stepped_back"))
        assert up.returned() <= 20 * tries
        assert tries < 20, "of forty"
        assert len(events(workers, "circuit_opened")) <= 3
        assert events(workers, "stepped_back")
        assert {event["worker"] for event in events(workers, "stepped_back")} == {"broken"}


@pytest.mark.parametrize("device", [apns("one"), fcm("one")], ids=["apns", "fcm"])
@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "is silent"])
def test_a_leader_with_a_broken_network_lets_another_try(tmp_path: Path, device: Device, silent: bool) -> None:
    """What arrives wakes the leader of the idle ones alone; where that one gets no connection, another tries.

    The provider is well, and whoever reaches it has never sent anything: nobody knows yet whose fault it is.
    """
    timing = {"lease": "4s", "grace": "2s"}  # a send has less time than its timeout, as with the defaults
    with service(tmp_path) as up, socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1] if silent else 1  # connected by the kernel, and then nothing comes
        providers = {name: of | {"timeout": "2s"} for name, of in up.simulators.providers().items()}
        nowhere = providers | {device.platform: providers[device.platform] | {"endpoint": f"https://127.0.0.1:{port}"}}
        folders = [tmp_path / name for name in ("broken0", "broken1")]
        broken = [up.work(at.name, write_config(at, up.server.url, nowhere, worker=timing)) for at in folders]
        leader = "notifier:leader:bulk,default,urgent"
        eventually(lambda: up.redis.get(leader) in {b"broken0", b"broken1"}, "one of the broken ones to lead")
        up.work("good", write_config(tmp_path / "good", up.server.url, providers, worker=timing))
        up.send([note("u", "alone-0", device)])
        eventually(lambda: up.delivered() == 1, "it to be delivered")
        assert len(events(broken, "circuit_opened")) <= 1


def test_a_worker_of_another_lane_keeps_no_route_closed(tmp_path: Path) -> None:
    """Who can reach APNs lets what waits in its own lane go as a probe, also where others have waited for longer."""
    with service(tmp_path) as up:
        providers = up.simulators.providers()
        nowhere = {**providers, "apns": {**providers["apns"], "endpoint": "https://127.0.0.1:1"}}
        broken = up.work("broken", write_config(tmp_path / "broken", up.server.url, nowhere), "bulk")
        up.send([replace(note(f"u{n}", f"bulk-{n}"), category="marketing") for n in range(150)])
        eventually(lambda: events([broken], "circuit_opened"), "the circuit to open")
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:apns") == 150, "all to wait for the route")
        up.work("good", None, "urgent")
        up.send([replace(note("u", "urgent-0"), category="chat")])
        eventually(lambda: up.delivered() == 1, "it to be delivered")


LIMITS = {
    "device": ({"device": ["5/1s"]}, [fcm("one")] * 20, {}),
    "collapsible": ({"collapsible": {"capacity": 3, "refill": "1/500ms"}}, [fcm("one")] * 9, {"collapse_id": "score"}),
    "project": ({"project": "20/2s"}, [fcm(f"d{n}") for n in range(60)], {}),
}


@pytest.mark.parametrize("which", LIMITS)
def test_a_providers_limit_holds_at_the_wire(tmp_path: Path, which: str) -> None:
    """What FCM admits for a device, of what is collapsible, and for a project is never exceeded."""
    limits, devices, more = LIMITS[which]
    off = {"device": [], "collapsible": None, "project": None}
    with service(tmp_path) as up:
        providers = up.simulators.providers()
        providers["fcm"]["limits"] = off | limits
        write_config(tmp_path, up.server.url, providers)
        up.work("one")
        up.work("two")
        begun, begun_us = time.monotonic(), time.time_ns() // 1000
        users = ["one" if which != "project" else f"u{n}" for n in range(len(devices))]
        up.send([replace(note(user, "limit", device), **more) for user, device in zip(users, devices, strict=True)])
        eventually(lambda: up.delivered() == len(devices), "all to be delivered")
        seconds = time.monotonic() - begun
        at = sorted(a.at_us for a in up.simulators.all() if a.status == 200)
    if which == "device":
        assert all(after - first >= 1_000_000 for first, after in zip(at, at[5:], strict=False))
        assert seconds >= 3.0
    elif which == "collapsible":
        assert all(j - i + 1 <= 3 + (at[j] - at[i]) // 500_000 for i in range(len(at)) for j in range(i, len(at)))
        assert seconds >= 3.0
    else:
        # Counted when they are let go. A busy machine may bring some later to the wire, but never earlier.
        assert all(came - begun_us >= n // 20 * 2_000_000 for n, came in enumerate(at))
        assert seconds >= 3.8


def test_a_server_that_refuses_every_stream_is_not_stormed(tmp_path: Path) -> None:
    """What was refused goes back for free, and comes again at once: after ten times it is left alone but for probes."""
    with service(tmp_path) as up:
        device = up.simulators.answer(apns("refused"), Reply(reset="REFUSED_STREAM"))
        up.work("one")
        (job_id,) = up.send([note("u", "refused-u-0", device)])
        eventually(up.held, "the circuit to open")
        (route,) = up.held()
        assert (route.route, route.kind, route.reason) == ("apns", "failing", "RefusedStream")
        eventually(lambda: len(up.simulators.all()) >= FAILURES + 2, "two probes")
        assert len(up.simulators.all()) <= FAILURES + 3
        eventually(lambda: up.redis.zcard("notifier:leases") == 0, "nothing in flight")
        up.nothing_spent([job_id])
        up.simulators.answer(device, Reply(200))
        eventually(lambda: up.delivered() == 1, "it to be delivered")
        assert up.held() == []


def test_a_full_project_takes_no_users_permit(tmp_path: Path) -> None:
    """Who waits for a project's room has been counted nothing, and is reached by another platform at once."""
    with service(tmp_path, user={"windows": ["1/1h"]}) as up:
        providers = up.simulators.providers()
        providers["fcm"]["limits"] = {"device": [], "collapsible": None, "project": "1/1h"}
        write_config(tmp_path, up.server.url, providers, user={"windows": ["1/1h"]})
        up.work("one")
        users = [f"u{n}" for n in range(5)]
        held = up.send([note(user, f"full-{user}-0", fcm(user)) for user in users])
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:fcm|full") == 4, "all but one to wait")
        eventually(lambda: up.delivered() == 1, "that one to be delivered")
        (route,) = up.held()
        assert (route.route, route.state, route.kind, route.waiting) == ("fcm", "slow", "full", 4)
        permits = [up.redis.zcard(f"notifier:sent:{{{user}}}") for user in users]
        assert sorted(permits) == [0, 0, 0, 0, 1]
        waiting = users[permits.index(0)]
        up.nothing_spent([job_id for job_id, count in zip(held, permits, strict=True) if not count])
        up.send([note(waiting, f"free-{waiting}-0", apns(waiting), category="chat")])  # a line of its own: order stays
        eventually(lambda: up.simulators.titles("free-"), "the one by the other route")
        assert up.redis.zcard(f"notifier:sent:{{{waiting}}}") == 1
