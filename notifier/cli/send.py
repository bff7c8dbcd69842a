"""Commands that send: send, send-file."""

from __future__ import annotations

import json as codec
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from notifier.cli.output import JsonOption, ProgressBar, Status, complain, duration_us, print_json, say
from notifier.cli.progress import Progress, digest_of, is_writable
from notifier.errors import InvalidNotificationError, OverloadedError
from notifier.notification import Device, Notification
from notifier.notification.files import Format, Row, read_rows
from notifier.producer.notifier import Notifier
from notifier.units import UNITS

STANDARD_INPUT: Final = Path("-")
A_TIME: Final = "2026-12-24T18:00:00+01:00"
Text = Annotated[str | None, typer.Option()]


def send(
    context: typer.Context,
    user: Annotated[str, typer.Argument(help="the user who receives it and whose limits apply")],
    *,
    device: Annotated[list[str], typer.Option(help="platform:token, such as fcm:dXp…; may be repeated")],
    title: Text = None,
    body: Text = None,
    category: Annotated[str, typer.Option()] = "default",
    priority: Annotated[str | None, typer.Option(help="normal or high  [default: the category's]")] = None,
    data: Annotated[str | None, typer.Option(help="a JSON object")] = None,
    expires_in: Annotated[str | None, typer.Option(help="do not send it after this time, such as 90s or 2h")] = None,
    send_at: Annotated[str | None, typer.Option(help="do not send it before this time, such as " + A_TIME)] = None,
    collapse_id: Text = None,
    tag: Annotated[list[str] | None, typer.Option(help="cancel finds it by this; may be repeated")] = None,
    dedupe_key: Text = None,
    zone: Annotated[str | None, typer.Option(help="the user's time zone, such as Europe/Berlin")] = None,
    app: Annotated[str | None, typer.Option(help="the name of an app under providers")] = None,
    json: JsonOption = False,
) -> None:
    """Enqueue one notification and print its job id."""
    notification = Notification(
        user=user,
        devices=[_device(text) for text in device],
        title=title,
        body=body,
        category=category,
        priority=priority,  # type: ignore[arg-type]  # checked by Notifier.send, with the field's name
        data=_data(data),
        expires_in=None if expires_in is None else duration_us(expires_in, "--expires-in") / UNITS["s"],
        send_at=None if send_at is None else a_time(send_at, "--send-at"),
        collapse_id=collapse_id,
        dedupe_key=dedupe_key,
        zone=zone,
        app=app,
        tags=tag or (),
    )
    with Notifier.from_config(context.obj, follow=False) as notifier:
        job_id = notifier.send(notification)
    print_json({"job_id": job_id}) if json else say(job_id)


def send_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="JSON lines or CSV, one notification a line; - is standard input")],
    *,
    form: Annotated[
        Format | None, typer.Option("--format", help="[default: by the file's name: .csv, or JSON lines]")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="send the whole file again")] = False,
    json: JsonOption = False,
) -> None:
    """Enqueue a file of notifications. A refused line is reported, and does not stop the rest.

    The progress is kept in FILE.progress: after an interruption, the same command goes on from there, and no line
    counts twice. Exit status 1 if a line was refused.
    """
    if file != STANDARD_INPUT and not file.is_file():
        why = f"{file} is not a plain file; - is standard input" if file.exists() else f"there is no file {file}"
        raise typer.BadParameter(why, param_hint="FILE")
    form = form or ("csv" if file.suffix.lower() == ".csv" else "jsonl")
    with Notifier.from_config(context.obj, follow=False) as notifier, _open(file) as lines:
        kept_at = None if file == STANDARD_INPUT else file.with_name(file.name + ".progress")
        progress = _progress(file, kept_at, again=again)
        if progress.done:
            complain(f"{file}: was sent before, {progress.accepted} accepted; --again sends it again")
            raise typer.Exit(Status.NOT_RIGHT)
        size = None if kept_at is None else file.stat().st_size
        with ProgressBar(file.name, size) as bar:

            def show() -> None:
                bar.move(progress.row if size is None else lines.buffer.tell())  # type: ignore[attr-defined]

            try:
                _send_rows(notifier, file, read_rows(lines, form), progress, kept_at, show)
            except KeyboardInterrupt:
                rest = "" if kept_at is None else "; the same command goes on from there"
                complain(f"{file}: interrupted, {progress.accepted:,} accepted so far{rest}")
                raise
            except OverloadedError as error:
                if kept_at is not None:
                    progress.save(kept_at)  # what was accepted behind the refused keeps its job ids
                complain(f"{file}: {error}; the same command goes on after row {progress.row}")
                raise typer.Exit(Status.NOT_RIGHT) from None
    if json:
        print_json({"accepted": progress.accepted, "refused": progress.refused})
    else:
        say(f"{progress.accepted} accepted, {progress.refused} refused")
    if progress.refused:
        raise typer.Exit(Status.NOT_RIGHT)


