"""docs/simulators.md, typed as it stands."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from redis import Redis
from support import clean_environ

from notifier.embedded import EmbeddedRedis
from notifier.simulators.wire import WireLog

PAGE = Path(__file__).parents[2] / "docs" / "simulators.md"
WITHIN_S = 120


def test_the_rehearsal(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Every command of the page works in the order in which it stands there, and everything sent ends as it says."""
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = tmp_path / "said.log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", "".join(commands)],
            cwd=tmp_path,
            env=clean_environ(NOTIFIER_REDIS_URL=redis_server.url, PATH=path),
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as typed,
    ):
        try:
            assert typed.wait(WITHIN_S) == 0, log.read_text()
        except BaseException:  # what it left running in the background would run on
            os.killpg(typed.pid, signal.SIGKILL)
            raise
    assert redis.scard("rq:workers") == 0
    arrivals = WireLog.read(tmp_path / "sim" / "wire.jsonl")
    accepted = [arrival.title for arrival in arrivals if arrival.status == 200]
    once = ["on a good day", "while Apple is gone", "into the silence", "third time lucky"]
    assert accepted[:4] == once
    assert {a.token for a in arrivals if a.title == "on a bad day" and a.status == 200} == {
        f"the-device-of-user-{user}" for user in range(1, 21)
    }
    lucky = [(a.status, a.message_id) for a in arrivals if a.title == "third time lucky"]
    assert [status for status, _ in lucky] == [429, 0, 200]
    assert len({message_id for _, message_id in lucky}) == 1
