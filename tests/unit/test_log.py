import io
import json
import logging
import os
import re
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rq.logutils import colorizer, green

from notifier.log import configure_logging, mask_secrets, mask_text
from notifier.texts import mask

TOKEN = "0123456789abcdef" * 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_object_on_one_line() -> None:
    """In production each event is one line of JSON with UTC time, level, logger and what is bound."""
    stream = io.StringIO()
    configure_logging("json", stream=stream)
    log = structlog.get_logger("notifier.x").bind(user="42", job_id="j1", category="chat")
    log.info("returned", wait_ms=1_500, text="two\nlines")
    (record,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", record.pop("timestamp"))
    assert record == {
        "event": "returned",
        "level": "info",
        "logger": "notifier.x",
        "user": "42",
        "job_id": "j1",
        "category": "chat",
        "wait_ms": 1_500,
        "text": "two\nlines",
    }


def test_the_standard_library_and_rq_go_the_same_way() -> None:
    """What RQ logs comes out as the same lines, once, with its logger's name."""
    stream = io.StringIO()
    logging.getLogger("rq.worker").addHandler(logging.StreamHandler(stream))
    configure_logging("json", stream=stream)
    logging.getLogger("rq.worker").info("Worker %s: started", "w1")
    (record,) = lines(stream)
    assert (record["event"], record["logger"], record["level"]) == ("Worker w1: started", "rq.worker", "info")


@pytest.mark.parametrize("format_", ["json", "console"])
def test_rqs_own_colours_are_left_out(format_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ writes them into its texts where its standard output is a terminal, and knows nothing of our lines."""
    monkeypatch.setattr(colorizer, "notty", False)
    configure_logging(format_, stream=(stream := io.StringIO()))
    logging.getLogger("rq.worker").info("*** Listening on %s...", green("urgent, default"))
    assert "*** Listening on urgent, default..." in stream.getvalue()


def test_what_a_function_returned_is_left_out() -> None:
    """RQ logs it, at debug, and it may be a text of several lines."""
    configure_logging("json", stream=(stream := io.StringIO()))
    logging.getLogger("rq.worker").info("Worker %s: result: %s", "w1", "your code\nis 991-823")
    assert json.loads(stream.getvalue())["event"] == "Worker w1: result: …"


def test_auto_is_coloured_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person gets coloured key=value lines, a pipe gets JSON; NO_COLOR is obeyed."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    configure_logging("auto", stream=terminal)
    structlog.get_logger("a").info("sent", user="42")
    assert "\x1b[" in terminal.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "sent" in plain
    assert "user=42" in plain
    configure_logging("auto", stream=pipe)
    structlog.get_logger("a").info("sent", user="42")
    assert lines(pipe)[0]["user"] == "42"
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logging("console", stream=(quiet := Terminal()))
    structlog.get_logger("a").info("sent", user="42")
    assert "\x1b[" not in quiet.getvalue()


def test_nothing_that_is_logged_steers_a_terminal() -> None:
    """Whoever named it: in the event, a key, a value, and the text of an exception."""
    evil = "\x1b[2J\x1b]0;evil\x07\x9b31m\x7f\u202egnp.exe"
    for stream in (io.StringIO(), Terminal()):
        configure_logging("console", stream=stream)
        structlog.get_logger("a").info(evil, user=evil, of=f"user {evil}", **{evil: [evil, {evil: evil}]})
        logging.getLogger("b").info("of %s", evil)
        try:
            int(f"a{evil}")
        except ValueError:
            structlog.get_logger("a").exception("failed")
        written = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())  # its own colours
        assert not set("\x1b\x07\x9b\x7f\u202e") & set(written)
        assert written.count("]0;evil") >= 8


def test_the_level_holds_for_both_and_a_second_call_replaces_the_first() -> None:
    """What is below the level is not written, and configuring twice does not write twice."""
    first, second = io.StringIO(), io.StringIO()
    configure_logging("json", "debug", first)
    configure_logging("json", "warning", second)
    structlog.get_logger("a").info("no")
    logging.getLogger("b").info("no")
    structlog.get_logger("a").warning("yes")
    logging.getLogger("b").warning("yes")
    assert first.getvalue() == ""
    assert [record["event"] for record in lines(second)] == ["yes", "yes"]


def test_an_unknown_level_or_format_is_refused() -> None:
    """A wrong name is a ValueError and changes nothing."""
    before = logging.getLogger().handlers[:]
    with pytest.raises(ValueError, match="no such logging"):
        configure_logging("json", "loud")
    with pytest.raises(ValueError, match="no such logging"):
        configure_logging("xml")  # type: ignore[arg-type]
    assert logging.getLogger().handlers == before


def test_an_exception_is_text_in_the_record_without_local_variables() -> None:
    """A traceback stays on the record's line and tells neither locals nor tokens."""
    for stream, format_ in ((io.StringIO(), "json"), (Terminal(), "console")):
        configure_logging(format_, stream=stream)  # type: ignore[arg-type]
        body = "a private " + "message"
        try:
            os.environ[f"no such device {TOKEN}"]
        except KeyError:
            structlog.get_logger("a").exception("failed")
            logging.getLogger("b").exception("failed")
        written = stream.getvalue().replace("\\u2026", "…")
        assert written.count("KeyError: 'no such device 012345…ef'") == 2
        assert TOKEN not in written
        assert body not in written
        if format_ == "json":
            assert len(lines(stream)) == 2


def test_http2_headers_are_not_logged_at_debug() -> None:
    """The debug level does not switch on the libraries that print headers, bearer token and all."""
    configure_logging("json", stream=(stream := io.StringIO()))
    logging.getLogger("hpack.hpack").debug("Adding (b'authorization', b'bearer x')")
    logging.getLogger("google.auth.transport.requests").debug("Making request")
    assert stream.getvalue() == ""


def masked(**values: Any) -> dict[str, Any]:
    return dict(mask_secrets(None, "info", values))


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "key", "api_key", "apiKey", "private-key", "body", "title", "password",
     "redis_password", "data", "kwargs", "jwt"],
)  # fmt: skip
def test_what_has_a_secret_name_is_masked_whole(key: str) -> None:
    """A value under the name of a secret is never written, whatever its type and however deep it stands."""
    for value in ("hunter2", 1234, ["hunter2"], {"a": "hunter2"}, b"hunter2"):
        assert masked(**{key: value}) == {key: "…"}
        assert masked(outer=[{"inner": {key: value}}]) == {"outer": [{"inner": {key: "…"}}]}


