"""How far `send-file` has come, in a small file beside the one that is sent, so that it can be begun again."""

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
    """Write to this file; an error names it, also that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@dataclass(slots=True)
class Progress:
    """run: names this sending of the file; row: the last one dealt with; accepted and refused: so far."""

    digest: str
    run: str
    row: int = 0
    accepted: int = 0
    refused: int = 0
    done: bool = False

    def job_id(self, row: int) -> str:
        """The id of a row: the same when the row is sent again, because nobody knew whether it went through."""
        return hashlib.sha256(f"{self.run}:{row}".encode()).hexdigest()[:20]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        beside = path.with_name(path.name + ".new")
        with named(beside):
            beside.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def begin(cls, digest: str) -> Self:
        return cls(digest, secrets.token_hex(10))

    @classmethod
    def resume(cls, path: Path, digest: str) -> Self:
        """The progress kept at `path`, or a new one where nothing is kept; ends the command for one of another file."""
        try:
            kept = cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls.begin(digest)
        except (OSError, ValueError, TypeError) as error:
            fail(f"{path}: is not a progress file of send-file ({type(error).__name__}); delete it to begin again")
        if kept.digest != digest and kept.done and not kept.accepted:  # before the end, some may be unknown to us
            return cls.begin(digest)
        if kept.digest != digest:
            fail(f"{path}: the file has changed since row {kept.row}; delete this to send the whole file again")
        return kept
