"""What the demo may be told on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse(argv: list[str] | None, about: str | None) -> argparse.Namespace:
    """Read the command line. about: what --help says of the demo."""
    parser = argparse.ArgumentParser(prog="python -m workers.demo", description=about)
    parser.add_argument("--json", action="store_true", help="print only the report, as one JSON object")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="how many workers to start (default: 4)")
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("examples/notifications.jsonl"),
        help="the notifications, one JSON object a line (default: %(default)s)",
    )
    parser.add_argument(
        "--rates", type=Path, default=Path("examples/demo.yaml"), help="the rates, as YAML (default: %(default)s)"
    )
    return parser.parse_args(argv)
