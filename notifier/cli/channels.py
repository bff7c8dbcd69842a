"""Commands for Apple's broadcast channels: channels create, list, read, delete, send."""

from __future__ import annotations

import json as codec
import time
from typing import Annotated, Any

import typer

from notifier.cli.output import JsonOption, counted, duration_us, print_json, say
from notifier.producer.notifier import Notifier
from notifier.units import UNITS

Channel = Annotated[str, typer.Argument(help="the id that Apple gave the channel", show_default=False)]
App = Annotated[str | None, typer.Option(help="the name of an app under providers.apns")]
Text = Annotated[str | None, typer.Option()]

commands = typer.Typer(help="Broadcast channels of Live Activities, at Apple.", no_args_is_help=True)


@commands.command()
def create(
    context: typer.Context,
    *,
    stores: Annotated[bool, typer.Option("--stores", help="keep the last message for devices that are off")] = False,
    app: App = None,
    json: JsonOption = False,
) -> None:
    """Make a channel and print its id."""
    with _notifier(context) as notifier:
        channel_id = notifier.channels.create(stores=stores, app=app)
    if json:
        print_json({"channel": channel_id, "stores": stores})
    else:
        say(channel_id)


@commands.command("list")
def list_all(context: typer.Context, *, app: App = None, json: JsonOption = False) -> None:
    """Print the ids of all channels of the app."""
    with _notifier(context) as notifier:
        found = notifier.channels.list(app=app)
    if json:
        print_json(found)
    else:
        for channel_id in found:
            say(channel_id)
        say(counted(len(found), "channel") if found else "no channels")


@commands.command()
def read(context: typer.Context, channel: Channel, *, app: App = None, json: JsonOption = False) -> None:
    """Show how a channel was made."""
    with _notifier(context) as notifier:
        found = notifier.channels.read(channel, app=app)
    if json:
        print_json({"channel": found.id, "stores": found.stores})
    else:
        say(f"{found.id}: {'keeps its last message for 8 hours' if found.stores else 'keeps no message'}")


@commands.command()
def delete(context: typer.Context, channel: Channel, *, app: App = None) -> None:
    """Delete a channel, for ever."""
    with _notifier(context) as notifier:
        notifier.channels.delete(channel, app=app)
    say("deleted")


@commands.command()
def send(
    context: typer.Context,
    channel: Channel,
    *,
    event: Annotated[str, typer.Option(help="update or end")] = "update",
    state: Annotated[str, typer.Option(help="the content state, a JSON object")] = "{}",
    store: Annotated[bool, typer.Option("--store", help="for a channel that stores: keep it")] = False,
    title: Text = None,
    body: Text = None,
    category: Annotated[str, typer.Option()] = "default",
    expires_in: Annotated[str | None, typer.Option(help="do not send it after this time, such as 90s or 2h")] = None,
    app: App = None,
    json: JsonOption = False,
) -> None:
    """Enqueue one update for all who subscribe to a channel, and print its job id."""
    options: dict[str, Any] = {"event": event, "timestamp": int(time.time()), "content_state": _state(state)}
    if store:
        options["store"] = True
    fields: dict[str, Any] = {"title": title, "body": body, "category": category, "app": app}
    if expires_in is not None:
        fields["expires_in"] = duration_us(expires_in, "--expires-in") / UNITS["s"]
    with _notifier(context) as notifier:
        job_id = notifier.channels.send(channel, options, **fields)
    if json:
        print_json({"job_id": job_id})
    else:
        say(job_id)


def _state(text: str) -> Any:
    try:
        return codec.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--state") from None


def _notifier(context: typer.Context) -> Notifier:
    return Notifier.from_config(context.obj, follow=False)
