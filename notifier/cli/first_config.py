"""`notifier config init`: a first configuration, by three or four questions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from notifier.cli.output import Status, complain, say
from notifier.errors import SettingsError
from notifier.settings import parse_settings
from notifier.settings.comments import template
from notifier.settings.loading import DEFAULT_PATH

CONSOLE: Final = "console"
KEY: Final = {
    "apns": "the .p8 file of the key, from Apple's developer account",
    "fcm": "the JSON key of the service account, from Firebase",
    "webpush": "the private key (VAPID) in PEM",
    "hms": "the file with the app's secret, from AppGallery Connect",
    "expo": "the file with the access token, from Expo's dashboard",
}
PLATFORMS: Final = tuple(KEY)
_PROVIDERS: Final = re.compile(r"^providers:.*\Z", re.MULTILINE | re.DOTALL)
_P8: Final = re.compile(r"AuthKey_([A-Za-z0-9]{10})\.p8")

Platform = Annotated[
    str | None, typer.Option(help="apns, fcm, webpush, hms, expo; or console, which prints and needs no key")
]
KeyFile = Annotated[
    Path | None, typer.Option(help="the .p8 file, the service account's JSON, the VAPID key, or the secret")
]


def init(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help=f"what to write  [default: {DEFAULT_PATH}]", show_default=False)
    ] = None,
    *,
    platform: Platform = None,
    key_file: KeyFile = None,
    full: Annotated[bool, typer.Option("--full", help="every key with its comment")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="ask nothing; without --platform, notifications are printed")
    ] = False,
) -> None:
    """Write a first configuration. Asks for the platform and for the key's file. Never overwrites a file."""
    path = file or context.obj or Path(DEFAULT_PATH)
    if path.exists():
        complain(f"{path} exists already; name another file, or remove it first")
        raise typer.Exit(Status.NOT_RIGHT)
    if full:
        text = template("full")
    else:
        chosen = platform or (CONSOLE if yes else _asked_platform())
        text = first_text(_section(chosen, key_file, asks=not yes))
    try:
        settings = parse_settings(text, name=str(path))
    except SettingsError as error:
        complain(str(error))
        raise typer.Exit(Status.CONFIGURATION) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as new:
        new.write(text)
    where = "" if str(path) == DEFAULT_PATH else f"NOTIFIER_CONFIG={path} "
    through = ", ".join(settings.providers.platforms())
    prints = not full and chosen == CONSOLE
    say(f"wrote {path}, which {'prints in place of sending' if prints else f'sends through {through}'}")
    if yes and platform == "apns":
        say("put your own team_id, key_id and topic into it")
    if yes and platform == "webpush":
        say("put your own subject into it")
    if yes and platform == "hms":
        say("put your own app_id into it")
    say(f"check it: notifier config check --worker {path}")
    say(f"run a worker: {where}notifier worker")


def first_text(providers: dict[str, dict[str, Any]]) -> str:
    """The first configuration with these providers; with none, those of the template, which print."""
    if not providers:
        return template("first")
    lines = ["providers:"]
    for name, keys in providers.items():
        lines += [f"  {name}:", *(f'    {key}: "{value}"' for key, value in keys.items())]
    return _PROVIDERS.sub("", template("first")) + "\n".join(lines) + "\n"


def _asked_platform() -> str:
    choices = ", ".join((*PLATFORMS, CONSOLE))
    return str(typer.prompt(f"Through whom do you send? ({choices})", default=CONSOLE))


def _section(platform: str, key_file: Path | None, *, asks: bool) -> dict[str, dict[str, Any]]:
    """What stands under `providers`; empty for the console."""
    if platform == CONSOLE:
        return {}
    if platform not in PLATFORMS:
        raise typer.BadParameter(f"is {platform!r}; give one of {', '.join((*PLATFORMS, CONSOLE))}")
    if key_file is None and asks:
        key_file = Path(typer.prompt(f"Where is {KEY[platform]}?"))
    if key_file is None:
        raise typer.BadParameter(f"--key-file is missing: {KEY[platform]}")
    key = str(key_file.absolute()).replace("\\", "\\\\").replace('"', '\\"')

    def ask(what: str, placeholder: str) -> str:
        return str(typer.prompt(what)) if asks else placeholder

    if platform == "fcm":
        return {"fcm": {"service_account": key}}
    if platform == "webpush":
        return {
            "webpush": {"key_file": key, "subject": ask("Whom may a push service turn to?", "mailto:you@example.com")}
        }
    if platform == "expo":
        return {"expo": {"access_token_file": key}}
    if platform == "hms":
        return {"hms": {"app_id": ask("Which app? (its id, a number)", "100000001"), "secret_file": key}}
    named = _P8.fullmatch(key_file.name)
    return {
        "apns": {
            "team_id": ask("Which team? (10 letters and digits)", "ABCDE12345"),
            "key_id": named[1] if named else ask("Which key id? (10 letters and digits)", "FGHIJ67890"),
            "key_file": key,
            "topic": ask("Which app? (its bundle id)", "com.example.app"),
        }
    }
