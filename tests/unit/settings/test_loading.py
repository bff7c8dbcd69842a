import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import notifier.settings
from docs.settings_schema import schema
from notifier.errors import SettingsError
from notifier.log import mask_text
from notifier.providers.fcm.settings import FcmSettings
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import Category, PlatformLimits
from notifier.rules.hours import Hours
from notifier.rules.policy import Burst, Policy, Window
from notifier.rules.zones import VERSION
from notifier.settings import errors, load_settings, parse_settings, settings_path
from notifier.settings.rates import version_of
from notifier.store.published import _written, read_rates

SHIPPED = Path(__file__).parents[3] / "config" / "notifier.yaml"
FULL = Path(notifier.settings.__file__).with_name("templates") / "full.yaml"
SECOND, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000
PEM = "-----BEGIN PRIVATE KEY-----\nMIGHsecretsecret\n-----END PRIVATE KEY-----\n"


def problems(text: str) -> list[str]:
    """Return the lines of the error that a text is refused with, without the file's name."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, name="n.yaml")
    lines = str(caught.value).split("\n")
    assert all(line.startswith("n.yaml:") for line in lines)
    return [line.removeprefix("n.yaml:") for line in lines]


def only(text: str) -> str:
    (line,) = problems(text)
    return line


# What is right


def test_the_shipped_file_loads_and_runs_on_the_console() -> None:
    """The file in config/ is valid as it is and sends nothing to anyone: a newcomer can start a worker."""
    loaded = load_settings(SHIPPED, environ={})
    assert loaded.providers.apns is not None
    assert loaded.providers.fcm is not None
    assert (loaded.providers.apns.client, loaded.providers.fcm.client) == ("console", "console")
    policies = loaded.policies()
    everyone = Policy((Window(10, interval_us=MINUTE), Window(200, interval_us=DAY)), 1_500_000)
    assert policies.for_user("42") == everyone, "nobody is throttled for having the id of an example"
    assert policies.category("chat").lane == "urgent"
    assert policies.category("security").bypass
    assert policies.category("marketing").lane == "bulk"
    assert policies.knows("default")


def _keys(schema: dict[str, Any]) -> set[str]:
    sections = [schema, *schema.get("$defs", {}).values()]
    return {key for section in sections for key in section.get("properties", {})}


def test_the_full_file_shows_every_key() -> None:
    """No key of the schema is missing in what `config init --full` writes, be it set or in a comment."""
    words = FULL.read_text(encoding="utf-8")
    keys = _keys(schema())
    assert {"redis", "on_unknown", "key_file", "most", "dedupe_for"} <= keys
    assert sorted(key for key in keys if key not in words) == []


def test_the_full_file_with_its_comments_filled_in_is_right_too(tmp_path: Path) -> None:
    """The commented lines are real keys at the right place: taking the '# ' away gives a valid file."""
    text = FULL.read_text(encoding="utf-8").replace("    client: console\n", "")
    keys = "|".join(_keys(schema()))
    text, count = re.subn(rf"^( +)# ((?:{keys}): [^ ]+)$", r"\1\2", text, flags=re.MULTILINE)
    assert count == 37
    filled = parse_settings(text, name=str(tmp_path / "n.yaml"))
    apns, fcm = filled.providers.apns, filled.providers.fcm
    assert apns is not None
    assert fcm is not None
    assert (apns.client, apns.team_id, apns.topic) == ("h2", "ABCDE12345", "com.example.app")
    assert fcm.service_account == Path("/run/secrets/service-account.json")
    assert filled.redis.password_file == Path("/run/secrets/redis_password")


def test_nothing_but_a_mapping_is_needed() -> None:
    """An empty mapping has every default, with units as microseconds."""
    plain = parse_settings("{}")
    assert plain.redis.url == "redis://localhost:6379/0"
    assert plain.redis.socket_timeout_us == 5 * SECOND
    assert (plain.worker.batch, plain.worker.in_flight) == (50, 500)
    assert (plain.worker.lease_us, plain.worker.grace_us) == (10 * SECOND, 8 * SECOND)
    assert (plain.worker.backoff.first_us, plain.worker.backoff.max_us) == (2 * SECOND, 10 * MINUTE)
    assert (plain.keep_failed_us, plain.keep_delivered_us, plain.dedupe_for_us) == (7 * DAY, 10 * MINUTE, DAY)
    assert (plain.log.format, plain.log.level) == ("auto", "info")
    assert plain.providers.platforms() == {}
    assert plain.policies().for_user("anyone").is_empty


def test_an_override_takes_what_it_does_not_give_from_user() -> None:
    """Tiers and users replace only the keys they give; an empty list and 0s are given."""
    policies = parse_settings(
        """
        user: {windows: [10/minute], gap: 1s}
        tiers:
          slow: {gap: 9s}
        users:
          a: slow
          b: {windows: [1/day]}
          c: {windows: [], gap: 0s}
          d: {}
        """
    ).policies()
    minute, day = (Window(10, interval_us=MINUTE),), (Window(1, interval_us=DAY),)
    assert policies.for_user("a") == Policy(minute, 9 * SECOND)
    assert policies.for_user("b") == Policy(day, SECOND)
    assert policies.for_user("c").is_empty
    assert policies.for_user("d") == policies.for_user("unheard of") == Policy(minute, SECOND)


def test_quiet_hours_and_calendar_windows_are_resolved_like_other_rules() -> None:
    """What a tier does not give is the user's, `none` is none; a category adds its own, or ignores the user's."""
    policies = parse_settings(
        """
        zone: Asia/Tokyo
        user: {windows: [10/minute, 3/calendar-day], quiet_hours: "21:00-08:00"}
        tiers: {awake: {quiet_hours: none}, few: {windows: [1/calendar-week]}}
        users: {a: awake, b: few, c: {quiet_hours: 22:30-06:15}}
        worker: {lease: 20s}
        categories:
          default: {lane: default}
          alarm: {lane: urgent, quiet_hours: ignore}
          news: {lane: bulk, quiet_hours: 12:00-13:00}
        """
    ).policies()
    day, night = CalendarWindow(3, "day"), Hours(21 * 60 * MINUTE, 8 * 60 * MINUTE)
    rolling = (Window(10, interval_us=MINUTE),)
    assert (policies.zone, policies.lead_us) == ("Asia/Tokyo", 20 * SECOND)
    assert policies.for_user("anyone") == Policy(rolling, calendar=(day,), quiet=(night,))
    assert policies.for_user("a") == Policy(rolling, calendar=(day,))
    assert policies.for_user("b") == Policy(calendar=(CalendarWindow(1, "week"),), quiet=(night,))
    assert str(policies.for_user("c")) == "10/1m, 3/calendar-day, quiet 22:30-06:15"
    assert policies.category("alarm").ignores_quiet
    assert policies.category("alarm").policy.is_empty
    assert str(policies.category("news").policy) == "quiet 12:00-13:00"
    assert not policies.category("news").ignores_quiet


def test_what_is_published_is_read_as_it_was_written() -> None:
    """Sections, large ones too, and the zone."""
    rates = {"zone": "Asia/Tokyo", "user": {"gap": "1s"}, "users": {str(n): {"gap": "2s"} for n in range(2_500)}}
    assert read_rates(_written(rates).encode()) == rates
    assert version_of(rates) != version_of(rates | {"zone": "Etc/UTC"})


def test_a_category_takes_all_its_keys_along() -> None:
    """What stands under a category is what the category object says."""
    text = """
    categories:
      news: {lane: bulk, windows: [1/2h], gap: 4h, expires: 2d, bypass: true, attempts: 7, on_unknown: give_up,
        priority: high}
    """
    assert parse_settings(text).policies().category("news") == Category(
        "news",
        "bulk",
        Policy((Window(1, interval_us=120 * MINUTE),), 240 * MINUTE),
        2 * DAY,
        True,
        7,
        "give_up",
        priority="high",
    )


@pytest.mark.parametrize(
    ("written", "user"), [("42", "42"), ('"42"', "42"), ("042", "042"), ("no", "no"), ("1.5", "1.5"), ("é", "é")]
)
def test_a_users_id_is_the_text_that_stands_there(written: str, user: str) -> None:
    """An id is taken as its text, quoted or not: no number, no boolean is made of it."""
    policies = parse_settings(f"users: {{{written}: {{gap: 3s}}}}").policies()
    assert policies.for_user(user).gap_us == 3 * SECOND


def test_delivered_records_may_be_switched_off() -> None:
    """0s is allowed for keep_delivered, and for keep_failed it is not."""
    assert parse_settings("keep_delivered: 0s").keep_delivered_us == 0
    assert only("keep_failed: 0s") == "1:14: keep_failed: '0s' is outside what is allowed; give from 1ms to 366d"


# What is wrong, one at a time


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "user:\n  windows: [10/fortnight]",
            ("2:13: user.windows[0]: '10/fortnight': unknown unit 'fortnight'; "
            "use ms, s, m, h, d, w or second, minute, hour, day, week"),
        ),
        ("user: {gap: 5}", "1:13: user.gap: '5': a number without a unit; write 5ms or 5s, or use ms, s, m, h, d or w"),
        ("user: {gap: true}", "1:13: user.gap: must be a duration such as 1500ms, 10s or 7d, is true"),
        ("user: {gap: [1s]}", "1:13: user.gap: must be a duration such as 1500ms, 10s or 7d, is a list"),
        ("user: {gap: 1:30}", ("1:13: user.gap: '1:30' is not a duration; write a number and a unit, such as "
         "1500ms, 1.5s or 10m")),
        ("user: {windows: 10/minute}", "1:17: user.windows: must be a list such as [10/minute, 200/day], is text"),
        ("user: {windows: [5]}", "1:18: user.windows[0]: must be a rate such as 10/minute or 5/10s, is a number"),
        (f"user: {{windows: [{'1/s, ' * 11}]}}", "1:17: user.windows: has 11 windows; at most 10 are allowed"),
        ("categories: {a: {lane: bulk, overall: 5}}", ("1:39: categories.a.overall: must be a rate such as 10/minute "
         "or 5/10s, is a number")),
        ("redis: {prefix: 9x}", "1:17: redis.prefix: must be 1 to 32 letters, digits and _, and begin with a letter"),
        ("redis: {cert_key_file: k}", ("1:24: redis.cert_key_file: needs cert_file, the certificate that it is the key "
         "of")),
        ("user: {windos: []}", "1:8: user.windos: unknown key; did you mean windows?"),
        ("user: {zzz: 1}", ("1:8: user.zzz: unknown key; known are windows, gap, burst, send_hours, quiet_hours, "
         "max_waiting")),
        ("zone: Europe/Berln", ("1:7: zone: 'Europe/Berln' is not a time zone of the IANA database, "
         f"{VERSION}; did you mean Europe/Berlin?")),
        ("zone: 1", "1:7: zone: must be a time zone such as Europe/Berlin, is a number"),
        ("zone:", "1:6: zone: must be a time zone such as Europe/Berlin, is empty"),
        ('user: {quiet_hours: "21-8"}', ("1:21: user.quiet_hours: '21-8' are no quiet hours; write from when until "
         "when, such as 21:00-08:00 or sat-sun 21:00-08:00, or none")),
        ("user: {quiet_hours: [1]}", ('1:21: user.quiet_hours: must be text such as "21:00-08:00", a list of it, '
         "or text by day, or none")),
        ("worker: {lease: 601s}", "1:17: worker.lease: '601s' is outside what is allowed; give from 1ms to 10m"),
        ("worker: {lease: 2m}\nuser: {quiet_hours: 09:01-09:00}", ("2:21: user.quiet_hours: 09:01-09:00 leaves no time "
         "to send; leave more than worker.lease")),
        ("user: {windows: [1/calendar-year]}", ("1:18: user.windows[0]: '1/calendar-year' is not a rate; write a limit "
         "and one of calendar-day, calendar-week, calendar-month, such as 3/calendar-day")),
        ("user: {windows: [10/month]}", ("1:18: user.windows[0]: '10/month' is not a rate; write a limit "
         "and one of calendar-day, calendar-week, calendar-month, such as 3/calendar-day")),
        ("user: {windows: [{limit: 5, interval: 1m, precision: ''}]}", ("1:18: user.windows[0]: precision: '' is not a "
         "duration; write a number and a unit, such as 1500ms, 1.5s or 10m, or exact")),
        ("user: {windows: [0/calendar-day]}", ("1:18: user.windows[0]: '0/calendar-day': the limit of a calendar "
         "window must be from 1 to 1000")),
        ("user: {windows: [1/calendar-day, 1/hour]}", ("1:17: user.windows: has a calendar window before another one; "
         "put those of the calendar last")),
        ("user:", "1:6: user: must be a mapping of keys, is empty; write {} or delete the key"),
        ("user: {windows: }", "1:17: user.windows: is empty; give a value, or delete the key"),
        ("tiers: {few: {gap: }}", "1:20: tiers.few.gap: is empty; give a value, or delete the key"),
        ("categories: {c: {lane: bulk, gap: }}", "1:35: categories.c.gap: is empty; give a value, or delete the key"),
        ("users_from: ", "1:12: users_from: is empty; give a value, or delete the key"),
        ("redis: {max_memory: }", "1:21: redis.max_memory: is empty; give a value, or delete the key"),
        ("categories: {c: {lane: }}", "1:24: categories.c.lane: must be one of urgent, default, bulk, is empty"),
        ("catgories: {}", "1:1: catgories: unknown key; did you mean categories?"),
        ("users: {1: quit}", "1:12: users.1: unknown tier 'quit'; there are none under tiers"),
        ("tiers: {quiet: {}, loud: {}}\nusers: {1: quit}", ("2:12: users.1: unknown tier 'quit'; "
         "tiers are quiet, loud")),
        ("users: {1: 7}", "1:12: users.1: must be the name of a tier, or a mapping such as {gap: 10s}, is a number"),
        ("users: {1: {gapp: 7s}}", "1:13: users.1.gapp: unknown key; did you mean gap?"),
        ("users: {'': {}}", "1:9: users['']: is not a user's id; it must have 1 to 256 bytes"),
        ("tiers: {Quiet: {}}", ("1:9: tiers.Quiet: is not a name; use up to 64 of a-z, 0-9, '_' and '-', "
         "beginning with a letter or digit")),
        ("categories:\n  chat: {gap: 1s}", ("2:3: categories.chat.lane: is missing; "
         "give one of urgent, default, bulk")),
        ("categories: {c: {lane: bulk, digest: {title: t, body: b, after: 5}}}",
         "1:30: categories.c.digest.within: is missing"),
        ("categories: {c: {lane: fast}}", "1:24: categories.c.lane: must be one of urgent, default, bulk, is 'fast'"),
        ("categories: {c: {lane: bulk, bypass: yes}}", "1:38: categories.c.bypass: must be true or false, is 'yes'"),
        ("categories: {c: {lane: bulk, attempts: 0}}", "1:40: categories.c.attempts: must be at least 1, is 0"),
        ("categories: {c: {lane: bulk, cost: 11}}", "1:36: categories.c.cost: must be at most 10, is 11"),
        ("categories: {c: {lane: bulk, attempts: 101}}", "1:40: categories.c.attempts: must be at most 100, is 101"),
        ("categories: {c: {lane: bulk, attempts: 2.5}}", ("1:40: categories.c.attempts: must be a whole number "
         "without a unit, is 2.5")),
        ("categories: {c: {lane: bulk, expires: 0s}}", ("1:39: categories.c.expires: '0s' is outside what is allowed; "
         "give from 1ms to 366d")),
        ("categories: {c: {lane: bulk, overall: 1/s, bypass: true}}", ("1:39: categories.c.overall: holds nothing back "
         "beside bypass: true; leave out one of them")),
        ("categories: {c: {lane: bulk, overall: 200000/s}}", ("1:39: categories.c.overall: is more than 100000, "
         "and each send is counted; give fewer in a shorter time, such as 1000/s")),
        ("categories: {c: {lane: bulk, when_blocked: digest}}", ("1:14: categories.c.digest: is missing; "
         "give after, within and a text")),
        ("categories: {c: {lane: bulk, digest: {after: 2, within: 1h, body: x}}}", ("1:38: categories.c.digest: needs "
         "when_blocked: digest beside it")),
        ("categories: {c: {lane: bulk, when_blocked: digest, digest: {after: 2, within: 1h}}}",
         ("1:52: categories.c.digest.body: is missing, and title too; "
          'give one, such as "{count} new comments"')),
        ("redis: {max_memory: 120%}", "1:21: redis.max_memory: 120% is more than 100%; give at most 100%"),
        ("redis: {max_memory: much}", ("1:21: redis.max_memory: 'much' is not an amount of memory; write a share "
         "such as 80%, or KB, MB or GB, such as 2GB")),
        ("max_waiting: 0", "1:14: max_waiting: must be at least 1, is 0"),
        ("categories: {'a b': {lane: bulk}}", ("1:14: categories['a b']: is not a name; use up to 64 of a-z, 0-9, "
         "'_' and '-', beginning with a letter or digit")),
        ("worker: {batch: 1001}", "1:17: worker.batch: must be at most 1000, is 1001"),
        ("worker: {batch: ten}", "1:17: worker.batch: must be a whole number without a unit, is 'ten'"),
        ("worker: {backoff: {first: 1h}}", ("1:10: worker.backoff.most: 10m is less than first, 1h; "
         "give at least 1h")),
        ("log: {level: loud}", "1:14: log.level: must be one of debug, info, warning, error, critical, is 'loud'"),
        ("redis: {url: http://x}", ("1:14: redis.url: is not the URL of a Redis; write redis://host:6379/0, "
         "rediss://host:6379/0, unix:///path/to/socket, redis+sentinel://host:26379,host:26379/service/0 "
         "or redis+cluster://host:6379,host:6379")),
        ("redis: {password_file: 5}", "1:24: redis.password_file: must be the path of a file"),
        ("providers: {gcm: {}}", "1:13: providers.gcm: not installed; did you mean fcm?"),
        ("providers: {fcm: {endpoint: http://x}}", ("1:29: providers.fcm.endpoint: is not the address of a server; "
         "write https://host or https://host:port")),
        ("providers: {hms: {endpoint: 'https://[1:2]'}}", ("1:29: providers.hms.endpoint: is not the address of a "
         "server; write https://host or https://host:port")),
        ("users_may: {tier: vip}", "1:19: users_may.tier: must be a list, is 'vip'"),
        ("worker: {functions: 5}", "1:21: worker.functions: must be a list, is 5"),
        ("worker: {functions: ['a b']}", ("1:22: worker.functions[0]: must be the name of a module or function, "
         "such as shop.tasks or blog.mail.send, is 'a b'")),
        (f"worker: {{functions: [{'ab.' * 100}c]}}", ("1:22: worker.functions[0]: must be text of at most 300 "
         "characters, is 'ab.ab.ab.ab.ab.ab.ab…'")),
        ("[1]", "1:1: must be a mapping of keys, is a list"),
        ("just words", "1:1: must be a mapping of keys, is text"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line_its_key_and_what_would_be_right(text: str, says: str) -> None:
    """One mistake is one line: file, line, column, path to the key, what is wrong, what would be right."""
    assert only(text) == says


def test_all_mistakes_are_told_at_once_from_top_to_bottom() -> None:
    """Several mistakes in one file are reported together, in the order of the file."""
    text = "user: {gap: 5, windows: [x, 1/day, y]}\nzzz: 1\nlog: {level: 3}\nusers: {7: nope}\ntiers: {a: {gap: z}}\n"
    places = [line.split(" ")[1] for line in problems(text)]
    assert places == [
        "user.gap:",
        "user.windows[0]:",
        "user.windows[2]:",
        "zzz:",
        "log.level:",
        "users.7:",
        "tiers.a.gap:",
    ]


def test_no_one_reads_a_thousand_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many problems the first fifty are shown, and the number of the others; of these no message is made."""
    made: list[Any] = []
    write = errors.message
    monkeypatch.setattr(errors, "message", lambda *given: made.append(given) or write(*given))
    lines = problems("users:\n" + "".join(f"  u{number}: {{gapp: 1s}}\n" for number in range(1_000)))
    assert len(made) == 50
    assert lines[49].endswith(" users.u49.gapp: unknown key; did you mean gap?")
    assert lines[50:] == [" and 950 more"]


