"""Several apps: what each inherits, whose secret is whose, what is refused when the file is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from redis import Redis

from notifier import Notifier
from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification, route
from notifier.providers.apns.settings import ApnsSettings
from notifier.providers.console import ConsoleProvider
from notifier.providers.fcm.settings import FcmSettings
from notifier.settings import Settings, parse_settings
from notifier.settings.schema_providers import PlatformSettings
from notifier.settings.schema_types import Section
from tests.unit.settings.test_loading import problems
from workers.configuration.wiring import build_providers

PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
APPLE = "team_id: TEAM000001, key_id: KEY0000001"
OTHER = "team_id: TEAM000002, key_id: KEY0000002"


def load(providers: str, rest: str = "", folder: Path = Path()) -> Settings:
    return parse_settings(f"providers: {{{providers}}}\n{rest}", name=str(folder / "n.yaml"))


def apns(text: str, folder: Path = Path()) -> ApnsSettings:
    section = load(f"apns: {{{text}}}", folder=folder).providers.apns
    assert section is not None
    return section


def fcm(text: str, folder: Path = Path()) -> FcmSettings:
    section = load(f"fcm: {{{text}}}", folder=folder).providers.fcm
    assert section is not None
    return section


def account(project: str) -> str:
    return json.dumps({"project_id": project, "client_email": "e", "private_key": "k", "token_uri": "https://t"})


def test_an_app_signs_in_by_token_or_by_certificate(tmp_path: Path) -> None:
    """What an app gives to sign in with replaces the section's way whole; both ways in one place are refused."""
    section = apns(
        f"{APPLE}, topic: com.rider, apps: {{driver: {{topic: com.driver, cert_file: d.pem}}}}", folder=tmp_path
    )
    driver = section.app("driver")
    assert (driver.cert_file, driver.key_id, driver.key_file) == (tmp_path / "d.pem", "", None)
    assert section.app(None).cert_file is None
    section = apns(f"cert_file: c.pem, cert_key_file: c.key, topic: com.rider, apps: {{driver: {{{APPLE}}}}}")
    assert (section.app("driver").cert_file, section.app("driver").key_id) == (None, "KEY0000001")
    (both,) = problems(f"providers: {{apns: {{{APPLE}, topic: a.b, cert_file: c.pem}}}}")
    assert both.endswith("providers.apns.cert_file: and key_id are two ways to sign in; give one of them")
    assert "needs cert_file" in problems("providers: {apns: {topic: a.b, cert_key_file: c.key}}")[0]
    assert "topic: is missing" in problems("providers: {apns: {cert_file: c.pem}}")[0]


def test_the_id_of_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    """An app's own id goes before the section's file, its file before the section's id; both together are refused."""
    (tmp_path / "id").write_text("KEY0000009\n", encoding="utf-8")
    (tmp_path / "wrong").write_text("no id", encoding="utf-8")
    own = "apps: {own: {topic: b.c, key_id: KEY0000002}, other: {topic: c.d}}"
    section = apns(f"team_id: TEAM000001, topic: a.b, key_id_file: id, {own}", tmp_path)
    assert [section.read_key_id(app) for app in (None, "own", "other")] == ["KEY0000009", "KEY0000002", "KEY0000009"]
    section = apns(f"{APPLE}, topic: a.b, apps: {{own: {{key_id_file: id}}, wrong: {{key_id_file: wrong}}}}", tmp_path)
    assert [section.read_key_id(app) for app in (None, "own")] == ["KEY0000001", "KEY0000009"]
    with pytest.raises(SettingsError, match=r"^providers\.apns\.apps\.wrong\.key_id_file: .*/wrong: is not what Apple"):
        section.read_key_id("wrong")
    (both,) = problems(f"providers: {{apns: {{{APPLE}, topic: a.b, key_id_file: id}}}}")
    assert both.endswith("providers.apns.key_id_file: and key_id say the same; give one of them")


