"""Read the configuration: find the file, parse it, and report all its problems at once, each with line and key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from notifier.errors import SettingsError
from notifier.notification.platforms import OURS as OWN
from notifier.settings.checks import redis_url
from notifier.settings.errors import Finding, findings, line_of
from notifier.settings.rates import SECTIONS, rates_in
from notifier.settings.schema import Settings
from notifier.settings.schema_providers import suffix_of
from notifier.settings.schema_redis import RedisSettings
from notifier.settings.users_files import UsersFiles, files_at, read_users
from notifier.settings.yaml_source import MAX_BYTES, Mark, Problem, Source, YamlError, decode, read_yaml
from notifier.texts import meant
from notifier.units import shown

OURS: Final = "NOTIFIER_"
READ: Final = (
    "NOTIFIER_ALIVE_FILE",
    "NOTIFIER_CONFIG",
    "NOTIFIER_PARTITION",
    "NOTIFIER_REDIS_URL",
    "NOTIFIER_REDIS_SERVER",
    "NOTIFIER_SERVER_TOKEN",
    "NOTIFIER_SERVER_TOKEN_FILE",
    "NOTIFIER_WEBHOOK_SECRET",
)
# The name of an app may follow each of these: NOTIFIER_APNS_KEY_DRIVER.
OF_APPS: Final = (
    "NOTIFIER_APNS_KEY",
    "NOTIFIER_EXPO_TOKEN",
    "NOTIFIER_FCM_SERVICE_ACCOUNT",
    "NOTIFIER_HMS_SECRET",
    "NOTIFIER_WEBPUSH_KEY",
)
DEFAULT_PATH: Final = "config/notifier.yaml"
MAX_PROBLEMS: Final = 50
PUBLISHED: Final = "the published rates"
Seen: TypeAlias = tuple[tuple[int, int, int, int], ...] | None


def settings_path(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file to read: `path`, else NOTIFIER_CONFIG, else config/notifier.yaml where it exists.

    Raise SettingsError if nothing names a file and config/notifier.yaml does not exist.
    """
    if path is not None:
        return Path(path)
    if environ.get("NOTIFIER_CONFIG"):
        return Path(environ["NOTIFIER_CONFIG"])
    if Path(DEFAULT_PATH).is_file():
        return Path(DEFAULT_PATH)
    raise SettingsError(
        f"there is no {DEFAULT_PATH} in {Path.cwd()}; start where the file is, name another in NOTIFIER_CONFIG, "
        "or write a first one with notifier config init"
    )


def load_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    rates: Mapping[str, Any] | None = None,
    of: Source | None = None,
) -> Settings:
    """Return the settings in the file that `settings_path` finds, with NOTIFIER_REDIS_URL instead of `redis.url`,
    and for the one partition that NOTIFIER_PARTITION names.

    Relative paths in the file are relative to its folder. rates: plain data that replaces all sections of rates in the
    file. of: the source of these rates, for errors; None: they are the published ones.
    Raise SettingsError with one line for each problem.
    """
    found = settings_path(path, environ)
    hint = "" if path is not None else ", named by NOTIFIER_CONFIG" * bool(environ.get("NOTIFIER_CONFIG"))
    settings = parse_settings(_read_text(found, hint), name=str(found), rates=rates, of=of)
    if environ.get("NOTIFIER_PARTITION"):
        settings = settings.model_copy(update={"redis": _at(settings.redis, environ["NOTIFIER_PARTITION"])})
    if not environ.get("NOTIFIER_REDIS_URL"):
        return settings
    try:
        url = redis_url(environ["NOTIFIER_REDIS_URL"])
    except ValueError as error:
        raise SettingsError(f"NOTIFIER_REDIS_URL: {error}") from None
    return settings.model_copy(update={"redis": settings.redis.model_copy(update={"url": url})})


def _at(redis: RedisSettings, number: str) -> RedisSettings:
    if not number.isdecimal() or int(number) >= redis.partitions:
        most = redis.partitions - 1
        raise SettingsError(f"NOTIFIER_PARTITION, or --partition: {shown(number)} is none of 0 to {most}")
    return redis.at(int(number)) if redis.partitions > 1 else redis


