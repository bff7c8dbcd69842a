"""The command serve: metrics, health, an API and pages."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from notifier.cli.given import GIVEN
from notifier.cli.output import USAGE, fail, say
from notifier.errors import needs_extra
from notifier.server.tokens import is_this_host, read_callers
from notifier.settings import load_settings, settings_path
from notifier.settings.checks import read_secret
from notifier.settings.secret_files import LastGood

TOKEN: Final = "NOTIFIER_SERVER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "NOTIFIER_SERVER_TOKEN_FILE"  # noqa: S105 - as above


def serve(
    *,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="the port")] = 8787,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="everybody who can reach the address may read; nobody may act")
    ] = False,
) -> None:
    """Serve pages for people, /api/v1/… for programs, /metrics, /healthz and /readyz. Needs the extra server.

    Clients must send the token of $NOTIFIER_SERVER_TOKEN, or of the file $NOTIFIER_SERVER_TOKEN_FILE, as a bearer token
    or as the password of any user. The file may have a line for each person: NAME look|act TOKEN. If it changes, it is
    read again. Without a token, the server listens only on this host's own addresses, and nobody can act.
    """
    token = _token(os.environ)
    if not (token() or no_auth or is_this_host(host)):
        fail(f"{host} can be reached by others: set {TOKEN} or {TOKEN_FILE}, or say --no-auth", USAGE)
    path = settings_path(GIVEN.config)
    settings = load_settings(path)  # an error must end the command before it listens
    if settings.events.webhook is not None:
        settings.events.webhook.read_secret(os.environ)
    with needs_extra("notifier serve", "server"):
        from notifier.server.run import bind, run  # noqa: PLC0415 - only this command needs the extra server
    try:
        listening = bind(host, port)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # str(error) begins with the errno
        other = "; --port names another" if error.errno in {errno.EADDRINUSE, errno.EACCES} else ""
        fail(f"cannot listen on {host}:{port}: {why}{other}")
    with suppress(OSError):  # a full disk is no reason to serve nothing
        say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
    run(path, settings.log, listening, (lambda: "") if no_auth else token, is_open=no_auth)


def _token(environ: Mapping[str, str]) -> Callable[[], str]:
    """Return a function that reads the token in force, '' for none; raise SettingsError if its file holds none."""
    if TOKEN in environ and environ[TOKEN] != "":
        given = _checked(environ[TOKEN], TOKEN)
        return lambda: given
    if not environ.get(TOKEN_FILE):
        return lambda: ""
    path = Path(environ[TOKEN_FILE])
    return LastGood("serve", lambda: _checked(read_secret(path, TOKEN_FILE), f"{TOKEN_FILE}: {path}"))


def _checked(text: str, where: str) -> str:
    """Return the text; raise SettingsError if it has no tokens, or one that can be guessed."""
    read_callers(text, where)
    return text
