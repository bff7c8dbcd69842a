"""The commands pause and resume: the emergency stop."""

from __future__ import annotations

from typing import Annotated

import typer

from notifier.cli.options import duration_us, settings_to_stop
from notifier.cli.output import Rows, answer, complain, log_of, who
from notifier.operations.pause import PauseError, check_what, pause_it, resume_it
from notifier.queue.circuits import Held, by_route, paused_words
from notifier.queue.pauses import find_pauses
from notifier.settings import Settings
from notifier.store.partitions import opened_all
from notifier.store.pipelining import ask_all

What = Annotated[str, typer.Argument(help="all, category:NAME, user:ID, lane:NAME or route:NAME", show_default=False)]


def pause(
    what: Annotated[
        str | None, typer.Argument(help="all, category:NAME, user:ID, lane:NAME or route:NAME; without it: list pauses")
    ] = None,
    *,
    lasting: Annotated[str | None, typer.Option("--for", help="how long, such as 1h  [default: until resume]")] = None,
    reason: Annotated[str, typer.Option(help="why; explain, history and the pages show it")] = "",
) -> None:
    """Stop sending at once. Paused notifications keep their place, and expire as always. `notifier resume` ends it.

    A notification that a worker has already handed to a provider cannot be stopped.
    """
    if what is None and (option := "--for" if lasting else "--reason" if reason else ""):
        raise typer.BadParameter(f"{option} is of a pause: name what to stop, such as all", param_hint="WHAT")
    lasts_us = 0 if lasting is None else duration_us(lasting, "--for", least_us=1)
    settings, rates = settings_to_stop()
    name = None if what is None else _name(what, settings, rates=rates)

    with opened_all(settings) as partitions:
        if name is not None:
            pause_it(partitions, name, who(), reason, lasts_us, log_of(partitions))
        answers = ask_all(partitions, find_pauses)
        for number, error in answers.away.items():
            complain(f"partition {number}: {error}")
        _show(by_route(answers.all))


def resume(what: What) -> None:
    """End a pause. Exit status 1 if it was not paused."""
    settings, _ = settings_to_stop()
    name = _name(what)
    with opened_all(settings) as partitions:
        resumed = resume_it(partitions, name, who(), log_of(partitions))
    said = f"{paused_words(name)} {'is resumed' if resumed else 'was not paused'}"
    answer({"what": paused_words(name), "resumed": resumed}, said, right=resumed)


def _name(what: str, settings: Settings | None = None, *, rates: bool = True) -> str:
    try:
        return check_what(what, settings, rates=rates)
    except PauseError as error:
        raise typer.BadParameter(str(error), param_hint="WHAT") from None


def _show(found: list[Held]) -> None:
    rows = [(paused_words(h.route), h.who, h.reason, h.since, h.next_at or "resume", h.waiting) for h in found]
    table = Rows(("paused", "by", "why", "since", "until", "users waiting"), rows, empty="nothing is paused")
    answer([held.as_json() for held in found], table)
