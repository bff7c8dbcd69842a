"""The one shape in which every provider's answers are told, and the rules of Apple's and Google's in it."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, formatdate

import pytest

from notifier.providers.answers import LONGEST_WAIT_US, SECOND_US, Table, retry_after_us, unsendable, word
from notifier.providers.apns import answers as apns_answers
from notifier.providers.contract import Answer, Outcome
from notifier.providers.fcm import answers as fcm_answers
from notifier.providers.webpush import answers as webpush_answers

AGAIN = {Outcome.RETRY, Outcome.REFUSED, Outcome.BUSY, Outcome.FULL, Outcome.UNKNOWN, Outcome.FAULT}
TABLES = {"apns": apns_answers.TABLE, "fcm": fcm_answers.TABLE}
TOY = Table(
    by_reason={(400, "Gone"): Outcome.DEAD_TOKEN},
    by_status={200: Outcome.DELIVERED, 429: Outcome.RETRY},
    by_class={4: Outcome.REJECTED, 5: Outcome.UNKNOWN},
    wait_us={Outcome.RETRY: 5, Outcome.UNKNOWN: 7 * SECOND_US},
    least_us={429: 3 * SECOND_US, 5: 4 * SECOND_US, 503: 6 * SECOND_US},
)
NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def http_date(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


@pytest.mark.parametrize(
    ("status", "reason", "asked", "answer"),
    [
        (200, "", "9", Answer(Outcome.DELIVERED, 200)),
        (400, "Gone", "9", Answer(Outcome.DEAD_TOKEN, 400, "Gone")),
        (400, "Other", "", Answer(Outcome.REJECTED, 400, "Other")),
        (418, "Gone", "", Answer(Outcome.REJECTED, 418, "Gone")),
        (429, "", "", Answer(Outcome.RETRY, 429, "", 3 * SECOND_US)),
        (429, "", "1", Answer(Outcome.RETRY, 429, "", 3 * SECOND_US)),
        (429, "", "9", Answer(Outcome.RETRY, 429, "", 9 * SECOND_US)),
        (500, "", "", Answer(Outcome.UNKNOWN, 500, "", 7 * SECOND_US)),
        (500, "", "5", Answer(Outcome.UNKNOWN, 500, "", 5 * SECOND_US)),
        (500, "", "0", Answer(Outcome.UNKNOWN, 500, "", 4 * SECOND_US)),
        (503, "", "0", Answer(Outcome.UNKNOWN, 503, "", 6 * SECOND_US)),
        (301, "", "", Answer(Outcome.UNKNOWN, 301, "", 7 * SECOND_US)),
    ],
)
def test_a_table_is_read_from_the_special_to_the_general(status: int, reason: str, asked: str, answer: Answer) -> None:
    """Reason before status before class; nobody's answer is UNKNOWN; what is asked goes before the default wait, and
    never below the least.
    """
    assert TOY.read(status, reason, lambda name: asked if name == "retry-after" else "") == answer


@pytest.mark.parametrize(
    ("value", "date", "wait_s"),
    [
        ("0", "", 0),
        (" 120 ", "", 120),
        ("9" * 12, "", LONGEST_WAIT_US // SECOND_US),
        ("9" * 13, "", LONGEST_WAIT_US // SECOND_US),
        ("9" * 300, "", LONGEST_WAIT_US // SECOND_US),
        ("0" * 13 + "120", "", 120),
        (http_date(NOW + timedelta(seconds=90)), http_date(NOW), 90),
        (http_date(NOW - timedelta(seconds=90)), http_date(NOW), 0),
        (http_date(NOW + timedelta(days=400)), http_date(NOW), LONGEST_WAIT_US // SECOND_US),
        # Not what HTTP asks for, and yet seen: a zone that is not told, or another one.
        ("Thu, 01 May 2031 12:01:00 -0000", http_date(NOW), 60),
        ("Thu, 01 May 2031 14:01:00 +0200", http_date(NOW), 60),
        ("", "", None),
        ("soon", "", None),
        ("-5", "", None),
        ("1.5", "", None),
        ("٣", "", None),
        ("9" * 5000, "", None),
        ("Thu, 99 May 2031 12:00:00 GMT", "", None),
        ("Thu, 01 May 2031 12:00:00 +99999999999999999999", "", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", "", 0),
    ],
)
def test_retry_after_is_read_in_both_forms(value: str, date: str, wait_s: int | None) -> None:
    """Seconds or an HTTP date, by the server's own clock; at most a day, never negative; nonsense says nothing."""
    assert retry_after_us(value, date) == (None if wait_s is None else wait_s * SECOND_US)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_without_the_servers_clock_a_date_is_read_by_ours(date: str) -> None:
    """A response with no usable Date header leaves our own clock to count from."""
    left_us = retry_after_us(formatdate(time.time() + 300, usegmt=True), date)
    assert left_us is not None
    assert 290 * SECOND_US < left_us <= 300 * SECOND_US


