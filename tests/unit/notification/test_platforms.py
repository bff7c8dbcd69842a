"""Platforms that a package brings: found by their entry point, asked as ours are, refused with a reason."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from jsonschema import Draft202012Validator

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification, platforms
from notifier.notification.job import encode_data, encode_targets, targets_in
from notifier.notification.platforms import check_payload
from notifier.settings import parse_settings
from notifier.settings.templates import schema_text
from workers.configuration.wiring import build_providers, circuit_names, dry_runs

PIGEON = """
from notifier.providers import Answer, Outcome, Platform, PlatformSettings
from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Window

class Loft(PlatformSettings):
    platform = "pigeon"
    identity = "loft"
    loft: str = ""

    @property
    def in_force(self):
        return PlatformLimits(project=Window(5, interval_us=1_000_000))

class Pigeon(Platform):
    name = "pigeon"
    def token_problem(self, token):
        return "" if token.startswith("ring-") else "is not the number of a ring"
    def settings(self):
        return Loft
    def provider(self, settings, app, build):
        return ("a provider", settings.loft, app, build.environ["PIGEON_KEY"])
    def check(self, notification):
        self.check_size(len(notification.body or ""), 10)
    def kind(self, notification):
        return "c" if notification.options_for("pigeon").get("replace") else "n"

class Late(Pigeon):
    name = "late"
    protocol = 2

class Another(Pigeon):
    name = "someone"

no_class = dict
"""
ENTRIES = """
[notifier.providers]
pigeon = pigeon_post:Pigeon
late = pigeon_post:Late
another = pigeon_post:Another
plain = pigeon_post:no_class
gone = pigeon_post:Nobody
apns = pigeon_post:Pigeon
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with platforms, installed."""
    (tmp_path / "pigeon_post.py").write_text(dedent(PIGEON))
    info = tmp_path / "pigeon_post-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    platforms.forget()
    yield
    platforms.forget()
    sys.modules.pop("pigeon_post", None)


def note(device: Device, **fields: object) -> Notification:
    return Notification(user="42", devices=[device], **({"title": "Hello"} | fields))


@pytest.mark.usefixtures("package")
def test_a_platform_of_a_package_is_asked_as_ours_are() -> None:
    """Its tokens, its options, its limits, its section of the YAML and its provider are what the package says."""
    notification = note(Device("pigeon", "ring-7"), options={"pigeon": {"replace": True}})
    notification.validate()
    assert encode_targets(notification).startswith("- pigeon:c|")
    assert targets_in(encode_data(notification)) == encode_targets(notification), "the options are in the job"
    with pytest.raises(InvalidNotificationError, match=r"devices\[0\].token: is not the number of a ring"):
        note(Device("pigeon", "7")).validate()

    text = "providers: {pigeon: {loft: north, apps: {south: {}}}}"
    settings = parse_settings(text)
    assert {name: str(limits.project) for name, limits in settings.policies().limits.items()} == {"pigeon": "5/1s"}
    built = build_providers(settings, {"PIGEON_KEY": "k"})
    assert built == {
        "pigeon": ("a provider", "north", None, "k"),
        "pigeon/south": ("a provider", "north", "south", "k"),
    }
    assert (circuit_names(settings, built), dry_runs(settings)) == (list(built), [])


@pytest.mark.usefixtures("package")
def test_its_section_is_checked_with_its_line() -> None:
    """A mistake in the section of a package's platform has its line and its key, as one in ours."""
    with pytest.raises(SettingsError, match=r"2:3: providers.pigeon.lofft: unknown key; did you mean loft\?$"):
        parse_settings("providers: {pigeon: {\n  lofft: north}}")
    with pytest.raises(SettingsError, match=r"1:30: providers.pigeon.loft: must be text"):
        parse_settings("providers: {pigeon: {  loft: 7}}")


def test_an_editor_takes_its_section() -> None:
    """The schema that is shipped knows the platforms that are ours, and forbids no other."""
    check = Draft202012Validator(json.loads(schema_text()))
    assert check.is_valid({"providers": {"apns": {"topic": "com.example.app"}, "pigeon": {"loft": "north"}}})
    assert not check.is_valid({"providers": {"apns": {"tpic": "com.example.app"}}})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("late", "the platform late of pigeon-post is written for version 2 of the protocol; this is 1"),
        ("another", "the platform another of pigeon-post calls itself 'someone'"),
        ("plain", "the platform plain of pigeon-post is no notifier.providers.Platform but dict"),
        ("gone", "the platform gone of pigeon-post cannot be loaded: AttributeError"),
    ],
)
def test_one_that_cannot_be_used_is_refused_where_it_is_named(name: str, why: str) -> None:
    """A broken package is the trouble of who names its platform, in a job or in the YAML, and of nobody else."""
    with pytest.raises(InvalidNotificationError, match=why):
        note(Device(name, "ring-7")).validate()
    with pytest.raises(SettingsError, match=rf"1:[0-9]+: providers.{name}: {why}"):
        parse_settings(f"providers: {{{name}: {{}}}}")
    note(Device("fcm", "x" * 20)).validate()
    assert parse_settings("providers: {fcm: {client: console}}").providers.platforms().keys() == {"fcm"}


@pytest.mark.usefixtures("package")
def test_nobody_takes_the_place_of_ours() -> None:
    """A package's platform of a name of ours is not asked."""
    note(Device("apns", "ab" * 32)).validate()
    assert "pigeon" in platforms.installed()


def test_what_is_not_installed_is_refused_and_the_others_are_named() -> None:
    """In a job and in the YAML; a name that nobody has is not kept."""
    for given in ("gcm", 7, None, ["fcm"]):
        with pytest.raises(InvalidNotificationError, match=r"platform: .* is not installed; installed are apns, .*fcm"):
            note(Device(given, "x" * 20)).validate()
    with pytest.raises(InvalidNotificationError, match=r"options.gcm: 'gcm' is not installed; installed are"):
        note(Device("fcm", "x" * 20), options={"gcm": {}}).validate()
    with pytest.raises(InvalidNotificationError, match=r"options.apns: has a field of its own: give them as apns"):
        note(Device("fcm", "x" * 20), options={"apns": {}}).validate()
    with pytest.raises(SettingsError, match=r"1:13: providers.pigeon: not installed; known are apns, .*fcm"):
        parse_settings("providers: {pigeon: {}}")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"apns": {"nonsense": 1}}, "apns.nonsense"),
        ({"fcm": {"android": 5}}, "fcm.android"),
        ({"options": {"expo": {"badge": "x"}}}, "options.expo.badge"),
    ],
)
def test_options_are_checked_wherever_the_notification_goes(options: dict[str, object], field: str) -> None:
    """Also where no device of this notification is of their platform: tomorrow's one will be."""
    with pytest.raises(InvalidNotificationError) as refused:
        check_payload(note(Device("hms", "h" * 40), body="…", **options))
    assert refused.value.field == field
