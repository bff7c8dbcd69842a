"""Commands for Apple's broadcast channels: channels create, list, read, delete, send."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from notifier.cli.options import ExpiresOption, JsonOption, TextOption, json_object, notifier_of, seconds
from notifier.cli.output import answer, say
from notifier.log import configure_logging
from notifier.producer.notifier import Notifier
from notifier.units import counted

Channel = Annotated[str, typer.Argument(help="the id that Apple gave the channel", show_default=False)]
App = Annotated[str | None, typer.Option(help="the name of an app under providers.apns")]

commands = typer.Typer(help="Broadcast channels of Live Activities, at Apple.", no_args_is_help=True)


def _notifier_of(context: typer.Context) -> Notifier:
    """Return a producer that speaks to Apple. What it warns of is no part of an answer: it goes to standard error."""
    configure_logging(level="warning")
    return notifier_of(context)


@commands.command()
def create(
    context: typer.Context,
    *,
    stores: Annotated[bool, typer.Option("--stores", help="keep the last message for devices that are off")] = False,
    app: App = None,
    json: JsonOption = False,
) -> None:
    """Make a channel and print its id."""
    with _notifier_of(context) as notifier:
        channel_id = notifier.channels.create(stores=stores, app=app)
    answer({"channel": channel_id, "stores": stores}, channel_id, json=json)


@commands.command("list")
def list_all(context: typer.Context, *, app: App = None, json: JsonOption = False) -> None:
    """Print the ids of all channels of the app."""
    with _notifier_of(context) as notifier:
        found = notifier.channels.list(app=app)
    answer(found, *found, counted(len(found), "channel") if found else "no channels", json=json)


@commands.command()
def read(context: typer.Context, channel: Channel, *, app: App = None, json: JsonOption = False) -> None:
    """Show how a channel was made."""
    with _notifier_of(context) as notifier:
        found = notifier.channels.read(channel, app=app)
    kept = "its last message for 8 hours" if found.stores else "no message"
    answer({"channel": found.id, "stores": found.stores}, f"{found.id}: keeps {kept}", json=json)


@commands.command()
def delete(context: typer.Context, channel: Channel, *, app: App = None) -> None:
    """Delete a channel, for ever."""
    with _notifier_of(context) as notifier:
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
    title: TextOption = None,
    body: TextOption = None,
    category: Annotated[str, typer.Option()] = "default",
    expires_in: ExpiresOption = None,
    app: App = None,
    json: JsonOption = False,
) -> None:
    """Enqueue one update for all who subscribe to a channel, and print its job id."""
    options: dict[str, Any] = {
        "event": event,
        "timestamp": int(time.time()),
        "content_state": json_object(state, "--state"),
    }
    options |= {"store": True} if store else {}
    fields: dict[str, Any] = {"title": title, "body": body, "category": category, "app": app}
    fields["expires_in"] = seconds(expires_in, "--expires-in")
    with _notifier_of(context) as notifier:
        job_id = notifier.channels.send(channel, options, **fields)
    answer({"job_id": job_id}, job_id, json=json)
