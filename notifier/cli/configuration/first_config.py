"""`notifier config init`: writes a first configuration from three or four answers."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from notifier.cli.options import file_of
from notifier.cli.output import fail, say
from notifier.errors import SettingsError
from notifier.settings import parse_settings
from notifier.settings.loading import DEFAULT_PATH
from notifier.settings.templates import schema_text, template

CONSOLE: Final = "console"
TEAM: Final = ("team_id", "Which team? (10 letters and digits)", "ABCDE12345")
KEY_ID: Final = ("key_id", "Which key id? (10 letters and digits)", "FGHIJ67890")
# For each platform: the key for the file of its secret, that file in words, and other keys with question and example.
PLATFORMS: Final[dict[str, tuple[str, str, list[tuple[str, str, str]]]]] = {
    "apns": (
        "key_file",
        "the .p8 file of the key, from Apple's developer account",
        [TEAM, KEY_ID, ("topic", "Which app? (its bundle id)", "com.example.app")],
    ),
    "fcm": ("service_account", "the JSON key of the service account, from Firebase", []),
    "webpush": (
        "key_file",
        "the private key (VAPID) in PEM",
        [("subject", "Whom may a push service turn to?", "mailto:you@example.com")],
    ),
    "hms": (
        "secret_file",
        "the file with the app's secret, from AppGallery Connect",
        [("app_id", "Which app? (its id, a number)", "100000001")],
    ),
    "expo": ("access_token_file", "the file with the access token, from Expo's dashboard", []),
}
_PROVIDERS: Final = re.compile(r"^providers:.*\Z", re.MULTILINE | re.DOTALL)
_P8: Final = re.compile(r"AuthKey_([A-Za-z0-9]{10})\.p8")

Platform = Annotated[
    str | None, typer.Option(help="apns, fcm, webpush, hms, expo; or console, which prints and needs no key")
]
KeyFile = Annotated[
    Path | None, typer.Option(help="the .p8 file, the service account's JSON, the VAPID key, or the secret")
]


def init(
    file: Annotated[
        Path | None, typer.Argument(help=f"what to write  [default: {DEFAULT_PATH}]", show_default=False)
    ] = None,
    *,
    platform: Platform = None,
    key_file: KeyFile = None,
    full: Annotated[bool, typer.Option("--full", help="write every key with its comment")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="ask nothing; without --platform, notifications are printed")
    ] = False,
) -> None:
    """Write a first configuration. Asks for the platform and for the key's file. Never overwrites a file."""
    if full and (platform or key_file):
        raise typer.BadParameter("--full writes every platform: it goes without --platform and --key-file")
    path = file_of(file) or Path(DEFAULT_PATH)
    schema, known = path.parent / f"{path.stem}.schema.json", schema_text().encode()
    for each in (path, schema):
        if each.exists() and (each == path or each.read_bytes() != known):
            fail(f"{each} exists already; name another file, or remove it first")
    chosen = "" if full else platform or (CONSOLE if yes else _asked_platform())
    text = template("full") if full else first_text(_section(chosen, key_file, asks=not yes))
    settings = parse_settings(text, name=str(path))
    written = f"# yaml-language-server: $schema={schema.name}\n{text}".encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.open("xb")
    try:
        with new:
            new.write(written)
        schema.write_bytes(known)  # editors use it to complete and check the file
    except OSError as error:  # such as a full disk
        path.unlink()
        schema.unlink(missing_ok=True)
        fail(f"{path} and {schema.name} could not be written: {error.strerror}")
    typed = shlex.quote(str(path))
    where = "" if str(path) == DEFAULT_PATH else f"NOTIFIER_CONFIG={typed} "
    sending = [name for name, section in settings.providers.platforms().items() if not section.prints]
    say(f"wrote {path}, which {f'sends through {sending[0]}' if sending else 'prints in place of sending'}")
    if yes and chosen in PLATFORMS and (own := PLATFORMS[chosen][2]):
        say(f"put your own {', '.join(key for key, _, _ in own)} into it")
    say(f"check it: notifier config check --worker {typed}")
    say(f"run a worker: {where}notifier worker")


def first_text(providers: dict[str, dict[str, Any]]) -> str:
    """The first configuration with these providers; if there are none, with the console of the template."""
    if not providers:
        return template("first")
    lines = ["providers:"]
    for name, keys in providers.items():
        lines += [f"  {name}:", *(f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())]
    return _PROVIDERS.sub("", template("first")) + "\n".join(lines) + "\n"


def _asked_platform() -> str:
    choices = ", ".join((*PLATFORMS, CONSOLE))
    return str(typer.prompt(f"Through whom do you send? ({choices})", default=CONSOLE, value_proc=_known))


def _known(platform: str) -> str:
    """Return the platform. Raises BadParameter, after which a prompt asks again."""
    if platform not in {*PLATFORMS, CONSOLE}:
        raise typer.BadParameter(f"is {platform!r}; give one of {', '.join((*PLATFORMS, CONSOLE))}")
    return platform


def _section(platform: str, key_file: Path | None, *, asks: bool) -> dict[str, dict[str, Any]]:
    """Return the section `providers`; empty for the console."""
    if platform == CONSOLE and key_file is not None:
        raise typer.BadParameter("--key-file goes with --platform, and the console has no key")
    if _known(platform) == CONSOLE:
        return {}
    file_key, what, others = PLATFORMS[platform]
    if key_file is None and asks:
        key_file = Path(typer.prompt(f"Where is {what}?"))
    if key_file is None:
        raise typer.BadParameter(f"--key-file is missing: {what}")
    named = _P8.fullmatch(key_file.name)
    section = {file_key: str(key_file.expanduser().absolute()), **{key: example for key, _, example in others}}
    for key, question, _ in others:
        if named and key == "key_id":
            section[key] = named[1]
        elif asks:
            section[key] = typer.prompt(question, value_proc=partial(_right, platform, section, key))
    return {platform: section}


def _right(platform: str, section: dict[str, str], key: str, answer: str) -> str:
    """Return the answer, if the configuration accepts it. Raises as `_known`."""
    try:
        parse_settings(first_text({platform: section | {key: answer}}))
    except SettingsError as error:
        raise typer.BadParameter(str(error).partition(f"{key}: ")[2]) from None
    return answer