def test_h2_needs_the_keys_of_apple_and_console_none() -> None:
    """Each missing key of a real client is named; the console client needs nothing, and what it has may stay."""
    lines = problems("providers: {apns: {client: h2}}")
    assert [line.split(" ")[1] for line in lines] == [
        "providers.apns.team_id:",
        "providers.apns.key_id:",
        "providers.apns.topic:",
    ]
    parse_settings("providers: {apns: {client: console, topic: com.example.app}, fcm: {client: console}}")
    assert "is not what Apple calls a team_id" in only("providers: {apns: {team_id: ABC, client: console}}")
    assert "must be text, in quotes" in only("providers: {apns: {team_id: 1234567890, client: console}}")


def test_a_lease_outlasts_every_send() -> None:
    """A lease of less than a provider's timeout and 2 s is refused, and the error says what would do."""
    tight = "worker: {lease: 10s}\nproviders: {fcm: {client: console, timeout: %s}}"
    assert parse_settings(tight % "8s").worker.lease_us == 10 * SECOND
    assert only(tight % "8001ms") == (
        "1:17: worker.lease: 10s is too short for the timeout of providers.fcm: "
        "give at least 10001ms, which is the timeout and 2s"
    )


# What is not even YAML


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a file holds, the only error is a SettingsError."""
    try:
        assert parse_settings(text) is not None
    except SettingsError as error:
        assert str(error).startswith("config/notifier.yaml:")  # noqa: PT017 - nearly all are refused


KEYS = sorted(_keys(schema()) | {"x", "1"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["1s", "1/s", "h2", "bulk", ""])
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_shape_is_read_or_refused_at_its_place(data: dict[str, Any]) -> None:
    """Numbers for text, lists for mappings and nulls anywhere are told with line and column, never a traceback."""
    try:
        assert parse_settings(json.dumps(data), name="n") is not None
    except SettingsError as error:
        for line in str(error).splitlines():
            name, number, column, _ = line.split(":", 3)
            assert (name, int(number) >= 1, int(column) >= 1) == ("n", True, True)


# Secrets


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("redis: {url: 'redis://:hunter2@host:6379/0'}", "redis.url: holds a password"),
        ("redis: {url: 'rediss://user:hunter2@host'}", "NOTIFIER_REDIS_URL"),
        ("redis: {url: 'redis://host/0?password=hunter2'}", "redis.password_file"),
        ("redis: {url: 'redis://:hunter2/x@host:port'}", "redis.url: holds a password"),
        ("redis: {uri: 'redis://:hunter2@host'}", "holds a password"),
        ("providers: {apns: {endpoint: 'https://user:hunter2@host'}}", "is not the address of a server"),
        ("providers:\n  apns:\n    key_file: |\n      -----BEGIN PRIVATE KEY-----\n      hunter2", "NOTIFIER_APNS_KEY"),
        ("providers: {apns: {client: '-----BEGIN PRIVATE KEY-----hunter2'}}", "holds a private key"),
        ("providers: {fcm: {service_account: {private_key: '-----BEGIN hunter2'}}}", "NOTIFIER_FCM_SERVICE_ACCOUNT"),
        ("'-----BEGIN hunter2': 1", "holds a private key"),
        ("providers: {apns: {key_file: " + "MIGhunter2" * 20 + "}}", "holds a private key"),
        ("providers: {apns: {key_id: '-----BEGIN PRIVATE KEY-----hunter2'}", "is not YAML"),
        ("redis: {url: 'redis://:hunter2@host'", "is not YAML"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_never_shown(text: str, says: str) -> None:
    """A key or password pasted into the YAML is an error that says where it belongs, without its value."""
    lines = problems(text)
    assert any(says in line for line in lines)
    assert "hunter2" not in "\n".join(lines)


def test_the_redis_url_of_the_environment_goes_first_and_may_have_a_password(tmp_path: Path) -> None:
    """NOTIFIER_REDIS_URL overrides redis.url; its password is neither in a repr nor in an error."""
    path = tmp_path / "n.yaml"
    path.write_text("redis: {url: redis://one}", encoding="utf-8")
    loaded = load_settings(path, {"NOTIFIER_REDIS_URL": "redis://:hunter2@two:7000/1"})
    assert loaded.redis.url == "redis://:hunter2@two:7000/1"
    assert "hunter2" not in repr(loaded)
    assert load_settings(path, {"NOTIFIER_REDIS_URL": ""}).redis.url == "redis://one"
    with pytest.raises(SettingsError, match=r"^NOTIFIER_REDIS_URL: is not the URL of a Redis") as caught:
        load_settings(path, {"NOTIFIER_REDIS_URL": "redis://:hunter2@two:port"})
    assert "hunter2" not in str(caught.value)
    for url in ("redis://:hunter2#x@two", "redis+cluster://:hunter2/x@two", "redis+sentinel://:hunter2/x@two/service"):
        with pytest.raises(SettingsError, match="in a password write %2F for /") as caught:
            load_settings(path, {"NOTIFIER_REDIS_URL": url})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://h", "rediss://u@h:1/15", "unix:///run/redis.sock", "redis://[::1]:6379/0"])
def test_a_redis_url_may_have_each_of_its_forms(url: str) -> None:
    """TCP, TLS, a Unix socket and an IPv6 address are all URLs of a Redis."""
    assert parse_settings(f"redis: {{url: '{url}'}}").redis.url == url


@pytest.mark.parametrize(
    "url",
    [
        *("redis://", "redis://h:0", "redis://h:99999", "redis://h/x", "unix://", "redis://[", "", 5),
        *(" redis://h", "REDIS://h", "Unix:///run/redis.sock", "unix:/run/redis.sock"),
    ],
)
def test_what_is_no_redis_url_is_refused(url: object) -> None:
    """A URL without host, with an impossible port or database, or not begun as redis-py asks: when the file is read."""
    assert "redis.url: is not the URL of a Redis" in only(f"redis: {{url: {json.dumps(url)}}}")


def test_no_secret_is_read_when_a_file_is_loaded() -> None:
    """A producer has no keys: files that do not exist are no error until somebody asks for the secret."""
    loaded = parse_settings(
        "redis: {password_file: none}\n"
        "providers: {apns: {team_id: ABCDE12345, key_id: ABCDE12345, topic: a.b, key_file: none.p8},\n"
        "            fcm: {service_account: none.json}}"
    )
    assert loaded.providers.apns is not None
    assert loaded.providers.fcm is not None
    with pytest.raises(SettingsError, match=r"providers\.apns\.key_file: cannot read .*none\.p8: No such file"):
        loaded.providers.apns.read_secret({})
    with pytest.raises(SettingsError, match=r"providers\.fcm\.service_account: cannot read .*none\.json: No such file"):
        loaded.providers.fcm.read_secret({})
    with pytest.raises(SettingsError, match=r"redis\.password_file: cannot read .*none: No such file"):
        loaded.redis.read_password()


def apns(folder: Path) -> Any:
    text = "providers: {apns: {team_id: ABCDE12345, key_id: ABCDE12345, topic: a.b, key_file: keys/a.p8}}"
    return parse_settings(text, name=str(folder / "n.yaml")).providers.apns


def test_the_apns_key_comes_from_its_file_beside_the_yaml_or_from_the_environment(tmp_path: Path) -> None:
    """A relative path is relative to the YAML's folder; the environment goes before the file."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.p8").write_text(PEM, encoding="utf-8")
    assert apns(tmp_path).read_secret({}) == PEM
    other = PEM.replace("secretsecret", "otherother")
    assert apns(tmp_path).read_secret({"NOTIFIER_APNS_KEY": other}) == other
    assert apns(tmp_path).read_secret({"NOTIFIER_APNS_KEY": other.replace("\n", "\\n")}) == other


