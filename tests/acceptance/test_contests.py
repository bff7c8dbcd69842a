"""The contests of `make bench-providers`: every client that needs no environment of its own gets to its end."""

from __future__ import annotations

import pytest

from benchmarks.providers import __main__ as contests
from benchmarks.providers.contest import make_identity, race, server
from benchmarks.providers.task import Task

CONTESTS = {
    "apns": (["server_http2", "1000", "0"], [contests.APNS, contests.BARE_H2]),
    "apns, far": (["server_http2", "100", "20"], [contests.APNS, contests.BARE_H2]),
    "http/1.1": (["server_http1"], [contests.FCM, contests.BARE_AIOHTTP, contests.PYFCM, contests.WEBPUSH]),
}


@pytest.mark.parametrize("contest", CONTESTS)
def test_a_contest_is_run_to_its_end(contest, tmp_path) -> None:
    """No send is refused, and each says what it came to; a refusal would end the run with its words."""
    (program, *arguments), contestants = CONTESTS[contest]
    certificates = make_identity(tmp_path)
    with server(program, certificates, *arguments) as port:
        runs = race(contestants, Task(port, str(certificates.ca_file), str(tmp_path), 50, 0.3, 0.1), 1)

    assert runs.keys() == {contestant.name for contestant in contestants}
    assert all(run.rate > 0 and run.cpu_us > 0 for (run,) in runs.values())
