"""Read the command line of the demo."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path("examples")


def example(name: str) -> Path:
    """Return the file in ./examples, where people may change it, or else the copy in the package."""
    here = EXAMPLES / name
    return here if here.is_file() else Path(__file__).with_name(name)


def parse(argv: list[str] | None, about: str | None) -> argparse.Namespace:
    """Read the command line. about: what --help says of the demo."""
    parser = argparse.ArgumentParser(prog="python -m workers.demo", description=about)
    parser.add_argument("--json", action="store_true", help="print only the report, as one JSON object")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="how many workers to start (default: 4)")
    parser.add_argument(
        "--rates", type=Path, default=example("demo.yaml"), help="the rates, as YAML (default: %(default)s)"
    )
    return parser.parse_args(argv)
