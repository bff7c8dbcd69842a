"""Sections of the YAML's `providers`, by which a test builds a provider."""

import json
from pathlib import Path
from typing import Any

from notifier.settings import parse_settings


def section(platform: str, *, timeout_us: int = 5_000_000, **keys: Any) -> Any:
    """The section `providers.<platform>` with these keys, paths among them, as a worker reads it from the file."""
    written = {name: str(value) if isinstance(value, Path) else value for name, value in keys.items()}
    document = {"providers": {platform: {**written, "timeout": f"{timeout_us // 1000}ms"}}, "worker": {"lease": "10m"}}
    return parse_settings(json.dumps(document)).providers.platforms()[platform]