def test_what_only_sounds_like_a_secret_is_kept() -> None:
    """Ids and counts stay readable: the last word of a name decides."""
    values = {
        "key_id": "ABC",
        "token_count": 3,
        "key_file": "a.p8",
        "user": "42",
        "monkey": "x",
        "left": None,
        "ok": True,
    }
    assert masked(**values) == values


def test_a_token_is_shown_as_everywhere_enough_to_tell_two_apart() -> None:
    """A token is shortened as `mask` does it, and one that is shortened already is left as it is."""
    assert masked(token=TOKEN) == {"token": "012345…ef"}
    for shown in ("012345…ef", mask('{"endpoint": "https://push.example/1"}')):
        assert masked(token=shown) == {"token": shown}
    assert masked(device_tokens=[TOKEN, "short"]) == {"device_tokens": ["012345…ef", "…"]}
    assert masked(token={"a": TOKEN}) == {"token": "…"}


def test_a_token_is_masked_wherever_it_stands() -> None:
    """64 and more hexadecimal digits are masked in any text, key, list or object; 63 are not."""

    class Device:
        def __repr__(self) -> str:
            return f"Device({TOKEN})"

    written = masked(
        event=f"sent to {TOKEN}!", **{TOKEN: 1}, many=(TOKEN, {TOKEN}), thing=Device(), deep={TOKEN: TOKEN}
    )
    assert TOKEN not in json.dumps(written)
    assert written["event"] == "sent to 012345…ef!"
    assert masked(event=TOKEN[1:]) == {"event": TOKEN[1:]}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("default: notifier.deliver(user='42', title='hunter2', body=\"it's hunter2\") (j1)", "hunter2"),
        ("deliver(body='cut off hunter2", "hunter2"),
        ("deliver(body='with a quote \\' hunter2', user='1')", "hunter2"),
        ("{'title': 'hunter2', 'data': {'a': {'b': 'hunter2'}, 'c': 'hunter2'}}", "hunter2"),
        ('{"body": "hunter2"}', "hunter2"),
        ("Error connecting to redis://:hunter2@host:6379", "hunter2"),
        ("Error connecting to rediss://user:hunter2@host", "hunter2"),
        ("authorization: Bearer hunter2hunter2", "hunter2"),
        ("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJhIn0.hunter2", "hunter2"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY----- after", "hunter2"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "hunter2"),
    ],
)
def test_a_secret_is_known_by_its_form(text: str, secret: str) -> None:
    """Calls as RQ describes them, URLs with passwords, bearer tokens, JWTs and PEM are masked in any text."""
    assert secret not in mask_text(text)


def test_ordinary_text_is_left_as_it_is() -> None:
    """Masking does not touch what is no secret."""
    for text in ("Worker rq:worker:1a2b started", "https://api.push.apple.com:443/3", "the token is masked", "title"):
        assert mask_text(text) == text


class Unprintable:
    pass


@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.floats() | st.text() | st.binary(), st.lists), max_size=4)
)
def test_whatever_is_logged_becomes_json(values: dict[str, Any]) -> None:
    """Infinities, bytes and lone surrogates are written as valid JSON: no log line is ever lost."""
    written = json.dumps(mask_secrets(None, "info", values), allow_nan=False)
    assert "\n" not in written
