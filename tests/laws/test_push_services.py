"""Each push service of the browsers has a circuit of its own: one that is away costs its messages no attempt, and
nobody else anything. With real workers and simulators, counted at the wire.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from notifier import Device, Notifier
from notifier.operations.pause import check_what
from notifier.queue.pauses import pause_name
from notifier.settings import load_settings
from notifier.simulators.certificates import make_certificates, make_webpush_key
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import Arrival, Reply, WireLog
from tests.harness.support import apns, ends, eventually, note, notifier
from tests.laws.test_held_routes import Service, events, service
from tests.laws.test_paused import let_go, stop, waiting_for_routes
from workers.sending.circuits import FAILURES, JITTER, PROBE_US


@dataclass
class Browsers:
    """Two browser vendors' services beside the phones'."""

    up: Service
    here: WebPushSimulator
    there: WebPushSimulator
    log: WireLog
    producer: Notifier

    def arrived(self, prefix: str) -> list[Arrival]:
        return [arrival for arrival in list(self.log.arrivals) if (arrival.title or "").startswith(prefix)]

    def circuits(self) -> list[tuple[str, str | None]]:
        """The circuits that are open; what a route bears at once is shown besides, and is another matter."""
        return [(route.route, route.kind) for route in self.producer.routes() if route.state == "stopped"]

    def send(self, vendor: WebPushSimulator, name: str, *more: Device) -> str:
        browser = Device("webpush", vendor.subscribe(name))
        return self.producer.send(note(name, name, browser, *more))


@contextmanager
def browsers(tmp_path: Path) -> Iterator[Browsers]:
    certificates = make_certificates(tmp_path)
    key_file, public = make_webpush_key(tmp_path)
    log = WireLog()
    here, there = (WebPushSimulator(certificates=certificates, log=log, public_key=public) for _ in range(2))
    with service(tmp_path) as up:
        for vendor in (here, there):
            up.simulators.call(vendor.start())
        webpush = {
            "key_file": str(key_file),
            "subject": "mailto:push@example.com",
            "hosts": [vendor.url.removeprefix("https://") for vendor in (here, there)],
            "ca_file": str(certificates.ca_file),
            "timeout": "8s",
        }
        document = up.config.read_text(encoding="utf-8")
        config = up.config.with_name("browsers.yaml")
        indented = "".join(f"    {key}: {value}\n" for key, value in webpush.items())
        config.write_text(document.replace("providers:\n", f"providers:\n  webpush:\n{indented}"), encoding="utf-8")
        up.config = config
        with notifier(config) as producer:
            try:
                yield Browsers(up, here, there, log, producer)
            finally:
                for vendor in (here, there):
                    up.simulators.call(vendor.close())


def test_a_push_service_that_is_away_has_a_circuit_of_its_own(tmp_path: Path) -> None:
    """Thirty users of it wait in order, spend nothing and are asked for by probes alone; the other one goes on."""
    with browsers(tmp_path) as b:
        running = b.up.work("one")
        name = f"webpush@{b.there.url.removeprefix('https://')}"
        b.up.simulators.call(b.there.close())
        away = [b.send(b.there, f"away-{n}") for n in range(30)]
        (both,) = [b.send(b.there, "both", apns("both"))]
        eventually(b.circuits, "the circuit to open")
        assert b.circuits() == [(name, "unreachable")]
        here = [b.send(b.here, f"here-{n}") for n in range(10)]
        for job_id in here:
            ends(b.producer, job_id, "delivered")
        eventually(lambda: b.up.simulators.arrived("both"), "the phone of whom the browser keeps waiting")
        eventually(lambda: b.up.redis.zcard(f"notifier:waiting_for_route:{name}") >= 29, "its users to wait")
        b.up.nothing_spent(away, probing=True)
        b.up.simulators.call(b.there.start())
        for job_id in (*away, both):
            ends(b.producer, job_id, "delivered")
        assert len(b.arrived("away-")) == 30
        assert int(b.up.redis.hget("notifier:stats", "retried") or 0) == 0
        assert len(events([running], "circuit_opened")) == 1
        assert b.circuits() == []


def test_a_push_service_that_fails_is_left_alone_but_for_probes(tmp_path: Path) -> None:
    """After ten 503 in a row nothing is sent there but probes; who is reached by another service notices nothing."""
    with browsers(tmp_path) as b:
        b.up.work("one")
        browsers_there = [Device("webpush", b.there.subscribe(f"fails-{n}")) for n in range(40)]
        # What only devices meet to which it never delivered proves nothing: these have had something.
        for job_id in [b.producer.send(note(f"fails-{n}", "before", browsers_there[n])) for n in range(40)]:
            ends(b.producer, job_id, "delivered")
        for n in range(40):
            b.there.playback.rewrite(f"fails-{n}", [Reply(503, "")])
        for n in range(FAILURES):
            b.producer.send(note(f"fails-{n}", f"fails-{n}", browsers_there[n]))
        eventually(b.circuits, "the circuit to open")
        # The first of the ten may have been tried again before the last of them failed.
        eventually(lambda: b.up.redis.zcard("notifier:leases") == 0, "what was under way to end")
        begun, before = time.monotonic(), len(b.arrived("fails-"))
        assert before >= FAILURES
        for n in range(FAILURES, 40):
            b.producer.send(note(f"fails-{n}", f"fails-{n}", browsers_there[n]))
        (job_id,) = [b.send(b.here, "here")]
        ends(b.producer, job_id, "delivered")
        eventually(lambda: len(b.arrived("fails-")) > before, "a probe")
        assert [kind for _, kind in b.circuits()] == ["failing"]
        probes, apart_s = len(b.arrived("fails-")) - before, JITTER[0] * PROBE_US["failing"][0] / 1_000_000
        assert probes <= 1 + (time.monotonic() - begun) / apart_s


def test_a_push_service_can_be_paused_by_itself(tmp_path: Path) -> None:
    """Nothing goes to it until it is let go, and all of it after; what goes by another service notices nothing."""
    with browsers(tmp_path) as b:
        name = f"route:webpush@{b.there.url.removeprefix('https://')}"
        assert check_what(name, load_settings(b.up.config)) == pause_name(name)
        stop(b.up, name)
        b.up.work("one")
        paused = [b.send(b.there, f"away-{n}") for n in range(3)]
        ends(b.producer, b.send(b.here, "here"), "delivered")
        eventually(lambda: waiting_for_routes(b.up) == 3, "its users to wait")
        assert b.arrived("away-") == []
        b.up.nothing_spent(paused)
        let_go(b.up, name)
        for job_id in paused:
            ends(b.producer, job_id, "delivered")
