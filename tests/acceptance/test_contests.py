"""The contests of `make bench-providers`: every client that needs no environment of its own gets to its end."""

import subprocess
import sys

from tests.harness.processes import ROOT

ENDED = """\
server_http2: APNs, bare h2
server_http2: APNs, bare h2
server_http1: FCM, bare aiohttp, pyfcm, one at a time, Web Push
"""


def test_each_contest_is_run_to_its_end() -> None:
    """No send is refused, and each says what it came to; a refusal would end the run with its words."""
    command = [sys.executable, "-m", "benchmarks.providers.rehearsal"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == (ENDED, 0), done.stderr
