"""Recording a trace on a real Redis: what is accepted meanwhile, no more than what a preview needs, nothing after."""

import json
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier
from notifier.forecast.trace import read_trace
from notifier.operations.preview import recording
from notifier.operations.preview.recording import LAPSE_MS, Recorder, RecordingError
from notifier.operations.traffic import Traffic
from notifier.store.published import publish
from tests.harness import warm
from tests.harness.support import PATIENCE_S, clean_environ, eventually, note

STREAM = "notifier:trace"


SECTIONS = {"categories": {"chat": {"lane": "urgent", "expires": "1h"}, "default": {"lane": "default"}}}


def read(recorder: Recorder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorder.read()]


def test_what_is_accepted_is_recorded_and_no_more(redis: Redis, producer: Notifier) -> None:
    """When, whom for, category, priority, expiry; not what came before, nor a repeat, nor anything of its contents."""
    producer.send(note("before"))
    later = datetime.now(UTC) + timedelta(hours=1)
    with Recorder(redis) as recorder:
        assert read(recorder) == []
        producer.send(note("ann", category="chat", priority="high", data={"k": "secret"}, collapse_id="secret"))
        producer.send(note("ann", collapse_id="secret", dedupe_key="collapse"))
        producer.send(note("ann", "secret", expires_in=90, dedupe_key="once"))
        producer.send(note("ann", "secret", expires_in=90, dedupe_key="once"))
        producer.send(note("bob", send_at=later))
        lines = list(recorder.read())
        assert read(recorder) == [], "each once"
    first, same, second, third = events = [json.loads(line) for line in lines]
    ats = [event.pop("at") for event in events]
    assert first.pop("collapse_id") == same["collapse_id"] != "secret", "that two are the same, not what it says"
    assert datetime.fromisoformat(first.pop("began")).timestamp() * 1_000_000 == pytest.approx(recorder.began_us, abs=1)
    assert first == {"user": "ann", "category": "chat", "priority": "high", "expires_in": 3600.0}
    assert second == {"user": "ann", "category": "default", "expires_in": 90.0}
    assert third == {"user": "bob", "category": "default"}
    assert 0 <= ats[0] <= ats[1] <= ats[2] < 60
    assert 3500 < ats[3] <= 3600, "from its own time on"
    assert "secret" not in "".join(lines)


def test_nothing_is_left_and_nothing_recorded_afterwards(redis: Redis, producer: Notifier) -> None:
    """The stream is there while somebody records, and lapses by itself if the recorder is killed."""
    with Recorder(redis):
        assert 0 < redis.pttl(STREAM) <= LAPSE_MS
        producer.send(note("ann"))
        assert 0 < redis.pttl(STREAM) <= LAPSE_MS
    producer.send(note("ann"))
    assert not redis.exists(STREAM)


def test_one_at_a_time(redis: Redis, producer: Notifier) -> None:
    """A second recorder is refused, and does not disturb the first."""
    with Recorder(redis) as recorder:
        with pytest.raises(RecordingError, match="another recording is running"):
            Recorder(redis)
        producer.send(note("ann"))
        assert len(read(recorder)) == 1


def test_a_recording_that_broke_off_says_so(redis: Redis, producer: Notifier) -> None:
    """A stream that has gone is not taken for silence."""
    with Recorder(redis) as recorder:
        producer.send(note("ann"))
        assert len(read(recorder)) == 1
        redis.delete(STREAM)
        with pytest.raises(RecordingError, match="broke off"):
            read(recorder)


def test_a_page_says_of_a_recording_that_it_cannot_be_read(redis: Redis) -> None:
    """What others wrote into its stream ends it; nobody is told that it still runs."""
    (traffic := Traffic(redis)).start(PATIENCE_S)
    eventually(lambda: redis.exists("notifier:trace"), "the recording")
    redis.xadd("notifier:trace", {"of": "others"})
    eventually(lambda: not traffic.now().is_running, "its end")
    assert traffic.now().problem.startswith("Redis holds something that cannot be read")