def test_endpoints_by_name() -> None:
    """Apple's two servers have names; a URL is taken as it is; anything else is refused with both."""
    assert apns(f"{APPLE}, topic: a.b").endpoint == "https://api.push.apple.com"
    assert apns(f"{APPLE}, topic: a.b, endpoint: production").endpoint == "https://api.push.apple.com"
    assert apns(f"{APPLE}, topic: a.b, endpoint: sandbox").endpoint == "https://api.sandbox.push.apple.com"
    assert apns(f"{APPLE}, topic: a.b, endpoint: 'https://localhost:2197'").endpoint == "https://localhost:2197"
    section = apns(f"{APPLE}, topic: a.b, apps: {{dev: {{endpoint: sandbox}}}}")
    assert section.app("dev").endpoint == "https://api.sandbox.push.apple.com"
    assert "production or sandbox" in problems("providers: {apns: {endpoint: development}}")[0]


def test_an_app_inherits_what_it_does_not_give() -> None:
    """Team and key once and a topic for each app, or everything of its own; the timeout is everyone's."""
    section = apns(
        f"{APPLE}, endpoint: 'https://one', ca_file: /one.pem, timeout: 3s, apps: {{"
        f"rider: {{topic: com.rider}}, driver: {{topic: com.driver, {OTHER}, endpoint: 'https://two'}}}}"
    )
    rider, driver = section.app("rider"), section.app("driver")
    assert (rider.team_id, rider.key_id, rider.topic) == ("TEAM000001", "KEY0000001", "com.rider")
    assert (rider.endpoint, rider.ca_file, rider.timeout_us) == ("https://one", Path("/one.pem"), 3_000_000)
    assert (driver.team_id, driver.key_id, driver.topic) == ("TEAM000002", "KEY0000002", "com.driver")
    assert (driver.endpoint, driver.ca_file, driver.timeout_us) == ("https://two", Path("/one.pem"), 3_000_000)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("apns: {client: console}", [None]),
        ("apns: {client: console, topic: a.b}", [None]),
        ("apns: {client: console, apps: {a: {}}}", ["a"]),
        ("apns: {client: console, topic: a.b, apps: {a: {}, b: {}}}", [None, "a", "b"]),
        (f"apns: {{{APPLE}, apps: {{a: {{topic: a.b}}}}}}", ["a"]),
        ("fcm: {}", [None]),
        ("fcm: {apps: {a: {service_account: a.json}}}", ["a"]),
        ("fcm: {service_account: one.json, apps: {a: {}}}", [None, "a"]),
    ],
)
def test_with_named_apps_the_section_is_one_itself_if_it_says_so(section: str, names: list[str | None]) -> None:
    """Without named apps the section is the one app; with them it is one more if it gives its topic or account."""
    (platform,) = load(section).providers.platforms().values()
    assert list(platform.app_names) == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"providers:\n  apns: {{{APPLE},\n    apps: {{\n      driver: {{}}}}}}",
            ["4:7: providers.apns.apps.driver.topic: is missing"],
        ),
        (
            "providers: {apns: {apps: {a: {topic: a.b}, b: {topic: b.c, team_id: TEAM000002}}}}",
            [f"1:27: providers.apns.apps.a.{key}: is missing" for key in ("team_id", "key_id")]
            + ["1:44: providers.apns.apps.b.key_id: is missing"],
        ),
        (
            "providers: {apns: {topic: a.b, apps: {a: {team_id: TEAM000001, key_id: KEY0000001}}}}",
            [f"1:13: providers.apns.{key}: is missing" for key in ("team_id", "key_id")],
        ),
        (
            "providers: {apns: {client: console, apps: {driver: {topic: 'a b'}}}}",
            ["1:60: providers.apns.apps.driver.topic: is not what Apple calls a topic"],
        ),
        (
            "providers: {apns: {client: console, apps: {driver: {topik: a.b}}}}",
            ["1:53: providers.apns.apps.driver.topik: unknown key; did you mean topic?"],
        ),
        (
            "providers: {fcm: {apps: {Driver: {}}}}",
            ["1:26: providers.fcm.apps.Driver: is not a name; use up to 64 of a-z"],
        ),
        (
            "providers: {fcm: {apps: {a-b: {}, a_b: {}}}}",
            ["1:40: providers.fcm.apps.a_b: cannot be told from a-b in the names of environment variables"],
        ),
        (
            """{providers: {fcm: {client: console, apps: {rider: {}, driver: {}}}},
categories: {chat: {lane: urgent, app: drivers}}}""",
            ["2:40: categories.chat.app: no platform has an app 'drivers'; known are driver, rider"],
        ),
        (
            "categories: {chat: {lane: urgent, app: x}}",
            ["1:40: categories.chat.app: no platform has an app 'x'; there"],
        ),
        ("categories: {chat: {lane: urgent, app: 7}}", ["1:40: categories.chat.app: must be text"]),
    ],
)
def test_what_is_wrong_with_an_app_is_shown_where_it_stands(text: str, expected: list[str]) -> None:
    """Every problem has its line, its column and the path of its key."""
    found = problems(text)
    assert len(found) == len(expected)
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(beginning)