def _send_rows(  # noqa: PLR0917 - all of one sending
    notifier: Notifier,
    file: Path,
    rows: Iterator[Row],
    progress: Progress,
    kept_at: Path | None,
    show: Callable[[], None],
) -> None:
    under_way: deque[tuple[int, int]] = deque()  # (row, rows refused before it) of what is not accepted yet
    ids: deque[str] = deque()
    refused = progress.refused

    def good() -> Iterator[Notification]:
        nonlocal refused
        for row in rows:
            if row.number <= progress.row:
                continue
            problem = row.problem or _why_refused(notifier, row.notification)
            if problem:
                refused += 1
                complain(f"{file}:{row.number}: {problem}")
            else:
                assert row.notification is not None
                under_way.append((row.number, refused))
                ids.append(progress.job_id(row.number))
                yield row.notification

    def accepted(job_ids: Sequence[str]) -> None:
        for _ in job_ids:
            progress.row, progress.refused = under_way.popleft()
        progress.accepted += len(job_ids)
        if kept_at is not None:
            progress.save(kept_at)
        show()

    notifier.send_many(good(), job_ids=_taken_from(ids), on_accepted=accepted)
    progress.refused, progress.done = refused, True
    if kept_at is not None:
        progress.save(kept_at)


def _taken_from(ids: deque[str]) -> Iterator[str]:
    while ids:  # one is put in for each notification, before it is asked for
        yield ids.popleft()


def _why_refused(notifier: Notifier, notification: Notification | None) -> str:
    assert notification is not None
    try:
        notifier.check(notification)
    except InvalidNotificationError as error:
        return str(error)
    return ""


def _progress(file: Path, kept_at: Path | None, *, again: bool) -> Progress:
    if kept_at is None:
        return Progress.begin()
    if not is_writable(kept_at):
        complain(f"{kept_at}: cannot be written, but the progress must be kept there; copy the file to another folder")
        raise typer.Exit(Status.NOT_RIGHT)
    digest = digest_of(file)
    return Progress.begin(digest) if again else Progress.resume(kept_at, digest)


def _open(file: Path) -> AbstractContextManager[IO[str]]:
    # What is not UTF-8 comes through, and the check of the notification names its field.
    if file == STANDARD_INPUT:
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        return nullcontext(sys.stdin)
    return file.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _device(text: str) -> Device:
    platform, colon, token = text.partition(":")
    if not colon:
        raise typer.BadParameter("give platform:token, such as fcm:dXp…", param_hint="--device")
    return Device(platform, token)


def _data(text: str | None) -> dict[str, Any]:
    try:
        data = codec.loads(text or "{}")
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise typer.BadParameter('give a JSON object, such as \'{"screen": "inbox"}\'', param_hint="--data")
    return data


def a_time(text: str, option: str) -> datetime:
    """Return the moment that an option of this name gives; raise BadParameter where it is none, or has no zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"give a time such as {A_TIME}", param_hint=option) from None
    if at.tzinfo is None:
        raise typer.BadParameter(f"a time needs its zone, such as {A_TIME}", param_hint=option)
    return at
