"""luacheck over each script as Redis gets it, with its pieces in place. Part of `make lint`.

Debian and Ubuntu: apt-get install lua-check. Where it is missing, this says so; in CI ($CI is set) that is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from notifier.scripts import loader

# Redis's globals. A script need not use all that a piece brings, so what is unused is no finding; the lines' length is
# held on the files themselves.
OPTIONS = ["--std=lua51", "--globals=redis", "--read-globals", "cjson", "cmsgpack", "struct", "KEYS", "ARGV"]
IGNORED = ["--ignore", "2..", "4..", "581", "631"]
LINE = 120


def main() -> int:
    """Check all scripts; returns the exit status."""
    folder = Path(loader.__file__).parent / "lua"
    long = [
        f"{path.relative_to(folder)}:{number}: {len(line)} characters"
        for path in sorted(folder.rglob("*.lua"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE
    ]
    sys.stdout.writelines(f"{line}\n" for line in long)
    if shutil.which("luacheck") is None:
        sys.stderr.write("luacheck is not installed (Debian: apt-get install lua-check): the Lua is not checked\n")
        return int(bool(long) or "CI" in os.environ)
    with tempfile.TemporaryDirectory() as assembled:
        for room in loader.ROOMS:
            for path in (folder / room).glob("*.lua"):
                Path(assembled, path.name).write_text(loader.script(path.stem).source, encoding="utf-8")
        found = subprocess.run(["luacheck", "--quiet", "--codes", assembled, *OPTIONS, *IGNORED], check=False)
    return int(bool(long) or found.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
