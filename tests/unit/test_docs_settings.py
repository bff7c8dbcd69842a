"""The JSON Schema of the configuration: what is shipped is what the model says, and it agrees with the loader."""

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from docs.settings_page import settings_page
from docs.settings_schema import schema, sections
from notifier.errors import SettingsError
from notifier.settings import parse_settings
from notifier.settings.advice import advise
from notifier.settings.templates import template
from notifier.settings.yaml_source import read_yaml

CONFIG = Path(__file__).parents[2] / "config"

RIGHT = [
    "{}",
    "user: {windows: [10/minute, 5/10s, 1/2h, 3 / week], gap: 1.5s}",
    "user: {windows: [{limit: 9, interval: day}, {limit: 2000, interval: 1d, precision: 5m}]}",
    "user: {burst: {capacity: 20, refill: 1/3m}}\nusers: {a: {burst: none}}",
    "tiers: {a: {gap: 5s}}\nusers: {42: a, 43: {windows: []}}",
    "categories: {chat: {lane: urgent, expires: 1h, attempts: 10}}",
    "worker: {backoff: {first: 1s, most: 1m}}\nkeep_delivered: 0s",
]
WRONG = [
    "user: {windows: 10/minute}",
    "user: {windows: [10/fortnight]}",
    "user: {windows: [0/minute]}",
    "user: {windows: [{limit: 0, interval: 1d}]}",
    "user: {windows: [{limit: 5, interval: fortnight}]}",
    "user: {windows: [{limit: 5}]}",
    "user: {burst: {capacity: 101, refill: 1/m}}",
    "user: {burst: {capacity: 20, every: 3m}}",
    "user: {gap: 10}",
    "usr: {}",
    "categories: {chat: {}}",
    "categories: {chat: {lane: fast}}",
    "users: {42: 7}",
    "worker: {batch: 0}",
    "worker: {batch: many}",
]


def test_the_examples_of_the_reference_are_right() -> None:
    """Each can be copied into a file that has its tier."""
    found = re.findall(r"^```yaml\n(.*?)^```$", settings_page(), re.MULTILINE | re.DOTALL)
    assert len(found) >= 12
    for example in found:
        tiers = "" if example.startswith("tiers:") else "tiers: {quiet: {gap: 5s}}\n"
        parse_settings(tiers + example)


def test_every_key_is_described() -> None:
    """Each key of the file, in each of its sections, says what it does: in the editor and in the reference."""
    found = [(name, key, value) for _, name, node in sections(schema()) for key, value in node["properties"].items()]
    assert len(found) > 90
    assert [(name, key) for name, key, value in found if len(value.get("description", "")) < 10] == []


def test_the_shipped_file_is_the_first_one_of_the_wheel_and_short() -> None:
    """What `config init` writes is what stands in config/, and a newcomer reads it at one glance."""
    schema_line, _, text = (CONFIG / "notifier.yaml").read_text(encoding="utf-8").partition("\n")
    assert schema_line == "# yaml-language-server: $schema=notifier.schema.json"
    assert text == template("first")
    assert 15 <= text.count("\n") + 1 <= 20


@pytest.mark.parametrize("name", ["first", "full"])
def test_what_config_init_writes_needs_no_advice(name: str) -> None:
    """An editor that follows its first line finds nothing wrong with it, and nothing in it is useless."""
    Draft202012Validator.check_schema(schema())
    text = template(name)
    assert list(Draft202012Validator(schema()).iter_errors(read_yaml(text).data)) == []
    assert advise(parse_settings(text), read_yaml(text)) == []


@pytest.mark.parametrize("text", RIGHT)
def test_what_loads_keeps_the_schema(text: str) -> None:
    """The schema forbids nothing that is right."""
    parse_settings(text)
    assert list(Draft202012Validator(schema()).iter_errors(read_yaml(text).data)) == []


@pytest.mark.parametrize("text", WRONG)
def test_what_the_schema_can_see_is_seen(text: str) -> None:
    """What is wrong in a single value is seen in the editor already."""
    with pytest.raises(SettingsError):
        parse_settings(text)
    assert list(Draft202012Validator(schema()).iter_errors(read_yaml(text).data))


def test_defaults_are_written_as_in_the_file() -> None:
    """A default in the schema could be typed into the file as it stands."""
    definitions = schema()["$defs"]
    assert definitions["WorkerSettings"]["properties"]["lease"]["default"] == "10s"
    assert "default" not in definitions["CategorySettings"]["properties"]["expires"]
