"""Reading the configuration: which file, its YAML, and every problem in it with its line and key at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from notifier.checks import redis_url
from notifier.errors import SettingsError
from notifier.schema import (
    BackoffSettings,
    CategorySettings,
    LogSettings,
    RedisSettings,
    Settings,
    UserSettings,
    WorkerSettings,
)
from notifier.schema_providers import ApnsSettings, FcmSettings, ProvidersSettings, WebPushSettings
from notifier.settings_errors import explain, line_of
from notifier.yaml_source import MAX_BYTES, Mark, YamlError, decode, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ApnsSettings",
    "BackoffSettings",
    "CategorySettings",
    "FcmSettings",
    "LogSettings",
    "ProvidersSettings",
    "RedisSettings",
    "Settings",
    "UserSettings",
    "WebPushSettings",
    "WorkerSettings",
    "load_settings",
    "parse_settings",
    "settings_path",
]

DEFAULT_PATH: Final = "config/notifier.yaml"
MAX_PROBLEMS: Final = 50


def settings_path(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file to read: `path`, else NOTIFIER_CONFIG, else config/notifier.yaml where it exists.

    Raise SettingsError if nothing names a file and that one does not exist.
    """
    if path is not None:
        return Path(path)
    if environ.get("NOTIFIER_CONFIG"):
        return Path(environ["NOTIFIER_CONFIG"])
    if Path(DEFAULT_PATH).is_file():
        return Path(DEFAULT_PATH)
    raise SettingsError(
        f"there is no {DEFAULT_PATH} in {Path.cwd()}; "
        "name the configuration in NOTIFIER_CONFIG, or start where the file is"
    )


def load_settings(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in the file that `settings_path` finds, with NOTIFIER_REDIS_URL over `redis.url`.

    Relative paths in it are relative to its folder. Raise SettingsError with one line for each problem.
    """
    found = settings_path(path, environ)
    try:
        with found.open("rb") as file:
            text = decode(file.read(MAX_BYTES + 1))
    except OSError as error:
        hint = "" if path is not None else ", named by NOTIFIER_CONFIG" * bool(environ.get("NOTIFIER_CONFIG"))
        raise SettingsError(f"{found}{hint}: cannot be read: {os.strerror(error.errno or 0)}") from None
    except YamlError as error:
        raise SettingsError(line_of(str(found), error.problem)) from None
    settings = parse_settings(text, name=str(found))
    if not environ.get("NOTIFIER_REDIS_URL"):
        return settings
    try:
        url = redis_url(environ["NOTIFIER_REDIS_URL"])
    except ValueError as error:
        raise SettingsError(f"NOTIFIER_REDIS_URL: {error}") from None
    return settings.model_copy(update={"redis": settings.redis.model_copy(update={"url": url})})


def parse_settings(text: str, *, name: str = DEFAULT_PATH) -> Settings:
    """Return the settings in a YAML text; `name` is its file, for errors and for relative paths.

    Raise SettingsError with one line for each problem.
    """
    try:
        source = read_yaml(text)
    except YamlError as error:
        raise SettingsError(line_of(name, error.problem)) from None
    if source.data is None:
        raise SettingsError(f"{name}: is empty; write at least {{}} to run on the defaults")
    problems = source.problems
    tiers = source.data.get("tiers") if isinstance(source.data, dict) else None
    context = {"folder": Path(name).absolute().parent, "tiers": tiers if isinstance(tiers, dict) else {}}
    try:
        settings = Settings.model_validate(source.data, context=context)
    except ValidationError as error:
        # What is already said of a key is not said again, and a secret's text does not come back quoted.
        said = {problem.path for problem in problems}
        found = explain(error, source, Settings)
        problems = problems + [problem for problem in found if problem.path not in said]
    if not problems:
        return settings
    problems.sort(key=lambda problem: problem.mark or Mark(1, 1))
    lines = [line_of(name, problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{name}: and {len(problems) - MAX_PROBLEMS} more")
    raise SettingsError("\n".join(lines))
