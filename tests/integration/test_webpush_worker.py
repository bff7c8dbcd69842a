"""The whole way to a browser: enqueue, limiter, worker, push service; what the browser reads is what was sent."""

from pathlib import Path

from redis import Redis

from notifier import Device
from notifier.simulators.certificates import make_certificates, make_webpush_key
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import WireLog
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, note, notifier, worker, write_config


def test_a_browser_reads_what_was_sent(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, simulators: Simulators
) -> None:
    """A notification for a phone and a browser counts once, and the browser decrypts it, with the time that is left."""
    certificates, log = make_certificates(tmp_path), WireLog()
    key_file, public = make_webpush_key(tmp_path)
    browsers = WebPushSimulator(certificates=certificates, log=log, public_key=public)
    simulators.call(browsers.start())
    webpush = {
        "key_file": str(key_file),
        "subject": "mailto:push@example.com",
        "hosts": [browsers.url.removeprefix("https://")],
        "ca_file": str(certificates.ca_file),
        "timeout": "8s",
    }
    config = write_config(tmp_path, redis_server.url, simulators.providers() | {"webpush": webpush})
    devices = (apns("both"), Device("webpush", browsers.subscribe("anna")))
    fields = {"data": {"id": [7]}, "collapse_id": "c", "expires_in": 90, "webpush": {"url": "/chat/7"}}
    with worker(config) as running, notifier(config) as producer:
        running.ready(redis)
        ends(producer, producer.send(note("anna", "whole", *devices, **fields)), "delivered")
        assert [record.outcome for record in producer.history("anna")] == ["delivered"]
    simulators.call(browsers.close())
    (arrival,) = log.arrivals
    assert (arrival.title, arrival.token, arrival.data, arrival.collapse_id) == ("whole", "anna", {"id": [7]}, "c")
    assert 60_000_000 <= (arrival.ttl_us or 0) <= 90_000_000
    assert len(simulators.arrived("whole")) == 1
    assert "/push/" not in running.log
