"""Take the descriptions of keys from the comments of the full configuration: a key is described in one place."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final, TypeAlias

from notifier.settings.templates import template

Path: TypeAlias = tuple[str, ...]
ANY: Final = "*"  # in a path: whatever name stands there

_KEY: Final = re.compile(r'( *)"?([\w-]+)"?:(?: |$)')
_COMMENTED_KEY: Final = re.compile(r"(\w+):(?: |$)")
_EXAMPLE: Final = re.compile(r"- |\w+: \{|\{")
_TABLE_ROW: Final = re.compile(r"  (\w+) +(\S.*)")


def comments(keys: frozenset[str]) -> dict[str, str]:
    """The comment above each key of the full configuration, by the key's path; a key may stand in a comment itself."""
    reader = _Reader(keys)
    for line in template("full").splitlines():
        reader.read(line)
    return {".".join(path): _sentence(parts) for path, parts in reader.found.items()}


def _sentence(lines: list[str]) -> str:
    """The lines as one text; what led to an example ends like any sentence."""
    text = " ".join(filter(None, lines))
    return f"{text[:-1]}." if text.endswith(":") else text


class _Reader:
    """Reads line by line. found: the lines of each key's comment."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys
        self.found: defaultdict[Path, list[str]] = defaultdict(list)
        self._parents: list[tuple[int, str]] = []
        self._above: list[str] = []
        self._rows: dict[str, list[str]] = {}
        self._last: Path = ()

    def read(self, line: str) -> None:
        """Take the next line."""
        text = line.strip()
        if not text.startswith("#"):
            self._last = ()
        if not text:
            self._above, self._rows = [], {}
        elif text.startswith("#"):
            self._comment(len(line) - len(line.lstrip()), text[1:].removeprefix(" "))
        elif key := _KEY.match(line):
            self._leave(len(key[1]))
            self._parents.append((len(key[1]), key[2]))
            path = tuple(name for _, name in self._parents)
            self._take(path)
            for name, lines in self._rows.items():
                self.found[*path, ANY, name] += [re.sub(" {2,}", ": ", line) for line in lines]
            self._rows = {}

    def _comment(self, indent: int, text: str) -> None:
        if row := _TABLE_ROW.fullmatch(text):
            self._rows[row[1]] = [row[2][0].upper() + row[2][1:].rstrip()]
        elif self._rows and text.startswith("   "):
            self._rows[list(self._rows)[-1]].append(text.strip())
        elif (key := _COMMENTED_KEY.match(text.strip())) and key[1] in self._keys:
            self._commented(indent, key[1])
        elif not _EXAMPLE.match(text.strip()):
            self._above.append(text.strip())
            self._last = ()

    def _commented(self, indent: int, name: str) -> None:
        if not self._above and not self._last:
            return
        self._leave(indent)
        path = (*(parent for _, parent in self._parents), name)
        if self._above:
            self._take(path)
        elif path not in self.found:  # one comment above several keys
            self.found[path] += self.found[self._last]
        self._last = path

    def _take(self, path: Path) -> None:
        self.found[path] += self._above
        self._above = []

    def _leave(self, indent: int) -> None:
        while self._parents and self._parents[-1][0] >= indent:
            self._parents.pop()
