"""Environments for those that cannot share ours: aioapns needs its own h2, apns2 and our client apns2 one from 2017."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent / ".peers"
LOCK: Final = FOLDER.parents[2] / "requirements-apns2.lock"
PEERS: Final = {"aioapns": "aioapns==4.0", "apns2": "compat-fork-apns2==0.8.0", "ours-apns2": f"-r{LOCK}"}


def python_of(peer: str) -> str:
    """The Python of a peer's environment, which is built the first time and when its version has changed."""
    wanted = f"{PEERS[peer]} on Python {sys.version}"
    folder = FOLDER / peer
    stamp, python = folder / "built-for", str(folder / "bin" / "python")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEERS[peer]]
        built = subprocess.run(install, check=False, capture_output=True)
        if built.returncode:
            raise RuntimeError(f"{PEERS[peer]} cannot be installed: {built.stderr.decode(errors='replace')[-2000:]}")
        stamp.write_text(wanted, encoding="utf-8")
    return python
