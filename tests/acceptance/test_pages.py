"""The pages of docs that show a way to go, walked as they stand: each command works, and prints what the page shows."""

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from redis import Redis

from notifier import Device, Notification
from notifier.settings import parse_settings
from notifier.settings.templates import template
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import pages
from tests.harness.support import type_in

RATES = pages.read("reference/rates.md")
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WALKS = [
    "how-to/install.md",
    "how-to/migrate.md",
    "how-to/redis-acl.md",
    "how-to/cluster.md",
    "how-to/sentinel.md",
    "tutorials/chat.md",
    "tutorials/first-push.md",
    "tutorials/production.md",
    "tutorials/rates.md",
    "tutorials/throttle-rq.md",
]
KEYS = {
    "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    "auth": "BTBZMqHH6r4Tts7J_aSIgg",
}
SUBSCRIPTION = json.dumps({"endpoint": "https://fcm.googleapis.com/fcm/send/an-invented-browser", "keys": KEYS})
PHONE = Device("fcm", "an-invented-token")
ELSEWHERE = ["how-to/simulators.md"]  # test_rehearsal.py
FRAGMENTS = ["../../README", "apns", "dead-tokens", "enqueue", "webpush", "../reference/providers"]


@pytest.mark.parametrize("page", WALKS)
def test_the_walk(page: str, tmp_path: Path) -> None:
    """Every command of the page works in the order in which it stands there, and says what is shown below it."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        pages.walk(page, tmp_path, server.url, cold=page == "how-to/cluster.md")
        assert redis.scard("rq:workers") == pages.read(page).count("kill -KILL")


README = f"""
export NOTIFIER_CONFIG={pages.ROOT}/config/notifier.yaml
notifier worker > sent.log 2> worker.log &
python {pages.ROOT}/examples/send_one.py
kill %1 && wait %1
"""


def test_the_tutorials_one_after_the_other(tmp_path: Path) -> None:
    """In one folder, with one Redis, after the README and once more: nothing that one has left holds the next up."""
    with EmbeddedRedis() as server:
        type_in(README, tmp_path, server.url)
        for page in ("first-push", "rates", "chat", "first-push"):
            pages.walk(f"tutorials/{page}.md", tmp_path, server.url)


def test_every_page_with_commands_is_walked() -> None:
    """No page shows a command that no test types."""
    found = [path.relative_to(pages.ROOT / "docs").as_posix() for path in (pages.ROOT / "docs").rglob("*.md")]
    assert sorted([*WALKS, *ELSEWHERE]) == sorted(page for page in found if pages.steps(page))


class Registered:
    """The devices of a reader's program."""

    def remove(self, token: str, *, unless_registered_after: datetime) -> None:
        assert token
        assert unless_registered_after.tzinfo


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("page", FRAGMENTS)
def test_fragments_run(
    page: str, tmp_path: Path, redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a page shows in Python runs, where the reader's own names are given."""
    config = tmp_path / "notifier.yaml"
    config.write_text(template("first") + "\n  webpush: {client: console}\nevents: {keep: 1d}\n", encoding="utf-8")
    fake = FakeNotifier(config)
    given = {"Device": Device, "Notification": Notification, "time": time, "notifier": fake}
    tokens = {"token": "ab" * 32, "apns_token": "ab" * 32, "fcm_token": PHONE.token, "subscription_text": SUBSCRIPTION}
    phones = {"phone": PHONE, "activity": Device("apns", "cd" * 32), "devices": Registered()}
    fake.fail_next("rejected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTIFIER_CONFIG", str(config))
        patch.setenv("NOTIFIER_REDIS_URL", redis_server.url)
        assert pages.run_blocks(f"how-to/{page}.md", redis_server.url, **given, **tokens, **phones)
    assert page != "enqueue" or "1 cancelled, 0 were being sent\n" in capsys.readouterr().out


def test_the_page_of_channels_runs() -> None:
    """Its Python runs under its own rates."""
    page = "how-to/channels.md"
    rates = "\n".join(YAML.findall(pages.read(page)))
    fake = FakeNotifier(parse_settings(f"{rates}\nproviders: {{apns: {{client: console}}}}\n"))
    assert pages.run_blocks(page, "", notifier=fake)
    (sent,) = fake.accepted
    assert fake.policies.for_user(sent.user) == fake.policies.everyone
    assert next(fake.users.export()) == {"user": sent.user, "tier": "channel"}


@pytest.mark.parametrize("page", WALKS)
def test_what_is_shown_fits_a_terminal(page: str) -> None:
    """What the page shows as printed is at most eighty columns wide."""
    shown = [line for step in pages.steps(page) for line in (step.shown or "").splitlines()]
    assert [line for line in shown if len(line) > pages.COLUMNS] == []


@pytest.mark.parametrize("text", YAML.findall(RATES))
def test_what_can_be_written_is_right(text: str, tmp_path: Path) -> None:
    """Each piece of YAML on the page is one that the notifier takes, beside the users in the file of the page."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "many.jsonl").write_text("\n".join(LINES.findall(RATES)), encoding="utf-8")
    tiers = "" if "tiers:" in text else "\ntiers: {quiet: {gap: 5s}}\n"
    assert parse_settings(text + tiers, name=str(tmp_path / "notifier.yaml")).rates_version
