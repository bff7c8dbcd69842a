"""`python -m benchmarks.providers [--only NAME …] [--quick]`: the table; status 1 if a bar is missed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.__main__ import main
from benchmarks.harness import Figure, at_least
from benchmarks.providers import whole_way
from benchmarks.providers.contest import Contestant, Races, figure, make_identity, race, ratio, server
from benchmarks.providers.task import Task

ROUNDS, SECONDS = 5, 2.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 1.0

APNS: Final = Contestant("APNs", "ours_apns")
BARE_H2: Final = Contestant("bare h2", "bare_h2")
AIOAPNS: Final = Contestant("aioapns", "with_aioapns", peer="aioapns")
APNS2: Final = Contestant("apns2, NODELAY, batches", "with_apns2", peer="apns2")
CLIENT_APNS2: Final = Contestant("APNs, client apns2", "ours_apns2", peer="ours-apns2")
FCM: Final = Contestant("FCM", "ours_fcm")
WEBPUSH: Final = Contestant("Web Push", "ours_webpush")
BARE_AIOHTTP: Final = Contestant("bare aiohttp", "bare_aiohttp")
PYFCM: Final = Contestant("pyfcm, one at a time", "with_pyfcm", in_flight=1)
# A thread fetches an access token of its own first, which is a signature of RSA.
PYFCM_THREADS: Final = Contestant("pyfcm, 16 threads", "with_pyfcm", in_flight=16, warm_up_s=3.0)


def apns(*, quick: bool) -> list[Figure]:
    """100 in flight, answered at once: beside a bare loop on h2 with the same settings, and aioapns."""
    runs = _race([APNS, BARE_H2, AIOAPNS], ("server_http2", "1000", "0"), 100, quick)
    ours = runs[APNS.name]
    return [
        *(figure(f"{name}, 100 in flight", each) for name, each in runs.items()),
        ratio("APNs, to bare h2", ours, runs[BARE_H2.name], at_least(0.8)),
        ratio("APNs, to aioapns", ours, runs[AIOAPNS.name], at_least(2)),
    ]


def apns_far(*, quick: bool) -> list[Figure]:
    """500 in flight, answered after 20 ms, beside apns2: at that distance 25,000 a second is the most there can be."""
    runs = _race([APNS, APNS2], ("server_http2", "500", "20"), 500, quick)
    return [
        *(figure(f"{name}, 500 in flight, 20 ms", each) for name, each in runs.items()),
        ratio("APNs, to apns2", runs[APNS.name], runs[APNS2.name], at_least(5)),
    ]


def apns2(*, quick: bool) -> list[Figure]:
    """100 in flight, answered at once: `client: apns2` beside the default, which is what it costs."""
    runs = _race([APNS, CLIENT_APNS2, APNS2], ("server_http2", "100", "0"), 100, quick)
    return [
        *(figure(f"{name}, 100 in flight", each) for name, each in runs.items()),
        ratio("client apns2, to h2", runs[CLIENT_APNS2.name], runs[APNS.name], None),
    ]


def fcm(*, quick: bool) -> list[Figure]:
    """100 in flight, answered at once: beside bare aiohttp, and pyfcm as it comes at its best."""
    runs = _race([FCM, BARE_AIOHTTP, PYFCM, PYFCM_THREADS], ("server_http1",), 100, quick)
    ours, bare = runs[FCM.name], runs[BARE_AIOHTTP.name]
    best = max(PYFCM.name, PYFCM_THREADS.name, key=lambda name: figure(name, runs[name]).value)
    return [
        figure("FCM, 100 in flight", ours),
        figure("bare aiohttp, 100 in flight", bare),
        figure(PYFCM.name, runs[PYFCM.name]),
        figure(PYFCM_THREADS.name, runs[PYFCM_THREADS.name]),
        ratio("FCM, to bare aiohttp", ours, bare, at_least(0.6)),
        ratio("FCM, to pyfcm at its best", ours, runs[best], at_least(4), best),
    ]


def webpush(*, quick: bool) -> list[Figure]:
    """100 in flight, answered at once, beside bare aiohttp, which encrypts nothing."""
    runs = _race([WEBPUSH, BARE_AIOHTTP], ("server_http1",), 100, quick)
    note = "each message is encrypted, by a key of its own"
    return [
        figure("Web Push, 100 in flight", runs[WEBPUSH.name]),
        figure("bare aiohttp, 100 in flight", runs[BARE_AIOHTTP.name]),
        ratio("Web Push, to bare aiohttp", runs[WEBPUSH.name], runs[BARE_AIOHTTP.name], None, note),
    ]


ALL: Final[dict[str, Callable[..., list[Figure]]]] = {
    "apns": apns,
    "apns-far": apns_far,
    "apns2": apns2,
    "fcm": fcm,
    "webpush": webpush,
    "whole-way": whole_way.measure,
}


def _race(contestants: Sequence[Contestant], program: Sequence[str], in_flight: int, quick: bool) -> Races:
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    with tempfile.TemporaryDirectory(prefix="push-throttle-") as folder:
        certificates = make_identity(Path(folder))
        with server(program[0], certificates, *program[1:]) as port:
            task = Task(port, str(certificates.ca_file), folder, in_flight, seconds)
            return race(contestants, task, rounds)


if __name__ == "__main__":
    sys.exit(main(ALL, "python -m benchmarks.providers"))
