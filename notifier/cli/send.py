"""Commands that send: send, send-file."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli.options import (
    A_TIME,
    ExpiresOption,
    TextOption,
    a_time,
    json_object,
    seconds,
    settings_in_force,
)
from notifier.cli.output import ProgressBar, answer, complain, fail
from notifier.cli.progress import Progress, named
from notifier.errors import InvalidNotificationError, OverloadedError
from notifier.notification import Device, Notification
from notifier.notification.files import Row, read_rows
from notifier.producer.notifier import Notifier


def send(
    user: Annotated[str, typer.Argument(help="the user who receives it and whose limits apply")],
    *,
    device: Annotated[list[str], typer.Option(help="platform:token, such as fcm:dXp…; may be repeated")],
    title: TextOption = None,
    body: TextOption = None,
    category: Annotated[str, typer.Option()] = "default",
    priority: Annotated[str | None, typer.Option(help="normal or high  [default: the category's]")] = None,
    data: Annotated[str | None, typer.Option(help="a JSON object")] = None,
    expires_in: ExpiresOption = None,
    send_at: Annotated[str | None, typer.Option(help="do not send it before this time, such as " + A_TIME)] = None,
    collapse_id: TextOption = None,
    tag: Annotated[list[str] | None, typer.Option(help="`notifier cancel` finds it by this; may be repeated")] = None,
    dedupe_key: TextOption = None,
    zone: Annotated[str | None, typer.Option(help="the user's time zone, such as Europe/Berlin")] = None,
    app: Annotated[str | None, typer.Option(help="the name of an app under providers")] = None,
) -> None:
    """Enqueue one notification and print its job id."""
    notification = Notification(
        user=user,
        devices=[_device(text) for text in device],
        title=title,
        body=body,
        category=category,
        priority=priority,  # type: ignore[arg-type]  # checked by Notifier.send, with the field's name
        data=json_object(data or "{}", "--data"),
        expires_in=seconds(expires_in, "--expires-in"),
        send_at=None if send_at is None else a_time(send_at, "--send-at"),
        collapse_id=collapse_id,
        dedupe_key=dedupe_key,
        zone=zone,
        app=app,
        tags=tag or (),
    )
    with Notifier.of(settings_in_force()) as notifier:
        job_id = notifier.send(notification)
    answer({"job_id": job_id}, job_id)


def send_file(
    file: Annotated[Path, typer.Argument(help="JSON lines or a .csv, one notification on each line")],
    *,
    refused: Annotated[
        Path | None, typer.Option(help="write refused lines into this file: correct them, and send it alone")
    ] = None,
) -> None:
    """Enqueue a file of notifications. If a line is refused, the command reports it and goes on.

    It keeps its progress in FILE.progress: after an interruption, the same command goes on from there, and no line
    counts twice. Exit status 1 if a line was refused.
    """
    if not file.is_file():
        why = f"{file} is not a plain file" if file.exists() else f"there is no file {file}"
        raise typer.BadParameter(why, param_hint="FILE")
    kept_at = file.with_name(file.name + ".progress")
    if refused is not None:
        _check_refused(refused, file, kept_at)
    # Invalid UTF-8 is read as surrogates; the check of the notification then names the field.
    with (
        Notifier.of(settings_in_force()) as notifier,
        file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines,
    ):
        progress = _progress(file, kept_at)
        if progress.done:
            fail(f"{file}: was sent before, {progress.accepted} accepted; delete {kept_at} to send it again")
        rows = read_rows(lines, "csv" if _is_csv(file) else "jsonl")
        first = next(rows, None)
        if first is not None and first.problem and not first.raw:
            fail(f"{file}:{first.number}: {first.problem}; nothing of the file was sent")
        with ProgressBar(file.name, file.stat().st_size) as bar:

            def keep() -> None:
                progress.save(kept_at)
                bar.move(lines.buffer.tell())  # type: ignore[attr-defined]

            try:
                with _writer(refused, progress) as refuse:
                    _send_rows(notifier, file, chain([first] if first else [], rows), progress, keep, refuse)
            except KeyboardInterrupt:
                complain(
                    f"{file}: interrupted, {progress.accepted:,} accepted so far; the same command goes on from there"
                )
                raise
            except OSError as error:
                rest = f"{progress.accepted:,} accepted so far; put that right, and the same command goes on from there"
                fail(f"{error.filename or file}: {error.strerror or error}; {rest}")
            except OverloadedError as error:
                fail(f"{file}: {error}; the same command goes on after row {progress.row}")
    counts = {"accepted": progress.accepted, "refused": progress.refused}
    said = ", ".join(f"{number} {name}" for name, number in counts.items())
    answer(counts, said, right=not progress.refused)


def _send_rows(  # noqa: PLR0917 - the state of one sending
    notifier: Notifier,
    file: Path,
    rows: Iterator[Row],
    progress: Progress,
    keep: Callable[[], None],
    refuse: Callable[[list[str]], object],
) -> None:
    # Rows that are not in the progress yet, and whether each is refused. Refused lines are written just before the
    # progress is saved, because a resumed command reads all rows after it again.
    under_way: deque[tuple[Row, bool]] = deque()
    ids: deque[str] = deque()

    def good() -> Iterator[Notification]:
        for row in rows:
            if row.number <= progress.row:
                continue
            problem = row.problem or _why_refused(notifier, row.notification)
            under_way.append((row, bool(problem)))
            if problem:
                complain(f"{file}:{row.number}: {problem}")
            else:
                assert row.notification is not None
                ids.append(progress.job_id(row.number))
                yield row.notification

    def accepted(job_ids: Sequence[str]) -> None:
        progress.accepted += len(job_ids)
        left, refused = len(job_ids), list[str]()
        while under_way and (left or under_way[0][1]):
            row, is_refused = under_way.popleft()
            progress.row = row.number
            if is_refused:
                refused.append(row.raw if progress.refused else row.header + row.raw)
                progress.refused += 1
            else:
                left -= 1
        refuse(refused)
        keep()

    keep()  # saves the run, which makes the job ids: the very first answer may be lost too
    notifier.send_many(good(), job_ids=_taken_from(ids), on_accepted=accepted)
    progress.done = True
    accepted(())


def _check_refused(refused: Path, file: Path, kept_at: Path) -> None:
    for other in (file, kept_at):
        is_one = refused.is_file() and other.is_file() and refused.samefile(other)
        if is_one or refused.resolve() == other.resolve():
            raise typer.BadParameter("is what is sent, or its progress; name another file", param_hint="--refused")
    if _is_csv(refused) is not _is_csv(file):
        why = "must end in .csv if FILE does, and else must not: by its name it is read when it is sent"
        raise typer.BadParameter(why, param_hint="--refused")


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


@contextmanager
def _writer(refused: Path | None, progress: Progress) -> Iterator[Callable[[list[str]], object]]:
    """Return the writer of the refused lines. A resumed command appends to them."""
    if refused is None:
        yield len
        return
    out = refused.open("a" if progress.row else "w", buffering=1, encoding="utf-8", errors="surrogateescape")

    def write(lines: list[str]) -> None:
        with named(refused):
            out.writelines(lines)

    try:
        yield write
    finally:
        with named(refused):  # closing writes the rest of the buffer
            out.close()


def _taken_from(ids: deque[str]) -> Iterator[str]:
    while ids:  # `good` adds an id before it yields the notification
        yield ids.popleft()


def _why_refused(notifier: Notifier, notification: Notification | None) -> str:
    assert notification is not None
    try:
        notifier.check(notification)
    except InvalidNotificationError as error:
        return str(error)
    return ""


def _progress(file: Path, kept_at: Path) -> Progress:
    if not os.access(kept_at if kept_at.exists() else kept_at.parent, os.W_OK):
        fail(f"{kept_at}: cannot be written, but the progress must be kept there; copy the file to another folder")
    with file.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    return Progress.resume(kept_at, digest)


def _device(text: str) -> Device:
    platform, colon, token = text.partition(":")
    if not colon:
        raise typer.BadParameter("give platform:token, such as fcm:dXp…", param_hint="--device")
    return Device(platform, token)