def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    """A key that is not PEM, not text, or nowhere is a SettingsError that says where it was looked for."""
    with pytest.raises(SettingsError, match=r"^NOTIFIER_APNS_KEY is not a private key in PEM") as caught:
        apns(tmp_path).read_secret({"NOTIFIER_APNS_KEY": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert mask_text(str(caught.value)) == str(caught.value), "the log of a worker says what would be right"
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.p8").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        apns(tmp_path).read_secret({})
    (tmp_path / "keys" / "a.p8").write_bytes(b"x" * 1_000_001)
    with pytest.raises(SettingsError, match="far too large to be a secret"):
        apns(tmp_path).read_secret({})
    nowhere = parse_settings("providers: {apns: {client: console}}").providers.apns
    assert nowhere is not None
    with pytest.raises(SettingsError, match=r"^providers\.apns\.key_file is missing; .* set NOTIFIER_APNS_KEY$"):
        nowhere.read_secret({})


def test_the_service_account_is_checked_when_it_is_read() -> None:
    """Text that is no JSON, no object or no service account is a SettingsError without its content."""
    fcm = FcmSettings()
    account = {"project_id": "p", "client_email": "e", "private_key": "hunter2", "token_uri": "https://t"}
    variable = "NOTIFIER_FCM_SERVICE_ACCOUNT"
    assert fcm.read_secret({variable: json.dumps(account)}) == account
    for text in ("{hunter2", "[]", '"hunter2"', "1"):
        with pytest.raises(SettingsError, match=f"^{variable} is not a JSON object") as caught:
            fcm.read_secret({variable: text})
        assert "hunter2" not in str(caught.value)
    for key in account:
        rest = {name: value for name, value in account.items() if name != key}
        with pytest.raises(SettingsError, match=f"it has no {key}$") as caught:
            fcm.read_secret({variable: json.dumps(rest)})
        assert "hunter2" not in str(caught.value)


def test_the_redis_password_is_the_files_text_without_the_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor's newline is no part of the password; an empty file is an error. A path may begin with ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    redis = parse_settings("redis: {password_file: ~/pw}").redis
    (tmp_path / "pw").write_text(" hunter2 \n", encoding="utf-8")
    assert redis.read_password() == " hunter2 "
    (tmp_path / "pw").write_text("\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^redis\.password_file: .* is empty$"):
        redis.read_password()


# Finding the file


def test_the_argument_goes_before_the_environment_and_that_before_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is `path`, else NOTIFIER_CONFIG, else config/notifier.yaml of the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"there is no config/notifier\.yaml .* NOTIFIER_CONFIG, .* config init"):
        load_settings(environ={})
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "notifier.yaml").write_text("keep_failed: 1d", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("keep_failed: 2d", encoding="utf-8")
    (tmp_path / "c.yaml").write_text("keep_failed: 3d", encoding="utf-8")
    assert load_settings(environ={}).keep_failed_us == DAY
    assert load_settings(environ={"NOTIFIER_CONFIG": "b.yaml"}).keep_failed_us == 2 * DAY
    assert load_settings("c.yaml", environ={"NOTIFIER_CONFIG": "b.yaml"}).keep_failed_us == 3 * DAY
    assert settings_path(environ={}) == Path("config/notifier.yaml")


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8 or too large: the file and the reason, no traceback."""
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read: No such file or directory$"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match=r"none\.yaml, named by NOTIFIER_CONFIG: cannot be read"):
        load_settings(environ={"NOTIFIER_CONFIG": str(tmp_path / "none.yaml")})
    with pytest.raises(SettingsError, match=r"cannot be read: Is a directory$"):
        load_settings(tmp_path)
    path = tmp_path / "n.yaml"
    path.write_bytes(b"user:\n  gap: \xe4\n")
    with pytest.raises(SettingsError, match=r"n\.yaml:2:8: is not UTF-8 text; save the file as UTF-8$"):
        load_settings(path)
    path.write_bytes(b"#" * 5_000_001)
    with pytest.raises(SettingsError, match="is larger than 5 MB"):
        load_settings(path)
    path.write_bytes(b"\xef\xbb\xbfkeep_failed: 2d\n")
    assert load_settings(path, {}).keep_failed_us == 2 * DAY


def test_an_endless_file_is_not_read_to_its_end() -> None:
    """No more than 5 MB are taken from whatever is named as the configuration."""
    with pytest.raises(SettingsError, match="is larger than 5 MB"):
        load_settings(os.devnull.replace("null", "zero"))


def test_the_providers_own_limits_are_theirs_unless_given() -> None:
    """By default what Google and Apple say; each can be changed or switched off; none for who is not configured."""
    assert parse_settings("{}").policies().limits == {}
    usual = parse_settings("providers: {apns: {client: console}, fcm: {client: console}}").policies().limits
    hour = 3_600_000_000
    assert usual == {
        "fcm": PlatformLimits(
            device=Policy((Window(240, interval_us=hour // 60), Window(5_000, interval_us=hour))),
            collapsible=Burst(20, every_us=hour // 20),
            project=Window(600_000, interval_us=hour // 60),
        ),
        "apns": PlatformLimits(background=Policy((Window(3, interval_us=hour),))),
    }
    off = "providers: {fcm: {client: console, limits: {device: [], collapsible: null, project: null}}}"
    assert parse_settings(off).policies().limits == {}
    own = "providers: {fcm: {client: console, limits: {collapsible: {capacity: 5, refill: 1/3m}, project: 9/s}}}"
    changed = parse_settings(own).policies().limits["fcm"]
    assert (changed.collapsible, changed.project) == (
        Burst(5, every_us=hour // 20),
        Window(9, interval_us=1_000_000),
    )


WEBHOOK = "events: {keep: 1d, webhook: {url: %s}}"


@pytest.mark.parametrize("url", ["https://h", "http://h:80/a?b=c", "https://[::1]:8443/x", "http://a-b.example.com./"])
def test_a_webhook_may_be_at_any_host(url: str) -> None:
    """A name or an address, with or without a port, a path and a query."""
    hook = parse_settings(WEBHOOK % json.dumps(url)).events.webhook
    assert hook is not None
    assert hook.url == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://h:99999/x",
            "http://h:0/x",
            "http://h:x/",
            "http://exa..mple.com/",
            f"http://{'a' * 70}.com/",
            "http://[",
        ),
        *(
            "https://:hunter2@h",
            "https://u:hunter2@h",
            "https://@h",
            "http://h/a b",
            "http://h/#a",
            "ftp://h",
            "http://",
            5,
        ),
    ],
)
def test_where_nothing_can_be_posted_to_is_refused(url: object) -> None:
    """An impossible port or name, a password, and what is no URL are refused when the file is read."""
    assert "events.webhook.url: is not an address to post to" in (told := only(WEBHOOK % json.dumps(url)))
    assert "hunter2" not in told
