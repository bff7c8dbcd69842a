"""Read YAML as plain data, with the place of each key and value. Safe on hostile input.

A configuration is one document of mappings, lists and scalars. This module builds it from the parser's events and not
by `yaml.load`, for two reasons. The events show aliases, tags, duplicate keys and deep nesting at their place, before
anything is expanded. And scalars follow YAML 1.2 here: `no`, `on` and `1:30` are text, not false, true and 90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

from notifier.settings.rates import SECTIONS

Path: TypeAlias = tuple[str | int, ...]

MAX_BYTES: Final = 5_000_000
MAX_DEPTH: Final = 20
PIECE: Final = 1_000_000

# A text that looks like a private key, with its PEM armour or as bare base64.
_KEY_MATERIAL: Final = re.compile(r"-----BEGIN|\A[A-Za-z0-9+/=\s]{120,}\Z")
_REDIS_USER_INFO: Final = re.compile(r"\s*(?:rediss?(?:\+(?:sentinel|cluster))?|unix)://([^@]*)@", re.IGNORECASE)
_REDIS_PASSWORD: Final = re.compile(r"\s*(?:rediss?|unix)://.*[?&]password=", re.IGNORECASE | re.DOTALL)
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+")

# The C parser is six times as fast: it reads 50,000 users with rules of their own in 2 s.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Mark(NamedTuple):
    """A place in the text. Lines and columns are counted from 1."""

    line: int
    column: int


class Problem(NamedTuple):
    """A mistake: where, what is wrong, what would be right."""

    mark: Mark | None
    path: Path
    message: str


class YamlError(Exception):
    """The text is not the YAML that a configuration may be; `problem` says where and why."""

    def __init__(self, message: str, mark: Mark | None = None, path: Path = ()) -> None:
        super().__init__(message)
        self.problem = Problem(mark, path, message)


@dataclass(slots=True)
class Source:
    """The data of a YAML text, the places of its keys and values, and the problems that are found without a schema.

    name: its name in errors. rates: the source whose sections of rates replace the own ones. Data that comes from no
    text has no places.
    """

    data: Any = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    name: str = ""
    rates: Source | None = None

    def of(self, path: Path) -> Source:
        """Return the source of the section at the head of a path: this one, or `rates`."""
        return self.rates if self.rates is not None and path[:1] and path[0] in SECTIONS else self

    def forget_places(self) -> None:
        """Free the places one by one: to free those of a large file at once would hold up the worker's sends."""
        for places in (self.keys, self.values):
            while places:
                places.popitem()


def decode(raw: bytes, most: int = MAX_BYTES) -> str:
    """Return the text in a file's bytes; raise YamlError if it is larger than `most` or not UTF-8."""
    if len(raw) > most:
        raise YamlError(f"is larger than {most // 1_000_000} MB; a configuration this large is a mistake")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise YamlError("is not UTF-8 text; save the file as UTF-8", Mark(line, column)) from None


def has_password(text: str) -> bool:
    """Whether a text is a Redis URL with a password in it."""
    user_info = _REDIS_USER_INFO.match(text)
    if user_info is not None and user_info[1].partition(":")[2]:
        return True
    return _REDIS_PASSWORD.match(text) is not None


def read_yaml(text: str) -> Source:
    """Read one document; raise YamlError if the text cannot be read to its end.

    Duplicate keys and secrets are collected in `problems`, so that the rest can be checked as well.
    """
    # Piece by piece: one search of a whole large file would hold up the worker's sends.
    pieces = (_UNPRINTABLE.search(text, at, at + PIECE) for at in range(0, len(text), PIECE))
    if (found := next(filter(None, pieces), None)) is not None:
        mark = Mark(text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start()))
        raise YamlError(f"the character U+{ord(found[0]):04X} is not allowed in YAML; delete it", mark)
    try:
        return _Builder(yaml.parse(text, Loader=_LOADER)).build()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None


def write_yaml(data: Any) -> str:
    """Write plain data as YAML: keys in their own order, each innermost list or mapping in one line."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        """Write a repeated value out each time: `read_yaml` refuses aliases."""
        return True


class _Builder:
    """Build a Source from the parser's events: one document, nothing expanded."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.events = events
        self.source = Source()

    def build(self) -> Source:
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise YamlError("a second document begins here; keep to one, without '---'", _mark(event))
                self.source.data = self.node(next(self.events), ())
        return self.source

    def node(self, event: yaml.Event, path: Path) -> Any:
        mark = self.source.values[path] = _mark(event)
        self._check(event, mark, path)
        if isinstance(event, yaml.ScalarEvent):
            self._is_secret(event.value, mark, path)
            return event.value if event.style else _plain(event.value)
        if len(path) >= MAX_DEPTH:
            raise YamlError(f"is nested more than {MAX_DEPTH} levels deep", mark, path[:3])
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(event, (*path, len(items))))
            return items
        return self._mapping(path)

    def _mapping(self, path: Path) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            mark = _mark(event)
            self._check(event, mark, path)
            if not isinstance(event, yaml.ScalarEvent):
                raise YamlError("a key must be text, not a list or a mapping", mark, path)
            # Keys are always text: the users 42 and "42" are the same.
            key = event.value
            below = (*path, key)
            if key in entries:
                first = self.source.keys[below].line
                self.source.problems.append(Problem(mark, below, f"is given twice, first in line {first}; keep one"))
            else:
                self.source.keys[below] = mark
            value = self.node(next(self.events), below)
            if not self._is_secret(key, mark, path):
                entries[key] = value
        return entries

    def _check(self, event: yaml.Event, mark: Mark, path: Path) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise YamlError("anchors and aliases (&name, *name) are not supported; write the value out", mark, path)
        if getattr(event, "tag", None) is not None:
            raise YamlError("tags (!name) are not supported; write the plain value", mark, path)

    def _is_secret(self, text: str, mark: Mark, path: Path) -> bool:
        # The message does not contain the value: screens and logs show the message.
        if _KEY_MATERIAL.search(text):
            message = (
                "holds a private key, and secrets do not belong in this file; "
                "name a file with it, or set NOTIFIER_APNS_KEY or NOTIFIER_FCM_SERVICE_ACCOUNT"
            )
        elif has_password(text):
            message = (
                "holds a password, and secrets do not belong in this file; "
                "set NOTIFIER_REDIS_URL, or name a file with it in redis.password_file"
            )
        else:
            return False
        self.source.problems.append(Problem(mark, path, message))
        return True


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar, by YAML 1.2's core schema."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _mark(event: yaml.Event) -> Mark:
    start: Any = event.start_mark
    return Mark(start.line + 1, start.column + 1)


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> YamlError:
    """Describe the error without `str(error)`, which quotes the line and the secrets in it."""
    where: Any = error.problem_mark
    begun = f" {error.context} (begun in line {error.context_mark.line + 1})" if error.context_mark else ""
    lines = text.splitlines()
    line = lines[where.line] if where.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    hint = "; a tab indents this line: use spaces" if "\t" in indent else ""
    return YamlError(f"is not YAML: {error.problem}{begun}{hint}", Mark(where.line + 1, where.column + 1))