def test_an_app_of_one_platform_is_enough_for_a_category() -> None:
    """A category may name an app that only one of the platforms has."""
    both = "apns: {client: console, apps: {driver: {}}}, fcm: {client: console}"
    settings = load(both, "categories: {chat: {lane: urgent, app: driver}}")
    assert settings.policies().category("chat").app == "driver"
    assert settings.policies().category("default").app is None


def test_a_key_is_the_apps_own_or_the_sections(tmp_path: Path) -> None:
    """The app's variable goes first, then its file, then the section's variable, then the section's file."""
    for name in ("section", "own"):
        (tmp_path / f"{name}.p8").write_text(PEM.format(name), encoding="utf-8")
    section = apns(
        f"{APPLE}, key_file: section.p8, apps: {{rider: {{topic: a.b}}, "
        "driver-2: {topic: a.c, key_id: KEY0000002, key_file: own.p8}, lost: {topic: a.d, key_id: KEY0000003}}",
        tmp_path,
    )
    both = {"NOTIFIER_APNS_KEY": PEM.format("everyone"), "NOTIFIER_APNS_KEY_DRIVER_2": PEM.format("driver")}
    everyone = {"NOTIFIER_APNS_KEY": PEM.format("everyone")}
    assert section.read_secret({}, "rider") == PEM.format("section")
    assert section.read_secret(both, "rider") == PEM.format("everyone")
    assert section.read_secret({}, "driver-2") == PEM.format("own")
    assert section.read_secret(everyone, "driver-2") == PEM.format("own")
    assert section.read_secret(both, "driver-2") == PEM.format("driver")
    # The section's key cannot be the one of another id.
    missing = r"^providers\.apns\.apps\.lost\.key_file is missing; name the file there, or set NOTIFIER_APNS_KEY_LOST$"
    with pytest.raises(SettingsError, match=missing):
        section.read_secret(both, "lost")


def test_a_service_account_is_the_apps_own_or_the_sections(tmp_path: Path) -> None:
    """As with keys; an error names the app's variable or its key in the file."""
    for name in ("section", "own"):
        (tmp_path / f"{name}.json").write_text(account(name), encoding="utf-8")
    section = fcm(
        "service_account: section.json, apps: {rider: {}, driver: {service_account: own.json}, "
        "lost: {service_account: none.json}}",
        tmp_path,
    )
    assert section.read_secret({}, "rider")["project_id"] == "section"
    assert section.read_secret({}, "driver")["project_id"] == "own"
    variable = {"NOTIFIER_FCM_SERVICE_ACCOUNT_RIDER": account("variable")}
    assert section.read_secret(variable, "rider")["project_id"] == "variable"
    assert section.read_secret(variable)["project_id"] == "section"
    with pytest.raises(SettingsError, match=r"^providers\.fcm\.apps\.lost\.service_account: cannot read .*none\.json"):
        section.read_secret({}, "lost")
    with pytest.raises(SettingsError, match=r"^NOTIFIER_FCM_SERVICE_ACCOUNT_RIDER is not a JSON object"):
        section.read_secret({"NOTIFIER_FCM_SERVICE_ACCOUNT_RIDER": "hunter2"}, "rider")


