"""The APNs simulator itself: what it refuses, what it reads and writes."""

import asyncio
import ssl

import pytest

from notifier.providers.contract import Outcome
from notifier.providers.transport.http2.headers import literal
from notifier.simulators.wire import Arrival, WireLog
from tests.contract.apns_rig import TOKEN, dispatch, rig

# The simulator itself.


async def test_garbage_closes_one_connection(identity):
    """A client that speaks nonsense loses its own connection and disturbs no other."""
    async with rig(identity) as r:
        await r.send()
        tls = ssl.create_default_context(cafile=identity.certificates.ca_file)
        tls.set_alpn_protocols(["h2"])
        port = int(r.simulator.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 10)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await writer.wait_closed()
        assert (await r.send()).outcome is Outcome.DELIVERED
        assert r.simulator.connections_opened == 2


@pytest.mark.parametrize("bad", [literal(b"x-note", b"a\r\nb"), literal(b"X-Note", b"a")])
async def test_malformed_header(identity, bad):
    """A request with a malformed header is cut off and never arrives; its connection goes on."""
    async with rig(identity) as r:
        await r.send()
        one = dispatch(job_id="bad")
        headers = [*r.provider._headers(one, None), literal(b"authorization", r.provider._token.current()), bad]
        answer = await r.provider._channel.request(headers, b"{}", send_by=one.send_by)
        assert (answer.outcome, answer.reason) == (Outcome.UNKNOWN, "StreamReset")
        assert (await r.send()).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 2
        assert r.simulator.connections_opened == 1


def test_wire_log(tmp_path):
    """A log is read while it is written, but for an unfinished line."""
    path = tmp_path / "wire.jsonl"
    log = WireLog(path)
    arrival = Arrival(1, "apns", TOKEN, 200, "", "id", None, {"n": 1}, "Grüße")
    log.record(arrival)
    with path.open("a") as file:
        file.write('{"at_us": 2')
    assert WireLog.read(path) == [arrival]
    log.close()
