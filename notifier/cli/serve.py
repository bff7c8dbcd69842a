"""The command serve: metrics, health, an API and pages."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Annotated, Final

import typer

from notifier.cli.output import Status, complain, say
from notifier.settings import load_settings, settings_path

TOKEN: Final = "NOTIFIER_SERVER_TOKEN"  # noqa: S105 - the name of a variable


def serve(
    context: typer.Context,
    *,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="the port")] = 8787,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="let everybody read who can reach the address; nobody can act")
    ] = False,
) -> None:
    """Serve pages for people, /api/v1/… for programs, /metrics, /healthz and /readyz. Needs the extra server.

    Whoever asks must give the token in $NOTIFIER_SERVER_TOKEN, as a bearer token or as the password of any user.
    Without one it listens on this host's own addresses alone, and changes nothing.
    """
    token = os.environ.get(TOKEN, "")
    if not (token or no_auth or _is_loopback(host)):
        complain(f"{host} can be reached by others: set {TOKEN}, or say --no-auth")
        raise typer.Exit(Status.USAGE)
    path = settings_path(context.obj)
    settings = load_settings(path)  # so that what is wrong is said now
    if settings.events.webhook is not None:
        settings.events.webhook.read_secret(os.environ)
    try:
        from notifier.server.run import run  # noqa: PLC0415 - the extra server is needed here alone
    except ModuleNotFoundError as error:
        complain(f"the package {error.name} is not installed: pip install 'push-throttle[server]'")
        raise typer.Exit(Status.USAGE) from None
    say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
    run(path, settings.log, host, port, "" if no_auth else token, is_open=no_auth)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