@pytest.mark.parametrize(
    ("app", "category", "devices", "why"),
    [
        (None, "default", "fcm", "providers.fcm has named apps only: give one of driver, rider (devices[0])"),
        (
            "drivers",
            "default",
            "fcm",
            "'drivers' is not among providers.fcm.apps; known are driver, rider (devices[0])",
        ),
        ("driver", "default", "fcm apns", "'driver' is not among providers.apns.apps; there are none (devices[1])"),
        (None, "chat", "apns", "'rider' is not among providers.apns.apps; there are none (category chat, devices[0])"),
    ],
)
def test_a_platform_without_the_app_is_refused_by_name(app: str | None, category: str, devices: str, why: str) -> None:
    """Before anything is written: the field `app`, which platform lacks it, what it has, and for which device."""
    settings = load(
        "apns: {client: console}, fcm: {client: console, apps: {driver: {}, rider: {}}}",
        "categories: {chat: {lane: urgent, app: rider}}",
    )
    tokens = {"apns": "ab" * 32, "fcm": "registration-of-fcm"}
    to = [Device(platform, tokens[platform]) for platform in devices.split()]
    nowhere = Redis(host="127.0.0.1", port=1)
    with Notifier(nowhere, settings) as notifier, pytest.raises(InvalidNotificationError) as caught:
        notifier.send(Notification(user="anna", devices=to, title="Hello", category=category, app=app))
    assert caught.value.field == "app"
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize("app", ["", "Driver", "a" * 65, "a/b", 7, ["driver"]])
def test_a_name_that_no_app_can_have_is_refused(app: Any) -> None:
    """What cannot stand in the file is refused without it, also in another program's job."""
    with pytest.raises(InvalidNotificationError, match=r"^app: .* is not a name of small letters, digits, _ and -$"):
        Notification.from_kwargs(
            {"user": "anna", "title": "Hello", "app": app, "devices": [{"platform": "apns", "token": "ab" * 32}]}
        )


def test_one_provider_for_each_route(capsys: Any) -> None:
    """Workers find a provider by platform and app; a section with named apps only has no route without one."""
    settings = load(
        "apns: {client: console, topic: a.b, apps: {driver: {}}}, fcm: {client: console, apps: {driver: {}}}"
    )
    providers = build_providers(settings, {})
    assert sorted(providers) == ["apns", "apns/driver", "fcm/driver"]
    assert all(isinstance(provider, ConsoleProvider) for provider in providers.values())
    assert (route("apns", None), route("apns", "driver")) == ("apns", "apns/driver")
    assert not capsys.readouterr().out


def test_a_package_may_leave_out_what_is_said_of_a_missing_key() -> None:
    """What `needed` names is said to be missing all the same, with what would be right; an advice is taken as it is."""

    class Gateway(Section):
        sender: str = ""

    class Plain(PlatformSettings[Gateway], Gateway):
        platform, identity, needed = "sms", "sender", ("sender",)

    class Advised(Plain):
        advice = "give it to {client}, as in {sender: shop}"

    for model, right in ((Plain, "give it, or client: console"), (Advised, "give it to http, as in {sender: shop}")):
        with pytest.raises(ValidationError) as caught:
            model.model_validate({})
        assert caught.value.errors()[0]["msg"].endswith(f"is missing; {right}")
    assert Plain.model_validate({"client": "console"}).prints
