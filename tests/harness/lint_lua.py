"""luacheck over each script and each piece, which sees no more of others than it says it needs. Part of `make lint`.

Debian and Ubuntu: apt-get install lua-check. Where it is missing, this says so; in CI ($CI is set) that is a failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from notifier.scripts import loader

# Redis's globals. What is unused is no finding, as what a part needs stands before it without a value; the
# length of lines is held on the files themselves.
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
        for path in folder.rglob("*.lua"):
            text = path.read_text(encoding="utf-8")
            if text.startswith(loader.INCLUDED):
                continue
            part = loader.read_part(path.stem, loader.included(text))
            needs = f"local {', '.join(part.needs)}\n" if part.needs else ""
            Path(assembled, path.name).write_text(needs + part.body, encoding="utf-8")
        found = subprocess.run(["luacheck", "--quiet", "--codes", assembled, *OPTIONS, *IGNORED], check=False)
    return int(bool(long) or found.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
