"""What others choose the size and the form of: it is bounded, and it steers nothing."""

import html
import io
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from unittest.mock import patch
from urllib.parse import urlencode

import pytest
from redis import Redis

from notifier import InvalidNotificationError, Notification
from notifier.cli import output
from notifier.errors import SettingsError
from notifier.notification import Device
from notifier.notification.notification import MAX_DEVICES
from notifier.providers.apns import answers as apns_answers
from notifier.providers.expo.answers import read_ticket
from notifier.server import actions
from notifier.settings.schema_processes import WebhookSettings
from notifier.settings.secret_files import read_by_others
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, serving
from tests.harness.support import note, notifier, write_config

ESCAPES = "\x1b[2J\x1b]0;evil\x07\x9b31m\x7f\u202egnp.exe"


def test_a_ticket_id_of_any_length_is_not_kept() -> None:
    """A hundred thousand receipts are waited for; each is as long as Expo makes it, or none."""
    assert read_ticket({"status": "ok", "id": "x" * 36})[1] == "x" * 36
    assert read_ticket({"status": "ok", "id": "x" * 9000})[1] == ""


def test_a_forged_job_of_many_devices_is_refused_before_they_are_read() -> None:
    """It is refused by their number, so it costs nobody else the time to look at each."""
    devices = [{"platform": "apns", "token": "0" * 64}] * (MAX_DEVICES + 1)
    with pytest.raises(InvalidNotificationError, match="at most"):
        Notification.from_kwargs({"user": "ann", "title": "x", "devices": devices})
    Notification("ann", [Device("apns", f"{n:064x}") for n in range(MAX_DEVICES)], title="x").validate()


@pytest.mark.parametrize("ahead_s", [2 * 86_400, 5_400_000_000])
def test_a_token_is_not_gone_since_the_future(ahead_s: int) -> None:
    """A 410 that is dated ahead would also be held against tokens that the device gets until then."""
    timestamp = int((time.time() + ahead_s) * 1000)
    body = json.dumps({"reason": "Unregistered", "timestamp": timestamp}).encode()
    assert apns_answers.read(410, {}, body).gone_at_us is None
    body = json.dumps({"reason": "Unregistered", "timestamp": int(time.time() * 1000)}).encode()
    assert apns_answers.read(410, {}, body).gone_at_us


def test_no_name_steers_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a line, nor in a table, nor as JSON, nor in an error."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(output.GIVEN, "json", False)  # whatever command ran before
    output.say(f"user {ESCAPES}")
    output.complain(f"user {ESCAPES}")
    output.answer(None, output.Rows(["user"], [[ESCAPES]], title=ESCAPES))
    output.print_json({"user": ESCAPES})
    written = out.getvalue()
    assert not set("\x1b\x07\x9b\x7f\u202e") & set(written)
    assert json.loads(written.splitlines()[-1]) == {"user": ESCAPES}


def test_no_name_turns_a_page_around(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Neither a line of it, nor what is asked for: that is found, and a field of a form sends what was given."""
    config, name = write_config(tmp_path, redis_server.url, user={"windows": ["1/1h"]}), "\u202egnp.exe\x9b"
    with notifier(config) as producer:
        producer.send(note(name))
    redis.zadd("notifier:wakeups:default", {name: 1})
    with serving(config, TOKEN) as client:
        ask = client.with_token(name)
        ask.submit("/pause", what=f"user:{name}", reason=name)
        pages = [ask(path)[1] for path in ("/", f"/user?{urlencode({'id': name})}", "/pause", "/log")]
        form = ask.submit("/rates/preview", rates=f"users: {{'{name}': 1}}")[1]
    for page in pages:
        assert "\\u202egnp.exe\\u009b" in page
        assert not {"\u202e", "\x9b"} & set(re.sub('="[^"]*"', "", page))
    assert f"'{name}'" in html.unescape(form.partition("<textarea")[2].partition("</textarea>")[0])


def test_a_name_between_colons_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No user's name becomes a picture: `:key:` is what is typed to look at that user."""
    monkeypatch.setattr(output.GIVEN, "json", False)  # whatever command ran before
    output.answer(None, "user :key:", output.Rows(["user"], [[":key:"]]))
    assert capsys.readouterr().out.count(":key:") == 2


def test_a_key_that_everybody_may_read_is_told(tmp_path: Path) -> None:
    """`config check` names the file, and what to do."""
    secret = tmp_path / "secret"
    secret.write_text("x", encoding="utf-8")
    settings = WebhookSettings.model_validate({"url": "https://example.com/", "secret_file": str(secret)})
    secret.chmod(0o644)
    (warning,) = read_by_others({"webhook": settings})
    assert "chmod 600" in warning
    assert "webhook.secret_file" in warning
    secret.chmod(0o600)
    assert list(read_by_others(settings)) == []


def test_rates_are_read_one_after_the_other(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Rates of many users take much memory, so who previews or applies some while others do is asked to wait."""
    config, reads, go_on = write_config(tmp_path, redis_server.url), Event(), Event()

    def parse(*_: object, **__: object) -> None:
        reads.set()
        assert go_on.wait(60)
        raise SettingsError("these were read")

    with serving(config, TOKEN) as client, patch.object(actions, "parse_rates", parse), ThreadPoolExecutor() as threads:
        ask = client.with_token()
        first = threads.submit(ask.post, "/api/v1/rates/preview", {"rates": "user: {}"})
        try:
            assert reads.wait(60)
            assert [ask.post(f"/api/v1/rates/{do}", {"rates": "user: {}"})[0] for do in ("preview", "apply")] == [
                409,
                409,
            ]
            assert client("/healthz")[0] == 200
        finally:
            go_on.set()
        assert "these were read" in first.result()[1]
        assert ask.post("/api/v1/rates/preview", {"rates": "user: {}"})[0] == 422
