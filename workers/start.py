"""What a worker starts with: settings of a file that nobody is writing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from notifier.settings import Settings, load_settings

AGAIN_S: Final = 1.0  # what has not changed for so long is not being written
MAX_LOOKS: Final = 10


def load_at_start(path: Path | None) -> Settings:
    """The settings that a worker starts with, of a file that nobody writes: it has been the same for a second.

    Raise SettingsError where it cannot be used.
    """
    for _ in range(MAX_LOOKS):
        try:
            age_s = 0.0 if path is None else time.time() - path.stat().st_mtime
        except OSError:  # to load it says so
            break
        if path is None or not 0 <= age_s < AGAIN_S:
            break
        time.sleep(AGAIN_S - age_s)
    return load_settings(path)