def test_only_a_single_word_is_a_reason() -> None:
    """What goes into logs and records is a provider's word, never a page or a token that somebody put there."""
    assert unsendable(ValueError("a text")).reason == "InvalidNotification: ValueError"
    assert word("Unregistered") == "Unregistered"
    assert word("QUOTA_EXCEEDED") == "QUOTA_EXCEEDED"
    for odd in ("", "<html>", "two words", "a\nb", "x" * 65, "7", None, 7, ["a"]):
        assert word(odd) == ""


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_answer_has_a_meaning(table: Table) -> None:
    """Whatever the status and reason, the answer is one of the outcomes, and one that is tried again says when."""
    for status in range(100, 1000):
        for reason in ("", "NeverHeardOf"):
            answer = table.read(status, reason, lambda _: "")
            assert answer.outcome is not Outcome.DEAD_TOKEN
            again = answer.outcome in AGAIN
            assert (answer.retry_after_us is not None) == again
            assert (answer.outcome is Outcome.DELIVERED) == (status == 200)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_5xx_may_have_delivered(table: Table) -> None:
    """A 5xx, also a 503, is UNKNOWN whatever it says: some were seen to have delivered."""
    for status in (500, 502, 503, 504, 599):
        assert table.outcome(status, "") is Outcome.UNKNOWN
    assert {o for (status, _), o in table.by_reason.items() if status >= 500} <= {Outcome.UNKNOWN}


def test_only_these_answers_say_that_a_token_is_dead() -> None:
    """Unregistered, ExpiredToken, ChannelNotRegistered, UNREGISTERED; no other reason, nor any status alone."""
    dead = {
        (name, *key)
        for name, table in TABLES.items()
        for key, outcome in table.by_reason.items()
        if outcome is Outcome.DEAD_TOKEN
    }
    assert dead == {
        ("apns", 410, "Unregistered"),
        ("apns", 410, "ExpiredToken"),
        ("apns", 400, "ChannelNotRegistered"),
        ("fcm", 404, "UNREGISTERED"),
    }
    for table in TABLES.values():
        assert Outcome.DEAD_TOKEN not in {*table.by_status.values(), *table.by_class.values()}
    assert TABLES["apns"].outcome(400, "BadDeviceToken") is Outcome.REJECTED
    assert TABLES["fcm"].outcome(400, "INVALID_ARGUMENT") is Outcome.REJECTED


@pytest.mark.parametrize(
    ("table", "status", "asked", "wait_s"),
    [
        *((apns_answers.TABLE, 503, asked, wait_s) for asked, wait_s in (("", 900), ("5", 900), ("1800", 1800))),
        *((fcm_answers.TABLE, 429, asked, wait_s) for asked, wait_s in (("", 60), ("5", 60), ("1800", 1800))),
        *((fcm_answers.TABLE, 500, asked, wait_s) for asked, wait_s in (("", 10), ("30", 30))),
        *((fcm_answers.TABLE, 503, asked, wait_s) for asked, wait_s in (("", 10), ("7", 7), ("soon", 10))),
        *((webpush_answers.TABLE, 429, asked, wait_s) for asked, wait_s in (("", 60), ("5", 60), ("90", 90))),
        *((webpush_answers.TABLE, status, "5", 5) for status in (406, 503)),
        (webpush_answers.TABLE, 503, "", 10),
    ],
)
def test_the_waits_that_apple_and_google_ask_for(table: Table, status: int, asked: str, wait_s: int) -> None:
    """Apple: 15 minutes after a 5xx. Google: at least a minute after a 429. Retry-After may only lengthen them."""
    headers = {"retry-after": asked, "date": ""}
    assert table.read(status, "", headers.__getitem__).retry_after_us == wait_s * SECOND_US


@pytest.mark.parametrize(
    ("body", "gone_at_us"),
    [
        (b'{"reason": "Unregistered", "timestamp": 1700000000123}', 1_700_000_000_123_000),
        (b'{"reason": "ExpiredToken", "timestamp": 1}', 1_000),
        (b'{"reason": "Unregistered"}', None),
        (b'{"reason": "Unregistered", "timestamp": null}', None),
        (b'{"reason": "Unregistered", "timestamp": true}', None),
        (b'{"reason": "Unregistered", "timestamp": "1700000000123"}', None),
        (b'{"reason": "Unregistered", "timestamp": 1700000000123.5}', None),
        (b'{"reason": "Unregistered", "timestamp": -1}', None),
        (b'{"reason": "Unregistered", "timestamp": 99999999999999999999}', None),
    ],
)
def test_a_dead_token_has_the_providers_own_time(body: bytes, gone_at_us: int | None) -> None:
    """Apple's timestamp, in milliseconds, says since when; one that makes no sense is none."""
    answer = apns_answers.read(410, {}, body)
    assert (answer.outcome, answer.gone_at_us) == (Outcome.DEAD_TOKEN, gone_at_us)


def test_no_other_answer_has_a_time_of_death() -> None:
    """A timestamp beside any other reason says nothing of the token."""
    for status, reason in ((400, "BadDeviceToken"), (410, "Somewhere"), (200, "")):
        body = json.dumps({"reason": reason, "timestamp": 1_700_000_000_123}).encode()
        assert apns_answers.read(status, {}, body).gone_at_us is None
