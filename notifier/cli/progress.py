"""The progress of `send-file`, in a small file beside the sent one, so that an interrupted command can go on."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from notifier.cli.output import fail


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an OSError name this file; that of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@dataclass(slots=True)
class Progress:
    """run: the id of this sending of the file. row: the last row with a result. accepted, refused: counts so far."""

    digest: str
    run: str
    row: int = 0
    accepted: int = 0
    refused: int = 0
    done: bool = False

    def job_id(self, row: int) -> str:
        """The id of a row: the same if the row is sent again after a lost answer, so that it is accepted once."""
        return hashlib.sha256(f"{self.run}:{row}".encode()).hexdigest()[:20]

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        beside = path.with_name(path.name + ".new")
        with named(beside):
            beside.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def begin(cls, digest: str) -> Self:
        return cls(digest, secrets.token_hex(10))

    @classmethod
    def resume(cls, path: Path, digest: str) -> Self:
        """Read the progress from `path`, or begin a new one. Ends the command if the progress is of another content."""
        try:
            kept = cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls.begin(digest)
        except (OSError, ValueError, TypeError) as error:
            fail(f"{path}: is not a progress file of send-file ({type(error).__name__}); delete it to begin again")
        if kept.digest != digest and kept.done and not kept.accepted:  # not done: some may be accepted and not counted
            return cls.begin(digest)
        if kept.digest != digest:
            fail(f"{path}: the file has changed since row {kept.row}; delete this to send the whole file again")
        return kept