def _read_text(path: Path, hint: str = "") -> str:
    """Return the text of a configuration file; raise SettingsError if it cannot be read. hint: what named the file."""
    try:
        with path.open("rb") as file:
            return decode(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise SettingsError(f"{path}{hint}: cannot be read: {os.strerror(error.errno or 0)}") from error
    except YamlError as error:
        raise SettingsError(line_of(str(path), error.problem)) from None


def read_source(path: Path) -> Source:
    """Return the data of a configuration file with the places of its keys; raise SettingsError if it is not YAML."""
    return _source_of(_read_text(path), name=str(path))


def _source_of(text: str, *, name: str) -> Source:
    try:
        source = read_yaml(text)
    except YamlError as error:
        raise SettingsError(line_of(name, error.problem)) from None
    if source.data is None:
        raise SettingsError(f"{name}: is empty; write at least {{}} to run on the defaults")
    source.name = name
    return source


def fingerprint(path: Path, users_from: Path | None) -> Seen:
    """Return a value that changes when a file of the configuration changes; None if one of the files is missing."""
    try:
        found = [os.stat(path)]  # noqa: PTH116 - follows a link, whose target a deployment replaces
        found += [file.stat() for file in files_at(users_from)] if users_from is not None else []
    except OSError:
        return None
    return tuple((at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino) for at in found)  # a chmod changes ctime


def parse_settings(
    text: str, *, name: str = DEFAULT_PATH, rates: Mapping[str, Any] | None = None, of: Source | None = None
) -> Settings:
    """Return the settings in a YAML text; `name` is its file, for errors and for relative paths.

    rates, of: see `load_settings`. Raise SettingsError with one line for each problem.
    """
    source = _source_of(text, name=name)
    return _checked(source if rates is None else _with_rates(source, rates, of or Source(name=PUBLISHED)))


def parse_rates(text: str, path: Path, *, name: str) -> Settings:
    """Return the settings of the file at `path`, with the rates of this text instead of the file's.

    Other sections of the text are ignored. name: the name of the text in errors.
    Raise SettingsError with one line for each problem. No file that the text names is read.
    """
    source = _source_of(text, name=name)
    if not isinstance(source.data, dict):
        raise SettingsError(f"{name}: must be sections such as user: and categories:")
    if "users_from" in source.data:
        raise SettingsError(f"{name}: users_from: names files of one host; write the users under users")
    known = Settings.keys()
    if unknown := [str(key) for key in source.data if key not in known]:
        raise SettingsError(f"{name}: {shown(unknown[0])} is no section; those of rates are {', '.join(SECTIONS)}")
    rates = rates_in(source.data)
    if not rates:
        raise SettingsError(f"{name}: has none of the sections of rates: {', '.join(SECTIONS)}")
    return _checked(_with_rates(read_source(path), rates, source))


def _with_rates(own: Source, rates: Mapping[str, Any], of: Source) -> Source:
    """Replace the sections of rates in `own` by `rates`, whose places are in `of`."""
    if isinstance(own.data, dict):
        own.data = {key: own.data[key] for key in own.data if key not in (*SECTIONS, "users_from")} | dict(rates)
        own.rates = of
        own.problems = [each for source in (own, of) for each in source.problems if own.of(each.path) is source]
    return own


def _checked(source: Source) -> Settings:
    name, problems = source.name, list[Problem | Finding](source.problems)
    tiers = source.data.get("tiers") if isinstance(source.data, dict) else None
    context = {"folder": Path(name).absolute().parent, "tiers": tiers if isinstance(tiers, dict) else {}}
    try:
        settings = Settings.model_validate(source.data, context=context)
    except ValidationError as error:
        # A second message for the same key would add nothing, and would quote a secret that the first one withholds.
        reported = {problem.path for problem in problems}
        problems += [finding for finding in findings(error, source) if finding.path not in reported]
    if not problems:
        more = UsersFiles()
        if settings.users_from is not None:
            at = line_of(name, Problem(source.values.get(("users_from",)), ("users_from",), ""))
            more = read_users(settings.users_from, settings.tiers, settings.users, at)
        settings.complete(rates_in(source.data), more)
        source.forget_places()
        return settings
    first = nsmallest(MAX_PROBLEMS, problems, key=lambda problem: problem.mark or Mark(1, 1))
    shown_first = (each.explain(Settings) if isinstance(each, Finding) else each for each in first)
    lines = [line_of(source.of(each.path).name, each) for each in shown_first]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{name}: and {len(problems) - MAX_PROBLEMS} more")
    raise SettingsError("\n".join(lines))


def unread(environ: Mapping[str, str], platforms: Mapping[str, Any]) -> list[str]:
    """Return a line for each NOTIFIER_ variable that nothing reads. A package reads those with its platform's name."""
    apps = {secret: getattr(platforms.get(secret.split("_")[1].lower()), "apps", ()) for secret in OF_APPS}
    known = (*READ, *OF_APPS, *(f"{secret}_{suffix_of(app)}" for secret in OF_APPS for app in apps[secret]))
    prefixes = tuple(f"{OURS}{name.upper()}_" for name in platforms if name not in OWN)
    odd = [name for name in sorted(environ) if name.startswith(OURS) and name not in known]
    odd = [name for name in odd if not name.startswith(prefixes)]
    return [f"{name} is set, and nothing reads it; {meant(name, sorted(known))}" for name in odd]
