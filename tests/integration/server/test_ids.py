"""Users whose ids look like something else in an address: the API and the pages mean the right one."""

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis

from notifier.scripts.keys import user_key
from tests.harness.serve_rig import TOKEN, serving
from tests.harness.support import fcm, note, notifier

IDS = (
    "ann",
    "ann/history",
    "history",
    "ann/cancel",
    "/",
    "/ann",
    "ann/",
    "//",
    ".",
    "..",
    "../jobs/one",
    "%2F",
    "ann%2Fhistory",
    "a b+c?d#e;f&g=h",
    "Z\xfcrich \N{PILE OF POO} \N{RIGHT-TO-LEFT OVERRIDE}x",
    "\\",
    "\x01\n\x7f",
    "{user}:0",
)


def test_each_id_is_its_own_user(config: Path, redis: Redis) -> None:
    """Show, cancel: each finds what is of this user, and of no other."""
    now = int(redis.time()[0]) * 1_000_000
    with serving(config, TOKEN) as plain, notifier(config) as producer:
        ask = plain.with_token()
        sent = {user: producer.send(note(user, "Hello", fcm("one"))) for user in IDS}
        for n, user in enumerate(IDS):
            redis.rpush(user_key("history", user, "0"), f"{now}\n{now}\ndelivered\nchat\n\n\n\n\nended-{n}")
        for n, user in enumerate(IDS):
            told = json.loads(ask(f"/api/v1/users?{urlencode({'id': user})}")[1])
            assert (told["user"], [each["job_id"] for each in told["history"]]) == (user, [f"ended-{n}"])
            assert f">ended-{n}<" in ask(f"/user?{urlencode({'id': user})}")[1]
        for n, user in enumerate(IDS):
            status, text, _ = ask.post("/api/v1/users/cancel", {"user": user})
            assert (status, json.loads(text)) == (200, {"user": user, "cancelled": 1, "too_late": []})
            left = [other for other in IDS if producer.status(sent[other]).state == "queued"]
            assert left == list(IDS[n + 1 :])


@pytest.mark.parametrize(
    "path",
    [
        "users",
        "users?id=",
        "users?id=" + "x" * 257,
        "users/a",
        "jobs",
        "jobs?id=..",
        "jobs?id=one%2Fcancel",
        "jobs/one",
        "limits?id=%FF",
        "limits/web",
    ],
)
def test_what_is_no_id_is_unknown(path: str, config: Path) -> None:
    """It is answered by a problem, and never by what is of somebody else."""
    with serving(config) as ask:
        status, text, headers = ask(f"/api/v1/{path}")
        assert (status, headers["content-type"]) == (404, "application/problem+json"), text


def test_a_job_of_who_can_be_no_user(config: Path) -> None:
    """The asker is told so, of the API and of the page: 503 would be our fault, and repeated."""
    with serving(config) as ask:
        status, text, _ = ask("/api/v1/jobs?id=one&user=" + "x" * 257)
        assert (status, json.loads(text)["field"]) == (422, "user")
        assert ask("/job?id=one&user=" + "x" * 257)[0] == 422


def test_an_action_on_what_is_no_id(config: Path) -> None:
    """Nothing is cancelled of a user who cannot be, and nobody is paused."""
    with serving(config, TOKEN) as plain:
        for user in ("", "x" * 257):
            status, text, _ = plain.with_token().post("/api/v1/users/cancel", {"user": user})
            assert (status, json.loads(text)["field"]) == (422, "user"), user
        status, text, _ = plain.with_token().post("/api/v1/pause", {"what": "user:\ud800"})
        assert (status, json.loads(text)["detail"]) == (422, "what: is not valid Unicode text")
