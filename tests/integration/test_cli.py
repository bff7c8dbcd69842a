"""The command `notifier`, run as a person runs it, on a real Redis."""

import io
import json
import os
import pickle
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import SimpleWorker

from notifier import Notifier
from notifier.cli.output import moment
from notifier.cli.progress import Progress
from notifier.errors import RedisUnusableError
from notifier.operations.action_log import read_actions
from notifier.producer.cancel import Cancellation
from notifier.producer.exchanges import CHUNK, Exchanges
from notifier.queue import calls
from notifier.rules.category import LANES
from notifier.scripts.keys import user_key
from notifier.scripts.rule_table import RuleTable
from notifier.settings import load_settings
from notifier.settings.rates import version_of
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.store.exchange import Exchange
from notifier.store.published import publish, published_rates
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.cutting_proxy import CuttingProxy
from tests.harness.support import CONSOLE, clean_environ, ends, eventually, fcm, note, worker, write_config
from tests.harness.take import take
from tests.integration.conftest import Ran, Run

DEVICE = "fcm:fcm-registration-0001"
CHOICES = "apns, fcm, webpush, hms, expo, console"


class Terminal(io.StringIO):
    """A terminal at which these answers are typed; what is done meanwhile, before the first one."""

    def __init__(self, typed: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(typed)
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        self._meanwhile()
        return super().readline(-1 if size is None else size)


SECTIONS = {"user": {"windows": ["1/1h"], "gap": "1s"}}


def enter_backlog(redis: Redis, config: Path) -> None:
    """Do what a worker does before it sends: put what is queued into its lines, and take what may go."""
    policies = load_settings(config, {}).policies()
    take(redis, calls.Worker(name="w", lanes=LANES, lease_us=30_000_000), calls.Room(100), RuleTable(policies))


def row(user: str, **fields: object) -> str:
    return json.dumps({"user": user, "devices": [{"platform": "fcm", "token": DEVICE[4:]}], "title": "T"} | fields)


def test_send_status_cancel(run: Run) -> None:
    """What was sent is found by the id that was printed, and can be cancelled once; a second time says the same."""
    sent = run("send", "42", "--device", DEVICE, "--title", "Hello", "--data", '{"a": 1}', "--expires-in", "2h")
    assert (sent.status, sent.err) == (0, "")
    job_id = sent.out.strip()
    assert run("status", job_id).out.startswith("queued\naccepted ")
    assert json.loads(run("status", job_id, "--json").out)["state"] == "queued"
    assert run("cancel", job_id) == Ran(0, "cancelled\n", "")
    assert run("status", job_id).out.startswith("cancelled\naccepted ")
    assert json.loads(run("history", "42", "--json").out)[0]["job_id"] == job_id
    for shown in (run("history", "--job", job_id), run("history", "42", "--job", job_id)):
        assert (shown.status, shown.out.splitlines()[0]) == (0, "42, default: cancelled")
    assert "cancelled" in run("history", "42", "--since", "1h").out
    line = "what waits: notifier line USER\n"
    assert run("history", "nobody") == Ran(1, f"no record of nobody; {line}", "")
    assert run("history", "nobody", "--since", "2h") == Ran(1, f"no record of nobody in the last 2h; {line}", "")
    assert run("history", "--job", "no-job") == Ran(1, "", "no-job: no record\n")
    of_none = run("history", "--job", "no-job", "--json")
    assert (of_none.status, json.loads(of_none.out)) == (1, {"job_id": "no-job", "state": "unknown"})
    assert run("history").status == run("history", "42", "--since", "soon").status == 2
    unknown = run("status", "nobody")
    assert (unknown.status, unknown.out) == (1, "")
    assert json.loads(run("status", "nobody", "--json").out) == {"job_id": "nobody", "state": "unknown"}
    assert run("cancel", "nobody").status == 1


def test_no_record_is_shown_that_is_too_old(run: Run, redis: Redis) -> None:
    """Redis forgets a record some time after `history.keep`; until then nothing shows it."""
    now, day = int(redis.time()[0]) * 1_000_000, 86_400_000_000
    for job_id, days in (("young", 2), ("old", 4)):
        ended = now - days * day
        redis.rpush(user_key("history", "42", "0"), f"{ended}\n{ended}\ndelivered\nchat\n\n\n\n\n{job_id}")
    assert [each["job_id"] for each in json.loads(run("history", "42", "--json").out)] == ["young"]
    assert run("history", "--job", "young").status == 0
    for user in ([], ["42"]):
        assert run("history", *user, "--job", "old").status == 1
        assert run("history", *user, "--job", "old").out == ""


def test_status_of_one_that_an_rq_worker_took(run: Run, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot read JSON, and leaves a traceback: one line is shown, with what it means."""
    job_id = run("send", "42", "--device", DEVICE, "--title", "Hello").out.strip()
    stock = SimpleWorker(["default"], connection=redis)
    monkeypatch.setattr(stock, "_install_signal_handlers", lambda: None)  # this process has its own
    stock.work(burst=True, logging_level="CRITICAL")
    said = "failed (rq.exceptions.DeserializationError: a worker that is no push worker took it)"
    assert run("status", job_id).out.splitlines()[0] == said


def test_history_says_why_one_was_dropped(run: Run, redis: Redis) -> None:
    """The reason stands beside the outcome; of one, the line of the rule too."""
    now = int(redis.time()[0]) * 1_000_000
    reason = "user gap 1s"
    redis.rpush(user_key("history", "42", "0"), f"{now}\n{now}\ndropped\nchat\n\n\n\n{reason}\ngone")
    assert f"dropped ({reason})" in run("history", "42").out
    for shown in (run("history", "--job", "gone"), run("status", "gone", "--user", "42")):
        assert re.search(rf"^{reason}: \S+notifier.yaml:\d+$", shown.out, re.MULTILINE)


def test_history_says_what_held_those_before(run: Run, redis: Redis) -> None:
    """One that waited behind others of its category tells which rule held these back, and for how long."""
    s = 1_000_000
    began = int(redis.time()[0]) * s - 100 * s
    key, rest = user_key("history", "42", "0"), "\n\nw\nr\n\n"
    redis.rpush(key, f"{began + 40 * s}\n{began} 0 u1/{3600 * s}\ndelivered\nchat{rest}first")
    redis.rpush(key, f"{began + 46 * s}\n{began + s} 0 b {44 * s} ug{s}\ndelivered\nchat{rest}second")
    told = run("history", "--job", "second").out
    assert run("history", "42", "--job", "second").out == told
    assert "held 39.0 s by those before it (user 1/1h), 5.0 s by the backlog before it, 1.0 s by user gap 1s" in told
    assert len(re.findall(r"^user (1/1h|gap 1s): \S+notifier.yaml:\d+$", told, re.MULTILINE)) == 2


def test_cancel_by_what_they_have_in_common(run: Run, redis: Redis) -> None:
    """All of a user with a tag, several ids at once; what is not found is named, and ids and a user are not mixed.

    A dry run, which is of all users, cancels nothing of one.
    What was cancelled is in the log of who changed what.
    """
    send = ("send", "42", "--device", DEVICE, "--title", "Hello")
    tagged = [run(*send, "--tag", "thread-9", "--tag", "chat").out.strip() for _ in range(2)]
    others = [run(*send).out.strip() for _ in range(2)]
    assert run("cancel", "--user", "42", "--tag", "thread-9") == Ran(0, "2 cancelled\n", "")
    states = [run("status", job_id).out.splitlines()[0] for job_id in tagged + others]
    assert states == ["cancelled"] * 2 + ["queued"] * 2
    assert run("cancel", others[0], "nobody") == Ran(1, "1 cancelled\nnobody: unknown\n", "")
    done = json.loads(run("cancel", "--user", "42", "--category", "default", "--json").out)
    assert done == {"cancelled": 1, "too_late": [], "unknown": []}
    for mixed in ([], ["--tag", "thread-9"], ["x", "--user", "42"], ["x", "--tag", "thread-9"]):
        refused = run("cancel", *mixed)
        assert (refused.status, "give job ids, or --user" in " ".join(refused.err.split())) == (2, True)
    for mixed in (["--user", "42", "--dry-run"], [others[1], "--dry-run"], [others[1], "--yes"]):
        refused = run("cancel", *mixed)
        assert (refused.status, refused.out) == (2, "")
        assert "--dry-run and --yes go with --all-users only" in " ".join(refused.err.replace("│", " ").split())
    assert "at most 64 are allowed" in run("cancel", "--user", "42", "--tag", "x" * 65).err
    assert run("cancel", others[1]).status == 0
    assert [(each.action, each.of, each.answer) for each in reversed(read_actions(redis, 9))] == [
        ("cancel of user", "42 tag thread-9", "2 cancelled"),
        ("cancel", f"{others[0]}, nobody", "1 cancelled, 1 unknown"),
        ("cancel of user", "42 category default", "1 cancelled"),
        ("cancel", others[1], "cancelled"),
    ]


@pytest.mark.parametrize(
    ("raised", "status", "why"),
    [(KeyboardInterrupt(), 130, "interrupted"), (RedisUnusableError("away"), 4, "not everywhere: away")],
)
def test_a_cancel_of_all_that_is_broken_off_is_logged(
    run: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, why: str
) -> None:
    """By Ctrl-C or by Redis, between two pages: as far as it came."""
    for _ in range(2):
        run("send", "42", "--device", DEVICE, "--title", "Hello")
    cancel_many, pages = Notifier.cancel_many, iter([None, raised])

    def broken_off(self: Notifier, job_ids: list[str]) -> Cancellation:
        if error := next(pages):
            raise error
        return cancel_many(self, job_ids)

    monkeypatch.setattr("notifier.cli.cancel.PAGE", 1)
    monkeypatch.setattr(Notifier, "cancel_many", broken_off)
    assert run("cancel", "--all-users", "--category", "default", "--yes").status == status
    (logged,) = json.loads(run("config", "log", "--json").out)
    assert (logged["action"], logged["of"]) == ("cancel of all", "category default")
    assert logged["answer"] == f"{why}; 1 cancelled, 0 too late"


def test_a_cancel_of_all_that_comes_too_late_is_not_right(
    run: Run, redis: Redis, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes one while it asks, and another is gone: both are told, and the status is 1."""
    job_ids = [run("send", user, "--device", DEVICE, "--title", "Hello").out.strip() for user in ("42", "43")]

    def meanwhile() -> None:
        enter_backlog(redis, config)
        redis.delete(f"rq:job:{job_ids[1]}")

    monkeypatch.setattr(sys, "stdin", Terminal("y\n", meanwhile))
    done = run("cancel", "--all-users", "--category", "default")
    assert (done.status, done.out.splitlines()[-1]) == (1, "0 cancelled, 1 too late, 1 unknown")


def test_a_question_and_what_it_is_about_stand_beside_the_json(
    run: Run, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json standard output is one value; whoever is asked still sees what about. Without a question, nothing."""
    run("send", "42", "--device", DEVICE, "--title", "Hello")
    new = tmp_path / "new.yaml"
    new.write_text(config.read_text(encoding="utf-8").replace("gap: 1s", "gap: 2s"), encoding="utf-8")
    of_all = ("cancel", "--all-users", "--category", "default", "--json")
    assert run(*of_all, "--dry-run") == Ran(0, '{"found": 1, "users": 1, "cancelled": 0}\n', "")
    told = {
        of_all: "1 notification of 1 user would be cancelled: category default\ncancel? [y/N]: ",
        ("config", "apply", str(new), "--json"): "what changes:\n  - user.gap: 1s\n  + user.gap: 2s\napply? [y/N]: ",
        ("config", "withdraw", "--json"): "take the applied rates back from all workers? [y/N]: ",
    }
    for words, said in told.items():
        monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
        done = run(*words)
        assert (done.status, done.err) == (0, said)
        assert isinstance(json.loads(done.out), dict)
    assert run("config", "apply", str(new), "--json", "--yes").err == ""


def test_a_refused_choice_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    """What a user chose and may choose no more is named by its line; the users behind it have theirs."""
    (file := tmp_path / "chosen.jsonl").write_text('{"user": "1", "tier": "nope"}\n{"user": "2", "gap": "10m"}\n')
    applied = run("users", "apply", str(file))
    assert (applied.status, applied.out) == (1, "1 applied\n")
    assert applied.err.startswith(f"{file}:1: tier: users may not choose 'nope'")
    assert run("users", "export").out == '{"user": "2", "gap": "10m"}\n'


def test_what_users_chose(run: Run, tmp_path: Path, producer: Notifier) -> None:
    """Shown, exported, applied, forgotten; a wrong line is named by its number."""
    assert "the user chose" not in run("explain", "--user", "42").out
    producer.users.mute("42", categories=["default"], what="drop", who="anna")
    told = run("explain", "--user", "42").out
    assert "\nthe user chose\n  muted without end: default (drop)\n" in told
    file = tmp_path / "chosen.jsonl"
    file.write_text(run("users", "export").out + '{"user": "43", "gap": "10m"}\n[]\n', encoding="utf-8")
    producer.users.unmute("42")
    assert run("users", "apply", str(file)) == Ran(1, "", f"{file}:3: is not a JSON object\n")
    assert "gap: 10m" in run("explain", "--user", "43").out
    assert producer.users.get("42").mutes
    producer.users.clear("43", who="anna")
    file.write_text('{"user": "43", "tier": "nope"}\n', encoding="utf-8")
    assert "chosen.jsonl:1: tier: users may not choose 'nope'" in run("users", "apply", str(file)).err
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"at": n, "user": "43"}) + "\n" for n in range(3)), encoding="utf-8")
    file.write_text('{"user": "43", "gap": "3h"}\n', encoding="utf-8")
    rates = tmp_path / "notifier.yaml"
    waits = [
        json.loads(run("preview", "--new", str(rates), "--trace", str(trace), "--json", *more).out)
        for more in ((), ("--preferences", str(file)))
    ]
    longest = [each["overall"]["old"]["longest_us"] for each in waits]
    assert longest[0] < longest[1] == (6 * 3_600 - 2) * 1_000_000
    assert run("users", "forget", "42").status == 2  # nobody is there to be asked
    assert run("users", "forget", "42", "--yes") == Ran(0, "forgotten; 0 cancelled\n", "")
    changes = json.loads(run("users", "export", "--user", "43").out)["changes"]
    assert [(each["who"], each["chosen"]) for each in changes] == [("anna", None), ("notifier users", {"gap": "10m"})]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["send", "42", "--device", DEVICE], 1, "nothing to send"),
        (["send", "42", "--device", "fcm", "--title", "T"], 2, "platform:token"),
        (["send", "42", "--device", DEVICE, "--title", "T", "--data", "[1]"], 2, "JSON object"),
        (["send", "42", "--device", DEVICE, "--title", "T", "--data", "[" * 100_000], 2, "JSON object"),
        (["send", "42", "--device", DEVICE, "--title", "T", "--send-at", "soon"], 2, "such as 2026"),
        (["send", "42", "--device", DEVICE, "--title", "T", "--send-at", "1800-01-01T00:00Z"], 2, "from 1971 to 2099"),
        (
            ["send", "42", "--device", DEVICE, "--title", "T", "--send-at", "2026-12-24T18:00"],
            2,
            "a time needs its zone",
        ),
        (["send", "42", "--device", DEVICE, "--title", "T", "--expires-in", "5"], 2, "without a unit"),
        (["send", "42", "--device", DEVICE, "--title", "T", "--category", "cat"], 1, "unknown; known are"),
        (["send", "42", "--device", "apns:abc", "--title", "T"], 1, "64 to 200 hexadecimal digits"),
        (["send-file", "/"], 2, "/ is not a plain file"),
        (["send-file", "/nowhere"], 2, "there is no file /nowhere"),
        (["--config", "/nowhere.yaml", "status", "x"], 3, "cannot be read"),
        (["statsu"], 2, "No such command"),
        (["line", "42", "--limit", "9" * 23], 2, "less than or equal to 1000000"),
        (["line", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
        (["line", "42", "--category", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
        (["status", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
        (["cancel", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
        (["history", "--job", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
        (["explain", "--user", "a\udcff"], 2, "the argument a\\udcff is not valid UTF-8 text"),
    ],
)
def test_a_mistake_is_a_line_and_a_status(run: Run, arguments: list[str], status: int, said: str) -> None:
    """What a person does wrong is said on standard error, with the documented status and no traceback."""
    done = run(*arguments)
    assert (done.status, done.out) == (status, "")
    assert said in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_what_users_chose_comes_from_any_file(run: Run, tmp_path: Path) -> None:
    """Also from a pipe, or one that Windows wrote; a folder is called one."""
    done = subprocess.run(
        [sys.executable, "-m", "notifier.cli", "users", "apply", "/dev/stdin"],
        env=clean_environ(NOTIFIER_CONFIG=os.environ["NOTIFIER_CONFIG"]),
        input='\ufeff{"user": "43", "gap": "10m"}\n', capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 applied\n", "")
    assert run("users", "apply", str(tmp_path)) == Ran(1, "", f"{tmp_path}: Is a directory\n")
    assert run("users", "apply", str(tmp_path / "none")).status == 2


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("users forget 42 0<&-", 2, "there is no terminal to ask at"),
        ("config init {folder}/n.yaml 0<&-", 1, "Aborted"),
        ("config schema 1>&-", 0, ""),
        ("users export 2>&-", 0, ""),
    ],
)
def test_closed_streams_are_borne(tmp_path: Path, config: Path, words: str, status: int, said: str) -> None:
    """What starts a command may have closed them: there is no traceback."""
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m notifier.cli {words.format(folder=tmp_path)}"],
        env=clean_environ(NOTIFIER_CONFIG=str(config)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (status, True, False)


@pytest.mark.parametrize("words", ["worker", "config check"])
def test_a_current_folder_that_was_removed_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Such as that of a release which another one has replaced."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.delenv("NOTIFIER_CONFIG")
    ran = run(*words.split())
    assert ran.status != 0
    assert "the current folder: No such file or directory" in ran.err


@pytest.mark.parametrize("words", ["users forget 42", "config withdraw", "config init {folder}/new.yaml"])
def test_an_interruption_at_a_question(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Ctrl-C ends with 130 there as everywhere, and Ctrl-D with 1, as a no."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    for status, terminal in {130: Terminal("", interrupt), 1: Terminal("")}.items():
        monkeypatch.setattr(sys, "stdin", terminal)
        assert run(*words.format(folder=tmp_path).split()).status == status


def test_an_interruption_while_a_command_is_imported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the status of any interruption, without a traceback."""

    class Interrupts:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "notifier.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "notifier.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    assert run("stats") == Ran(130, "", "")


def test_without_redis(run: Run, tmp_path: Path) -> None:
    """Where Redis is not there the status is 4, for every command that needs it."""
    config = write_config(tmp_path / "away", "redis://127.0.0.1:1/0", CONSOLE)
    for command in (["status", "x"], ["line", "42"], ["explain", "--user", "42"], ["cancel", "x"], ["audit"]):
        done = run("--config", str(config), *command)
        assert (done.status, done.out) == (4, "")
        assert done.err.startswith("Redis does not answer") or "cannot be used" in done.err


def test_a_password_that_nobody_asked_for(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that refuses the password is not called silent, and what to look at is named."""
    there = load_settings(config).redis.url.removeprefix("redis://")
    monkeypatch.setenv("NOTIFIER_REDIS_URL", f"redis://:hunter2@{there}")
    for command in (["status", "x"], ["line", "42"], ["explain", "--user", "42"]):
        done = run("--config", str(config), *command)
        assert done == Ran(
            4, "", "Redis has no password, but one is given; look at redis.password_file and NOTIFIER_REDIS_URL\n"
        )


def test_those_are_listed_whose_meta_rqs_tools_wrote_over(
    run: Run, redis: Redis, config: Path, producer: Notifier
) -> None:
    """RQ's tools, called without its JSON, leave a pickle there; the job waits where it stands."""
    for number in range(2):
        waiting = producer.send(note("42", f"n{number}", fcm("42")))
    enter_backlog(redis, config)
    key = f"rq:job:{waiting}"
    redis.hset(key, "meta", pickle.dumps({"meta": redis.hget(key, "meta")}))
    (listed,) = json.loads(run("line", "42", "--json").out)
    assert (listed["job_id"], listed["priority"]) == (waiting, "normal")


def test_line_and_explain(run: Run, redis: Redis, config: Path, producer: Notifier) -> None:
    """Who waits, in order; what is used of each rule, where it stands in the file, and which one decides."""
    sent, *rest = (producer.send(note("42", f"n{i}", fcm("42"))) for i in range(3))
    enter_backlog(redis, config)
    urgent = producer.send(note("42", "now", fcm("42"), priority="high"))
    enter_backlog(redis, config)
    assert producer.status(sent).state == "sending"  # type: ignore[union-attr]
    noted = {"push_deadline": 4_000_000_000_000_000, "push_attempts": 2, "push_count": 3}
    redis.hset(f"rq:job:{urgent}", mapping=noted)
    listed = json.loads(run("line", "42", "--json").out)
    assert [(entry["place"], entry["job_id"]) for entry in listed] == list(enumerate([urgent, *rest], 1))
    told = [(entry["expires_at"], entry["attempts"], entry["count"]) for entry in listed]
    assert told == [("2096-10-02T07:06:40+00:00", 2, 3), *[(None, 0, 1)] * 2]
    assert urgent in run("line", "42").out
    assert run("line", "42", "--limit", "1").out.endswith("--limit 10\n")
    assert run("line", "41").out == "nothing waits in the backlogs of 41\n"
    assert json.loads(run("line", "42", "--category", "chatt", "--json").out) == []
    assert run("explain", "--user", "42", "--category", "chatt").err.startswith("'chatt' is not among the categories")

    told = json.loads(run("explain", "--user", "42", "--json").out)
    windows, gap = told["uses"]
    text = config.read_text(encoding="utf-8").splitlines()
    assert (windows["rule"], windows["used"], windows["limit"]) == ("1/1h", 1, 1)
    assert text[int(windows["at"].rpartition(":")[2]) - 1].strip() == "- 1/1h"
    assert text[int(gap["at"].rpartition(":")[2]) - 1].strip() == "gap: 1s"
    assert (told["decided_by"], told["waiting"], told["user_rules"]) == ("user 1/1h", {"default": 3}, "user")
    assert told["routes"] == []
    redis.sadd("notifier:routes", "fcm", "fcm|full", "apns/driver", "apns|busy|default", "hms")
    far_us = 4_000_000_000_000_000
    held = {"fcm": "open", "fcm|full": "full", "apns/driver": "open", "apns|busy|default": "busy", "hms": "closing"}
    for route, state in held.items():
        redis.hset(
            f"notifier:route:{route}",
            mapping={"state": state, "kind": "unreachable", "until": far_us, "route": "apns", "lane": "x"},
        )
    shown = run("explain", "--user", "42").out
    assert "fcm stopped: it cannot be reached; next probe 2096-10" in shown
    assert "fcm slow: our count of its quota is at the limit; room at 2096-10" in shown
    assert "hms slow: it works again; what waited is let go in batches\n" in shown
    assert "apns" not in shown
    assert "1 of 1" in shown
    assert "user 1/1h decides it" in shown
    assert "the next may go now" in run("explain", "--user", "41", "--category", "chat").out
    of_chat = run("explain", "--user", "42", "--category", "chat").out
    assert "waiting: 3 of default\nthe next of chat may go at " in of_chat


def test_line_and_explain_tell_how_many_are_in_no_backlog(
    run: Run, redis: Redis, config: Path, producer: Notifier
) -> None:
    """Until their own time, for a retry, or because no worker has looked yet; a category that is none is named."""
    producer.send(note("42", "later", fcm("42"), send_at=datetime(2096, 1, 1, tzinfo=UTC)))
    enter_backlog(redis, config)
    outside = "in no backlog, of all users: 1 for a retry, a route or a time of their own; status JOB tells of one\n"
    assert run("line", "42").out == f"nothing waits in the backlogs of 42\n{outside}"
    producer.send(note("41", "another's", fcm("41")))
    producer.send(note("42", "queued", fcm("42"), category="chat"))
    outside = outside.replace("1 for", "2 queued, 1 for")
    assert f"waiting: nothing\n{outside}" in run("explain", "--user", "42").out
    assert json.loads(run("explain", "--user", "42", "--json").out)["waiting"] == {}
    assert run("line", "42", "--category", "chatt") == Ran(
        0,
        f"nothing waits in the backlogs of 42\n{outside}",
        "'chatt' is not among the categories (chat, default, marketing)\n",
    )
    assert json.loads(run("line", "42", "--json").out) == []


def test_send_file(run: Run, redis: Redis, tmp_path: Path) -> None:
    """Good lines are enqueued in order, each refused one is named by its number, and the status says so."""
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join([row("a"), "{", row("b"), row("c", category="cat"), row("d")]) + "\n", encoding="utf-8")
    done = run("send-file", str(file))
    assert (done.status, done.out) == (1, "3 accepted, 2 refused\n")
    assert done.err.splitlines() == [
        f"{file}:2: is not a JSON object",
        f"{file}:4: category: 'cat' is unknown; known are chat, default, marketing",
    ]
    assert redis.llen("rq:queue:default") == 3
    progress = file.with_name("some.jsonl.progress")
    before = f"{file}: was sent before, 3 accepted; delete {progress} to send it again\n"
    assert run("send-file", str(file)) == Ran(1, "", before)
    progress.unlink()
    assert json.loads(run("send-file", str(file), "--json").out) == {"accepted": 3, "refused": 2}
    assert redis.llen("rq:queue:default") == 6


def test_send_file_goes_on_where_it_was_broken_off(
    run: Run, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption, also one between the call and its answer, the same command sends the rest: each once."""
    file = tmp_path / "many.jsonl"
    file.write_text("".join(row(f"u{n}") + "\n" for n in range(3 * CHUNK)), encoding="utf-8")
    enqueue, answers = Exchanges.enqueue, []

    def breaks_off(self: Exchanges, jobs: list[calls.Job]) -> Exchange[list[str]]:
        answers.append((yield from enqueue(self, jobs)))
        if len(answers) == 2:
            raise KeyboardInterrupt
        return answers[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Exchanges, "enqueue", breaks_off)
        broken = run("send-file", str(file))
    assert broken.status == 130
    assert f"{file}: interrupted, {CHUNK} accepted so far; the same command goes on from there\n" in broken.err
    assert redis.llen("rq:queue:default") == 2 * CHUNK
    assert run("send-file", str(file)) == Ran(0, f"{3 * CHUNK} accepted, 0 refused\n", "")
    queued = redis.lrange("rq:queue:default", 0, -1)
    assert len(queued) == len(set(queued)) == 3 * CHUNK

    file.write_text(row("other") + "\n", encoding="utf-8")
    changed = run("send-file", str(file))
    assert (changed.status, "the file has changed" in changed.err) == (1, True)


def test_send_file_goes_on_where_even_the_first_answer_was_lost(
    run: Run, redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Redis took without a word to the command counts once; and of a file that has changed since, none is sent."""
    (file := tmp_path / "some.jsonl").write_text(row("a") + "\n" + row("b") + "\n", encoding="utf-8")
    run("send", "warm", "--device", DEVICE, "--title", "so that the script is loaded")
    with CuttingProxy(redis_server.port) as proxy, monkeypatch.context() as patch:
        patch.setenv("NOTIFIER_REDIS_URL", proxy.url)
        proxy.cut(1_000)
        assert run("send-file", str(file)).status == 4
    assert redis.llen("rq:queue:default") == 3
    text = file.read_text(encoding="utf-8")
    file.write_text(text + row("c") + "\n", encoding="utf-8")
    changed = "the file has changed since row 0; delete this to send the whole file again"
    assert run("send-file", str(file)) == Ran(1, "", f"{file}.progress: {changed}\n")
    file.write_text(text, encoding="utf-8")
    assert run("send-file", str(file)) == Ran(0, "2 accepted, 0 refused\n", "")
    assert redis.llen("rq:queue:default") == 3


def test_refused_lines_are_written_out_once_however_often_it_is_broken_off(
    run: Run, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line that was refused is in the file once, in order: a corrected one goes once."""
    file, out = tmp_path / "many.jsonl", tmp_path / "refused.jsonl"
    lines = [row(f"u{n}") if n % 100 else json.dumps({"user": f"bad {n}"}) for n in range(3 * CHUNK)]
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    enqueue, answers = Exchanges.enqueue, []

    def breaks_off(self: Exchanges, jobs: list[calls.Job]) -> Exchange[list[str]]:
        answers.append((yield from enqueue(self, jobs)))
        if len(answers) % 2 == 0:
            raise KeyboardInterrupt
        return answers[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Exchanges, "enqueue", breaks_off)
        statuses = [run("send-file", str(file), "--refused", str(out)).status for _ in range(3)]
    assert statuses == [130, 130, 1]
    assert out.read_text(encoding="utf-8").splitlines() == lines[::100]
    assert len(set(redis.lrange("rq:queue:default", 0, -1))) == len(lines) - len(lines[::100])


@pytest.mark.parametrize("name", ["some.jsonl", "some.csv"])
def test_refused_lines_are_not_written_over_what_is_read(run: Run, redis: Redis, tmp_path: Path, name: str) -> None:
    """Neither over the file itself, by whatever name, nor over its progress: nothing is lost, and nothing is sent."""
    (file := tmp_path / name).write_text(row("a") + "\n", encoding="utf-8")
    (tmp_path / "symbolic").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for out in (file, tmp_path / "symbolic", tmp_path / "hard", tmp_path / f"{name}.progress"):
        done = run("send-file", str(file), "--refused", str(out))
        assert (done.status, done.out) == (2, "")
        assert "--refused" in done.err
        assert "is what is sent, or its progress; name another file" in " ".join(done.err.replace("│", " ").split())
    assert file.read_text(encoding="utf-8") == row("a") + "\n"
    assert redis.llen("rq:queue:default") == 0


@pytest.mark.parametrize(
    "words", [("send-file", "{file}", "--refused", "/proc/none/x"), ("config", "init", "--yes", "/proc/none/x.yaml")]
)
def test_a_place_where_nothing_can_be_written_is_told(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    """One line that names it, and status 1."""
    file = tmp_path / "one.jsonl"
    file.write_text(row("ann") + "\n", encoding="utf-8")
    done = run(*(word.format(file=file) for word in words))
    assert (done.status, done.err.startswith("/proc/none"), done.err.count("\n")) == (1, True, 1)


def test_a_terminal_that_knows_few_letters_gets_what_it_can_show(config: Path) -> None:
    """Nothing is wrong with Redis; and JSON stays JSON."""

    def explained(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "notifier.cli", "explain", "--user", "jürgen", *options],
            env=clean_environ(NOTIFIER_CONFIG=str(config), PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert "j\\xfcrgen" in explained()
    assert json.loads(explained("--json"))["user"] == "jürgen"


def test_a_terminal_of_unknown_width_gets_its_tables(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs that start others say COLUMNS=0 then."""
    monkeypatch.setenv("COLUMNS", "0")
    assert "lane" in run("stats").out
    assert "Usage" in run("--help").out


def test_send_file_begins_anew_where_nothing_was_sent(run: Run, tmp_path: Path) -> None:
    """A file of which all was refused is put right and sent, without a word about the first time."""
    file = tmp_path / "some.csv"
    file.write_text("user,platform,token,titel\n" + f"a,fcm,{DEVICE[4:]},T\n", encoding="utf-8")
    done = run("send-file", str(file), "--refused", str(tmp_path / "out.csv"))
    problem = "titel: is not a column; did you mean title?; nothing of the file was sent"
    assert done == Ran(1, "", f"{file}:1: {problem}\n")
    assert not (tmp_path / "out.csv").exists()
    file.write_text(file.read_text(encoding="utf-8").replace("titel", "title"), encoding="utf-8")
    assert run("send-file", str(file)) == Ran(0, "1 accepted, 0 refused\n", "")


def test_refused_rows_of_a_csv_can_be_sent_alone(run: Run, redis: Redis, tmp_path: Path) -> None:
    """They stand under the header, also where a line of nothing comes before it."""
    text = f"\ufeff\nuser,platform,token,title\na,fcm,x,T\nb,fcm,{DEVICE[4:]},T\nc,fcm,x,T\n"
    (file := tmp_path / "some.csv").write_text(text, encoding="utf-8")
    out = tmp_path / "out.csv"
    done = run("send-file", str(file), "--refused", str(out))
    assert (done.status, done.out) == (1, "1 accepted, 2 refused\n")
    assert out.read_text(encoding="utf-8") == "user,platform,token,title\na,fcm,x,T\nc,fcm,x,T\n"
    out.write_text(out.read_text(encoding="utf-8").replace(",x,", f",{DEVICE[4:]},"), encoding="utf-8")
    assert run("send-file", str(out)) == Ran(0, "2 accepted, 0 refused\n", "")
    assert redis.llen("rq:queue:default") == 3


@pytest.mark.parametrize(("name", "out"), [("some.csv", "out"), ("some.jsonl", "out.CSV")])
def test_refused_lines_go_to_a_file_that_is_read_as_they_are(run: Run, tmp_path: Path, name: str, out: str) -> None:
    """By its name a file is read as a CSV: under another one they could not be sent."""
    (tmp_path / "some.csv").write_text("user,platform,token\n", encoding="utf-8")
    (tmp_path / "some.jsonl").write_text(row("a") + "\n", encoding="utf-8")
    done = run("send-file", str(tmp_path / name), "--refused", str(tmp_path / out))
    assert (done.status, done.out) == (2, "")
    assert "must end in .csv if FILE does" in " ".join(done.err.replace("│", " ").split())


@contextmanager
def full_disk(bytes_free: int) -> Iterator[None]:
    """Let no file grow beyond this."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_breaks_send_file_off(run: Run, redis: Redis, tmp_path: Path) -> None:
    """It says which file is full, and how many were accepted. What is begun again goes once."""
    bad, out = json.dumps({"user": "b" * 2_000}) + "\n", tmp_path / "refused.jsonl"
    (file := tmp_path / "some.jsonl").write_text(row("a") + "\n" + bad + row("c") + "\n", encoding="utf-8")
    with full_disk(1_000):
        done = run("send-file", str(file), "--refused", str(out))
    said = "2 accepted so far; put that right, and the same command goes on from there"
    assert done.err.splitlines()[-1] == f"{out}: File too large; {said}"
    with full_disk(10), pytest.raises(OSError, match=r"File too large: '.*/some\.jsonl\.progress\.new'$"):
        Progress.begin("").save(tmp_path / "some.jsonl.progress")
    assert run("send-file", str(file)).out == "2 accepted, 1 refused\n"
    assert redis.llen("rq:queue:default") == 2


def test_config_check(run: Run, tmp_path: Path, config: Path) -> None:
    """A right file is said to be right, with warnings; a wrong one has every error with line and key, and status 1."""
    right = run("config", "check", str(config))
    assert right.status == 0
    assert f"{config} is right: 3 categories, 0 tiers, 0 users with rules of their own\n" in right.out
    assert right.out.endswith(f"its rates are {load_settings(config).rates_version}\n")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("user: {windows: [10/fortnight], gap: 0}\ntiers: {a: {gpa: 1s}}\n", encoding="utf-8")
    done = run("config", "check", str(wrong))
    assert (done.status, done.out) == (1, "")
    assert [line.split(": ")[0] for line in done.err.splitlines()] == [
        f"{wrong}:1:18",
        f"{wrong}:1:38",
        f"{wrong}:2:13",
    ]
    told = json.loads(run("config", "check", str(wrong), "--json").out)
    assert (told["right"], len(told["errors"])) == (False, 3)


@pytest.mark.parametrize("command", ["check", "init"])
def test_a_file_that_is_named_twice_is_refused(run: Run, tmp_path: Path, config: Path, command: str) -> None:
    """As FILE and as --config: neither is passed over without a word."""
    refused = run("config", command, str(tmp_path / "n.yaml"), "--config", str(config))
    assert (refused.status, "give FILE or --config, not both" in refused.err) == (2, True)


def test_config_check_warns_of_keys_that_are_not_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that a worker here could not read is a warning: the file may be right for another host."""
    file = tmp_path / "notifier.yaml"
    file.write_text(
        "user: {gap: 1s}\ncategories: {default: {lane: default}}\nproviders:\n  fcm: {}\n  webpush: {client: console}\n"
        "  apns: {team_id: ABCDE12345, key_id: FGHIJ67890, topic: com.example.app, key_file: none.p8, apps: {b: {}}}\n",
        encoding="utf-8",
    )
    monkeypatch.delenv("NOTIFIER_FCM_SERVICE_ACCOUNT", raising=False)
    done = run("config", "check", str(file))
    assert done.status == 0
    apns, fcm, right, _rates = done.out.splitlines()
    assert apns.startswith(f"warning: providers.apns.key_file: cannot read {tmp_path}/none.p8: No such file")
    assert fcm.startswith("warning: providers.fcm.service_account is missing; name the file there")
    assert right.startswith(f"{file} is right")


def test_config_check_finds_what_a_worker_would_refuse(run: Run, tmp_path: Path, config: Path) -> None:
    """With --worker a certificate with another key, and no provider at all are errors."""
    file = tmp_path / "n.yaml"
    certificates = make_certificates(tmp_path)
    rates = "categories: {default: {lane: default}}\n"
    apns = (
        f"{{cert_file: {certificates.cert_file}, cert_key_file: {make_apns_key(tmp_path)[0]}, topic: com.example.app}}"
    )
    file.write_text(rates + f"providers: {{apns: {apns}}}\n", encoding="utf-8")
    done = run("config", "check", "--worker", str(file))
    assert (done.status, done.out) == (1, "")
    assert "is not that of the certificate" in done.err
    assert run("config", "check", str(file)).status == 0
    file.write_text(rates, encoding="utf-8")
    done = run("config", "check", "--worker", str(file))
    assert (done.status, done.err) == (1, "providers names no platform: nothing can be sent\n")
    file.write_text(f"{rates}worker: {{functions: [math]}}\n", encoding="utf-8")
    assert run("config", "check", "--worker", str(file)).status == 0, "a worker for RQ's own jobs"
    assert run("config", "check", "--worker", str(config)).status == 0


@pytest.mark.parametrize("words", [["line", ""], ["explain", "--user", ""]])
def test_nobody_has_no_backlog(run: Run, words: list[str]) -> None:
    """The empty name of a variable that was not set is refused, as `send` refuses it."""
    assert run(*words) == Ran(1, "", "user: must not be empty\n")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ("redis: {password_file: none}", "redis.password_file: cannot read"),
        ("redis: {password_file: empty}", "redis.password_file: "),
        ("redis: {url: 'rediss://127.0.0.1:1', ca_file: none}", "redis.ca_file"),
        ("redis: {partitions: 4}", "redis.partitions is for a Redis Cluster"),
        ("redis: {url: 'redis://127.0.0.1:1/0?colour=red'}", "the URL of Redis has an option 'colour'"),
        ("worker: {functions: [no_such.tasks]}", "worker.functions: no_such.tasks cannot be imported"),
    ],
)
def test_config_check_tries_redis_and_the_functions(run: Run, tmp_path: Path, sections: str, said: str) -> None:
    """What of them a worker would refuse before it connects is an error with --worker; else it is a warning."""
    (file := tmp_path / "n.yaml").write_text(
        f"categories: {{default: {{lane: default}}}}\nproviders: {{fcm: {{client: console}}}}\n{sections}\n", "utf-8"
    )
    (tmp_path / "empty").touch()
    done = run("config", "check", "--worker", str(file))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(said)
    assert done.err.count("\n") == 1
    warned = run("config", "check", str(file))
    assert (warned.status, f"warning: {said}" in warned.out) == (0, True)


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/x", "redis+cluster://127.0.0.1:1"]
)
def test_config_check_asks_no_redis(run: Run, tmp_path: Path, url: str) -> None:
    """One that is away is no mistake of the file: a worker waits for it."""
    (file := tmp_path / "n.yaml").write_text(f"redis: {{url: {url}}}\nproviders: {{fcm: {{client: console}}}}\n")
    assert run("config", "check", "--worker", str(file)).status == 0


def test_config_init_writes_a_first_file_that_is_right(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the platform and the key's file, takes the key's id from its name, and never overwrites a file."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("apns\nAuthKey_ABCDE12345.p8\nTEAMTEAM12\ncom.example.app\n"))
    file = tmp_path / "new" / "n.yaml"
    done = run("config", "init", str(file))
    assert (done.status, f"wrote {file}, which sends through apns" in done.out) == (0, True)
    apns = load_settings(file, {}).providers.apns
    assert (apns.team_id, apns.key_id, apns.topic) == ("TEAMTEAM12", "ABCDE12345", "com.example.app")
    assert apns.key_file == Path.cwd() / "AuthKey_ABCDE12345.p8"
    before = file.read_bytes()
    again = run("config", "init", str(file), "--yes")
    assert (again.status, again.err) == (1, f"{file} exists already; name another file, or remove it first\n")
    folder = run("config", "init", ".", "--yes")
    assert (folder.status, folder.err) == (1, ". exists already; name another file, or remove it first\n")
    assert file.read_bytes() == before
    for name, options in {
        "plain": [],
        "full": ["--full"],
        "fcm": ["--platform", "fcm", "--key-file", "a.json"],
        "hms": ["--platform", "hms", "--key-file", "secret"],
        "expo": ["--platform", "expo", "--key-file", "token"],
    }.items():
        made = tmp_path / f"{name}.yaml"
        done = run("config", "init", str(made), "--yes", *options)
        assert (done.status, "prints in place of sending" in done.out) == (0, name in {"plain", "full"})
        assert ("put your own app_id into it" in done.out) is (name == "hms")
        assert run("config", "check", str(made)).status == 0
    for refused in (
        ("--platform", "fax"),
        ("--key-file", "a.json"),
        ("--full", "--platform", "fcm"),
        ("--full", "--key-file", "a.json"),
    ):
        assert run("config", "init", str(tmp_path / "x.yaml"), "--yes", *refused).status == 2
    assert not (tmp_path / "x.yaml").exists()


def test_config_init_takes_answers_as_they_are(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may begin with the home folder, and an answer may hold quotes and backslashes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO('webpush\n~/a "key" \\ é.pem\nmailto:"a.b\\c"@example.com\n'))
    file = tmp_path / "n.yaml"
    assert run("config", "init", str(file)).status == 0
    webpush = load_settings(file, {}).providers.webpush
    assert webpush.key_file == tmp_path / 'a "key" \\ é.pem'
    assert webpush.subject == 'mailto:"a.b\\c"@example.com'


def test_config_init_asks_again_at_a_wrong_answer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what would be right at once: what was answered before stands."""
    typed = "gcm\napns\na.p8\nTEAM\nTEAMTEAM12\nABCDE12345\nno app\ncom.example.app\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    done = run("config", "init", str(tmp_path / "n.yaml"))
    assert done.status == 0
    said = [f"is 'gcm'; give one of {CHOICES}", "is not what Apple calls a team_id", "is not what Apple calls a topic"]
    assert [each in done.out + done.err for each in said] == [True] * 3
    apns = load_settings(tmp_path / "n.yaml", {}).providers.apns
    assert (apns.team_id, apns.key_id, apns.topic) == ("TEAMTEAM12", "ABCDE12345", "com.example.app")
    monkeypatch.setattr(sys, "stdin", io.StringIO('"100000001"\n100000001\n'))
    done = run("config", "init", str(tmp_path / "h.yaml"), "--platform", "hms", "--key-file", "secret")
    assert done.status == 0
    assert "which has digits only" in done.out + done.err, "an answer goes without the quotes of YAML"


def test_config_init_overwrites_no_schema(run: Run, tmp_path: Path) -> None:
    """Of somebody else; its own, of a file that was removed, may stand there. Where it fails it leaves nothing."""
    (schema := tmp_path / "n.schema.json").write_text("{}", encoding="utf-8")
    done = run("config", "init", "--yes", str(tmp_path / "n.yaml"))
    assert done == Ran(1, "", f"{schema} exists already; name another file, or remove it first\n")
    assert schema.read_text(encoding="utf-8") == "{}"
    assert run("config", "init", "--yes", str(tmp_path / "a\udcff.yaml")).status == 2
    assert [path.name for path in tmp_path.iterdir() if path.name != "notifier.yaml"] == ["n.schema.json"]
    schema.write_text(run("config", "schema").out, encoding="utf-8")
    assert run("config", "init", "--yes", str(tmp_path / "n.yaml")).status == 0


@pytest.mark.parametrize("bytes_free", [1_000, 10_000])
def test_config_init_on_a_full_disk_leaves_nothing(run: Run, tmp_path: Path, bytes_free: int) -> None:
    """Neither half a configuration nor half a schema, so that the same command works once there is room."""
    file = tmp_path / "my config.yaml"
    with full_disk(bytes_free):
        done = run("config", "init", "--yes", str(file))
    assert done == Ran(1, "", f"{file} and my config.schema.json could not be written: File too large\n")
    assert list(tmp_path.glob("my*")) == []
    done = run("config", "init", "--yes", str(file))
    assert f"check it: notifier config check --worker '{file}'\nrun a worker: NOTIFIER_CONFIG='{file}' n" in done.out


def test_config_apply_shows_what_changes_and_asks(
    run: Run, tmp_path: Path, redis: Redis, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published without a yes; a file without a section that is in force is refused unless --replace."""

    new = tmp_path / "new.yaml"
    new.write_text(config.read_text(encoding="utf-8").replace("gap: 1s", "gap: 2s"), encoding="utf-8")
    assert run("config", "apply", str(new)).status == 2  # nobody is there to be asked
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    refused = run("config", "apply", str(new))
    assert (refused.status, redis.exists("notifier:rates")) == (1, 0)
    assert "what changes:\n  - user.gap: 1s\n  + user.gap: 2s\n" in refused.out
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("config", "apply", str(new)).status == 0
    assert redis.exists("notifier:rates") == 1
    new.write_text("user: {gap: 3s}\n", encoding="utf-8")
    lost = run("config", "apply", str(new), "--yes")
    assert (lost.status, "the file has no categories" in lost.err) == (1, True)
    assert run("config", "apply", str(new), "--yes", "--replace").status == 0


def test_rates_that_others_applied_while_it_asked_are_not_undone(
    run: Run, tmp_path: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference that was shown is not that to theirs: nothing is published or logged. So with config revert."""
    (new := tmp_path / "new.yaml").write_text("user: {gap: 2s}\ncategories: {}\n", encoding="utf-8")
    theirs = [{"user": {"gap": f"{n}s"}} for n in (7, 8)]
    for words, rates in zip((("config", "apply", str(new)), ("config", "revert")), theirs, strict=True):
        publish(redis, {"user": {"gap": "5s"}}, 0)
        publish(redis, {"user": {"gap": "6s"}}, 0)
        monkeypatch.setattr(sys, "stdin", Terminal("y\n", partial(publish, redis, rates, 0)))
        done = run(*words)
        assert (done.status, done.out.partition("\n")[0]) == (1, "what changes:")
        said = "meanwhile: nothing was changed; run it again to see the difference\n"
        assert done.err.partition("[y/N]: ")[2] == f"others applied {version_of(rates)} {said}"
        assert published_rates(redis)[1] == rates
    assert read_actions(redis, 9) == []


def test_version_and_completion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person asks of any command first."""
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")  # which need not be what runs the tests
    assert run("--version").out == version("push-throttle") + "\n"
    assert "_NOTIFIER_COMPLETE" in run("--show-completion").out
    assert "else config/notifier.yaml]" in " ".join(run("--help").out.replace("│", " ").split())


def test_routes(run: Run, redis: Redis) -> None:
    """Each route has its state; one that is stopped is shown with its reason and whose affair it is, and status 1.

    Where no worker is that could have seen it otherwise, none is said to be working.
    """

    def states() -> list[tuple[str, str, str | None]]:
        return [(each["route"], each["state"], each["why"]) for each in json.loads(run("routes", "--json").out)]

    assert run("routes").status == 0
    assert states() == [("apns", "unknown", "no worker works"), ("fcm", "unknown", "no worker works")]
    redis.sadd("rq:workers", "rq:worker:w1")
    redis.hset("rq:worker:w1", mapping={"hostname": "vm", "push_looked": redis.time()[0] * 1_000_000})
    assert states() == [("apns", "working", None), ("fcm", "working", None)]
    opened = {"state": "open", "kind": "fault", "reason": "400 BadTopic", "since": 1_700_000_000_000_000}
    redis.sadd("notifier:routes", "apns/driver")
    redis.hset("notifier:route:apns/driver", mapping=opened | {"until": 1_700_000_060_000_000})
    redis.zadd("notifier:waiting_for_route:apns/driver", {"42": 0})
    done = run("routes")
    assert (done.status, done.err) == (1, "")
    assert "apns/driver" in done.out
    assert re.match(r"route .* next probe +users *\n", done.out), "who wait; how many notifications do, `stats` tells"
    assert "400 BadTopic" in done.out
    assert "ours" in done.out
    told = json.loads(run("routes", "--json").out)[-1]
    assert (told["route"], told["state"], told["kind"], told["whose"]) == ("apns/driver", "stopped", "fault", "ours")
    assert (told["waiting"], told["since"]) == (1, "2023-11-14T22:13:20+00:00")
    redis.sadd("notifier:routes", "apns/driver|full")
    redis.hset("notifier:route:apns/driver|full", mapping={"state": "full", "until": 1_700_000_060_000_000})
    assert ("apns/driver", "stopped", "400 BadTopic") in states(), "though it is at its quota too"


def test_delivered_is_seen(run: Run, config: Path, producer: Notifier) -> None:
    """A status names the moment of delivery."""
    job_id = producer.send(note("42", "Hi", fcm("42")))
    with worker(config, "--burst"):
        ends(producer, job_id, "delivered")
    assert run("status", job_id).out.startswith("delivered\nsettled at ")


def test_rates_are_reverted(run: Run, tmp_path: Path, redis: Redis) -> None:
    """What was published before holds again, and once more what was published after it; also after a withdrawal."""
    assert run("config", "revert", "--yes").status == 1  # nothing was ever published
    for limit, back in ((5, "withdraw"), (7, "revert")):
        (new := tmp_path / f"{limit}.yaml").write_text(f"user: {{windows: [{limit}/1h]}}\n")
        applied = run("config", "apply", str(new), "--yes", "--in", "0s", "--replace")
        assert (applied.status, applied.out.split()[-1]) == (0, back), "the way back to what held before"

    def in_force() -> Any:
        return published_rates(redis)[1]

    seven = in_force()
    assert run("config", "revert").status == 2  # nobody is there to be asked
    assert "5/1h" in run("config", "revert", "--yes", "--who", "ann").out
    assert in_force() == {"user": {"windows": ["5/1h"]}}
    assert run("config", "revert", "--yes").status == 0
    assert in_force() == seven
    assert run("config", "withdraw").status == 2
    assert run("config", "withdraw", "--yes").status == 0
    assert in_force() is None
    assert run("config", "revert", "--yes").status == 0
    assert in_force() == seven
    assert [each.action for each in read_actions(redis, 9)][1:3] == ["withdraw rates", "apply rates"]
    told = json.loads(run("config", "log", "--json").out)
    assert [each["who"] for each in told if each["who"] == "ann"] == ["ann"]
    assert {each["address"] for each in told} == {socket.gethostname()}
    assert "withdraw rates" in run("config", "log", "--limit", "2").out


def test_rates_are_blamed_where_they_stand_and_not_at_a_line_of_this_host(
    run: Run, tmp_path: Path, redis: Redis
) -> None:
    """What only the file that is applied has, or what was published before, is told of that and at no line of ours."""
    app = "categories.default.app: no platform has an app 'driver'"
    (new := tmp_path / "new.yaml").write_text(
        "providers: {fcm: {client: console, apps: {driver: {}}}}\ncategories: {default: {lane: bulk, app: driver}}\n",
        encoding="utf-8",
    )
    assert run("config", "apply", str(new), "--yes").err.startswith(f"{new}:2:41: {app}")
    for rates in ({"categories": {"default": {"lane": "bulk", "app": "driver"}}}, {"user": {"gap": "5s"}}):
        publish(redis, rates, 0)
    assert run("config", "revert", "--yes").err.startswith(f"the rates published before: {app}")
    redis.hset("notifier:rates", mapping={"version": "newer", "at": 1, "rates": '{"user": {"gaps": 5}}'})
    assert "the published rates: user.gaps: unknown key" in run("explain", "--user", "42").err


def test_rates_that_are_empty_are_reverted_too(run: Run, tmp_path: Path, redis: Redis) -> None:
    """They were published as others are; only before the first there was nothing."""
    (empty := tmp_path / "empty.yaml").write_text("{}\n", encoding="utf-8")
    (some := tmp_path / "some.yaml").write_text("user: {gap: 5s}\n", encoding="utf-8")
    assert run("config", "apply", str(some), "--yes", "--in", "0s", "--replace").status == 0
    assert "no applied rates were in force before" in run("config", "revert", "--yes").err
    assert run("config", "apply", str(empty), "--yes", "--in", "0s", "--replace").status == 0
    for rates in ({"user": {"gap": "5s"}}, {}, {"user": {"gap": "5s"}}):
        assert run("config", "revert", "--yes").status == 0
        assert published_rates(redis)[1] == rates
        redis.hset("notifier:rates", "at", 0)  # they hold from now on


def test_rates_that_never_held_are_not_gone_back_to(run: Run, tmp_path: Path, redis: Redis) -> None:
    """What is corrected, or taken back, before it begins: it is compared with what holds, and so is reverted to."""
    for limit in (5, 6, 7):
        (tmp_path / f"{limit}.yaml").write_text(f"user: {{windows: [{limit}/1h]}}\n")
    five, six, seven = (("config", "apply", str(tmp_path / f"{n}.yaml"), "--yes", "--replace") for n in (5, 6, 7))
    assert run(*five, "--in", "0s").status == 0
    assert run(*six, "--in", "1m").status == 0
    begins = run("config", "status").out.partition("\n")[0]
    assert re.fullmatch(r"applied: \w{12}, from \d\d:\d\d:\d\d\.\d{3} on", begins)
    assert run(*seven, "--in", "0s").out.startswith("what changes:\n  - user.windows: [5/1h]\n")
    assert run("config", "revert", "--yes").status == 0
    assert published_rates(redis)[1] == {"user": {"windows": ["5/1h"]}}
    redis.hset("notifier:rates", "at", 0)
    assert run(*six, "--in", "1m").status == 0
    assert run("config", "withdraw", "--yes").status == 0
    assert run("config", "revert", "--yes").status == 0
    assert published_rates(redis)[1] == {"user": {"windows": ["5/1h"]}}


def test_rates_are_applied_explained_and_withdrawn(run: Run, tmp_path: Path, redis: Redis, config: Path) -> None:
    """What is applied is right, holds for `explain` too, is shown by `status`, and can be taken back once."""
    new = tmp_path / "new.yaml"
    new.write_text("user: {windows: [3/1m]}\ncategories: {default: {lane: bulk}}\nworker: {batch: 7}\n", "utf-8")
    applied = json.loads(run("config", "apply", str(new), "--in", "0s", "--yes", "--json").out)
    shown, at = run("config", "status"), moment(datetime.fromisoformat(applied["at"]))
    assert (shown.status, shown.out.partition("\n")[0]) == (
        1,
        f"applied: {applied['version']}, from {at} on",
    )  # no worker runs
    told = json.loads(run("explain", "--user", "42", "--json").out)
    assert [(use["rule"], use["at"]) for use in told["uses"]] == [("3/1m", f"applied {applied['version']}")]
    assert told["lane"] == "bulk"
    assert run("config", "withdraw", "--yes").status == 0
    assert run("config", "withdraw", "--yes", "--json") == Ran(1, '{"withdrawn": false}\n', "")
    assert json.loads(run("explain", "--user", "42", "--json").out)["uses"][0]["rule"] == "1/1h"

    with worker(config, name="one") as running:
        running.ready(redis)
        whole = tmp_path / "whole.yaml"
        whole.write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
        config.write_text(config.read_text(encoding="utf-8") + "\nusers: {1: quiet}\n", encoding="utf-8")

        def refused() -> bool:
            told = run("config", "status", "--json")
            return any(w["problem"] for w in json.loads(told.out)["workers"])

        eventually(refused, "the refusal of a broken file")
        shown = run("config", "status")
        assert (shown.status, "unknown tier" in " ".join(shown.out.split())) == (1, True)

    new.write_text("user: {windows: [3/fortnight]}\n", encoding="utf-8")
    wrong = run("--config", str(whole), "config", "apply", str(new))
    assert (wrong.status, published_rates(redis)[1]) == (3, None)
    assert f"{new}:1:18" in wrong.err


def test_commands_follow_the_rates_in_force(run: Run, tmp_path: Path, redis: Redis) -> None:
    """Until applied rates hold, those before them are shown; then a category of theirs is known to all commands."""
    (new := tmp_path / "new.yaml").write_text(
        "user: {windows: [3/1m]}\ncategories: {promo: {lane: bulk, expires: 2h}}\n", encoding="utf-8"
    )
    assert run("config", "apply", str(new), "--in", "1m", "--yes", "--replace").status == 0
    assert json.loads(run("explain", "--user", "42", "--json").out)["uses"][0]["rule"] == "1/1h"
    sends = ("send", "42", "--category", "promo", "--device", f"fcm:{'a' * 40}", "--title", "x")
    assert "unknown" in run(*sends).err
    redis.hset("notifier:rates", "at", 0)
    assert json.loads(run("explain", "--user", "42", "--json").out)["uses"][0]["rule"] == "3/1m"
    sent = run(*sends)
    assert sent.status == 0, sent.err
    assert redis.lrange("rq:queue:bulk", 0, -1) == [sent.out.strip().encode()]


def test_commands_go_on_where_this_host_cannot_use_the_rates_in_force(run: Run, tmp_path: Path, redis: Redis) -> None:
    """They go by the host's own file, as a worker that starts does, and warn; what is applied is compared with them."""
    redis.hset("notifier:rates", mapping={"version": "newer", "at": 1, "rates": '{"user": {"gaps": 5}, "limits": {}}'})
    sent = run("send", "42", "--device", f"fcm:{'a' * 40}", "--title", "x")
    (new := tmp_path / "new.yaml").write_text("user: {gap: 3s}\n", encoding="utf-8")
    told = {words: run(*words.split()) for words in ("explain --user 42", "line 42", "users export")}
    told |= {"status": run("status", sent.out.strip()), "send": sent}
    for command, done in told.items():
        assert (command, done.status) == (command, 0)
        assert done.err.startswith("warning: not used here: the published rates: user.gaps: unknown key"), command
    assert "1/1h" in told["explain --user 42"].out
    applied = run("config", "apply", str(new), "--yes", "--in", "0s")
    assert applied.out.startswith("what changes:\n  - user.gaps: 5\n  + user.gap: 3s\n"), applied
    assert published_rates(redis)[1] == {"user": {"gap": "3s"}}


def test_published_rates_that_cannot_be_read_are_told_and_replaced(run: Run, tmp_path: Path, redis: Redis) -> None:
    """Commands say so and go by the file, and others can be applied in their place."""
    redis.hset("notifier:rates", mapping={"version": "ffff", "at": "soon", "rates": "garbage", "before": "5"})
    explained = run("explain", "--user", "42")
    assert (explained.status, "1/1h" in explained.out) == (0, True)
    assert explained.err.startswith("warning: not used here: the published rates cannot be read")
    assert "the published rates cannot be read" in run("config", "revert", "--yes").err
    (new := tmp_path / "new.yaml").write_text("user: {gap: 3s}\n", encoding="utf-8")
    assert run("config", "apply", str(new), "--yes", "--in", "0s", "--replace").status == 0
    assert published_rates(redis)[1] == {"user": {"gap": "3s"}}
    assert run("config", "withdraw", "--yes").status == 0


def test_explain_blames_a_mute_only_while_it_is_what_holds(run: Run, producer: Notifier) -> None:
    """The window of an hour holds longer than a mute of a minute, and less long than one of a day."""
    producer.acquire("42")
    for lasts, blamed in ((timedelta(minutes=1), False), (timedelta(days=1), True)):
        producer.users.mute("42", until=lasts)
        found = json.loads(run("explain", "--user", "42", "--category", "default", "--json").out)
        assert (found["decided_by"] == "the user's mute") is blamed


def test_workers_on_differing_rates_are_named(run: Run, redis: Redis) -> None:
    """Each worker with its host, its version and where that is from; status 1 until all agree."""
    for name, rates in (("one", "aaaaaaaaaaaa"), ("two", "bbbbbbbbbbbb")):
        redis.sadd("rq:workers", f"rq:worker:{name}")
        told = {"hostname": f"host-of-{name}", "rates_version": rates, "rates_from": "notifier.yaml"}
        redis.hset(f"rq:worker:{name}", mapping=told)
    done = run("config", "status")
    assert (done.status, done.err) == (1, "")
    rows = [line.split() for line in done.out.splitlines()]
    assert ["one", "host-of-one", "aaaaaaaaaaaa", "notifier.yaml"] in rows
    assert ["two", "host-of-two", "bbbbbbbbbbbb", "notifier.yaml"] in rows
    assert done.out.endswith("they differ: aaaaaaaaaaaa, bbbbbbbbbbbb\n")
    assert json.loads(run("config", "status", "--json").out)["agreed"] is False
    redis.hset("rq:worker:two", "rates_version", "aaaaaaaaaaaa")
    assert run("config", "status").status == 0
    redis.hset(
        "notifier:rates", mapping={"version": "cccccccccccc", "at": 4_000_000_000_000_000}
    )  # applied, not yet begun
    applied = run("config", "status")
    assert (applied.status, applied.out.splitlines()[-1]) == (1, "they differ: aaaaaaaaaaaa, cccccccccccc")


def test_audit(run: Run, redis: Redis, config: Path, producer: Notifier) -> None:
    """Status 0 and the counts where all is right; 1 and a line for each thing that is not; `--repair` mends it."""
    assert run("audit") == Ran(0, "0 jobs, 0 users: all right\n", "")
    job_id = producer.send(note("42", "Hi", fcm("42")))
    enter_backlog(redis, config)
    assert json.loads(run("audit", "--json").out) == {"jobs": 1, "users": 0, "found": 0, "left": 0}
    redis.zrem("notifier:leases", job_id)
    redis.zadd("notifier:wakeups:bulk", {"nobody": 1})
    found = run("audit")
    assert (found.status, found.err) == (1, "")
    *lines_, verdict = found.out.splitlines()
    assert verdict == "1 job, 0 users: 2 problems; --repair repairs them as far as possible"
    assert any(line.startswith(f"job {job_id} of 42 is started and stands nowhere") for line in lines_)
    assert not any(DEVICE[4:] in line for line in lines_)

    told = [json.loads(line) for line in run("audit", "--repair", "--json").out.splitlines()]
    assert told[-1] == {"jobs": 1, "users": 0, "found": 2, "left": 0}
    assert {entry["done"] for entry in told[:-1]} == {"taken out", "given a lease: when that has ended it is put back"}
    assert run("audit").status == 0
    redis.hset(f"rq:job:{job_id}", "status", "nonsense")
    left = run("audit", "--repair")
    assert (left.status, "0 repaired, 1 left" in left.out) == (1, True)


def test_an_id_is_never_broken(run: Run, config: Path, producer: Notifier, redis: Redis) -> None:
    """At 80 columns a long user id and a long job id stand whole in every table: they are copied from there."""
    user, job_id = f"user-{'a' * 60}", f"job-{'b' * 60}"
    with worker(config) as one:
        one.ready(redis)
        assert run("pause", "category:default", "--who", "anna").status == 0
        producer.send(note(user, "Hello", fcm(user)), job_id=job_id)
        eventually(lambda: redis.zcard("notifier:waiting_for_route:category:default"), "it to wait")
        stats = run("stats").out
        assert user in stats
        assert "when the pause ends" in " ".join(stats.split())
        assert stats.startswith("✖ category:default paused for"), "what is wrong comes first"
        assert job_id in run("line", user).out
        assert run("resume", "category:default").status == 0
        ends(producer, job_id, "delivered")
    assert job_id in run("history", user).out


@pytest.mark.parametrize("command", ["", "users", "worker", "stats", "users forget"])
def test_help_shows_a_flag_as_a_flag(run: Run, command: str) -> None:
    """All commands explain themselves alike; an option that takes no value shows no type."""
    shown = run(*command.split(), "--help").out
    assert shown.lstrip().startswith(f"Usage: notifier {command}")
    assert "<bool>" not in shown
    assert re.search(r"--help +-h", shown)
