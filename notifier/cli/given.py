"""The options that several commands share, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer


@dataclass
class Given:
    """Options of the command that runs. All commands have config; COMMANDS of `app` says which have the others."""

    config: Path | None = None
    message: Annotated[str, typer.Option(help="why; the log of changes shows it")] = ""
    who: Annotated[str | None, typer.Option(help="who does it  [default: your login]", show_default=False)] = None
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False
    json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False


GIVEN: Final = Given()