def test_a_long_recording_stays_small_in_redis(
    redis: Redis, producer: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is trimmed away; what is more than one batch comes whole and in order."""
    monkeypatch.setattr(recording, "BATCH", 100)
    with Recorder(redis) as recorder:
        producer.send_many(note(f"u{n}") for n in range(1_050))
        assert [event["user"] for event in read(recorder)] == [f"u{n}" for n in range(1_050)]
        assert read(recorder) == []
        assert redis.xlen(STREAM) <= 200  # Redis trims by whole nodes, of a hundred


def begun(command: list[str], folder: Path) -> warm.Popen:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return warm.Popen(command, env=clean_environ(), stdout=out, stderr=err)


def ended(process: warm.Popen, folder: Path) -> str:
    """What it has printed at its end, which is a good one."""
    assert (process.wait(PATIENCE_S), (folder / "err").read_text(encoding="utf-8")) == (0, "")
    return (folder / "out").read_text(encoding="utf-8")


def test_the_command(config: Path, redis: Redis, producer: Notifier, tmp_path: Path) -> None:
    """What it writes is a trace; it ends by itself, and does not write over a file."""
    out = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "notifier.cli", "--config", str(config), "trace", "record", "--out", str(out)]
    with begun([*command, "--for", "2s"], tmp_path) as process:
        eventually(lambda: redis.exists(STREAM), "the recording to begin")
        producer.send_many([note("ann"), note("bob"), note("ann")])
        assert ended(process, tmp_path).replace("\n", "") == f"3 recorded in {out}"
    assert {user: len(events) for user, events in read_trace(out).items()} == {"ann": 2, "bob": 1}
    again = warm.run(command, env=clean_environ())
    assert (again.returncode, again.stderr) == (1, f"{out}: cannot be written: File exists\n")
    assert not redis.exists(STREAM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_can_be_ended_early(
    config: Path, redis: Redis, producer: Notifier, tmp_path: Path, number: int
) -> None:
    """What came until then is in the file, and nothing is left in Redis."""
    out = tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "notifier.cli", "--config", str(config), "trace", "record", "--out", str(out)]
    with begun([*command, "--json"], tmp_path) as process:
        eventually(lambda: redis.exists(STREAM), "the recording to begin")
        producer.send(note("ann"))
        process.send_signal(number)
        printed = ended(process, tmp_path)
    assert json.loads(printed) == {"file": str(out), "recorded": 1}
    assert not redis.exists(STREAM)


def test_what_came_before_the_interruption_is_read(redis: Redis) -> None:
    """Also where it comes before the first look, or while the last one reads."""
    with Recorder(redis) as recorder:
        assert len(list(recorder.parts(60, lambda _: True))) == 1
        ends = iter([False, True])
        assert len(list(recorder.parts(60, lambda _: next(ends)))) == 2


def test_a_preview_of_what_is_accepted_now(config: Path, redis: Redis, producer: Notifier, tmp_path: Path) -> None:
    """It records for itself, writes no file, and compares with the rates in force: those that were applied."""
    new = tmp_path / "new.yaml"
    new.write_text("user: {windows: [1/1m]}\ncategories: {default: {lane: default}}\n", encoding="utf-8")
    publish(redis, {"user": {"windows": ["2/1m"]}, "categories": {"default": {"lane": "default"}}}, 0)
    before = {path.name for path in tmp_path.iterdir()}
    command = [sys.executable, "-m", "notifier.cli", "--config", str(config)]
    command += ["preview", "--new", str(new), "--live", "1h", "--json"]
    with begun(command, tmp_path) as process:
        eventually(lambda: redis.exists(STREAM), "the recording to begin")
        producer.send_many([note("ann"), note("ann"), note("ann"), note("bob")])
        process.send_signal(signal.SIGINT)
        printed = ended(process, tmp_path)
    report = json.loads(printed)
    assert (report["notifications"], report["users"], report["longer"]) == (4, 2, 2)
    assert [report["overall"][side]["longest_us"] // 1_000_000 for side in ("old", "new")] == [60, 120]
    assert {path.name for path in tmp_path.iterdir()} - before == {"out", "err"}
    assert not redis.exists(STREAM)
