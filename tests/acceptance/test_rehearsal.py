"""docs/how-to/simulators.md, typed as it stands."""

import re
from pathlib import Path

from redis import Redis

from notifier.simulators.wire import WireLog
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import type_in

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "simulators.md"


def test_the_rehearsal(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Every command of the page works in the order in which it stands there, and everything sent ends as it says."""
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    type_in("".join(commands), tmp_path, redis_server.url)
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
