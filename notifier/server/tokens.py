"""The tokens of `notifier serve`: one shared token, or a line for each caller with a name, a role and a token."""

from __future__ import annotations

import hmac
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from notifier.errors import SettingsError
from notifier.settings.checks import one_line

MIN_TOKEN: Final = 16
LINE: Final = "a line for each name: NAME look|act TOKEN"


class Caller(NamedTuple):
    """The holder of a token. name: '' if the token is shared."""

    name: str
    may_act: bool
    token: bytes


def read_callers(text: str, where: str) -> list[Caller]:
    """The callers in the text of a token or of its file. Raises SettingsError."""
    lines = {n: line for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")}
    found: list[Caller] = []
    for number, line in lines.items():
        match line.split():
            case [_] if len(lines) == 1:
                found.append(Caller("", may_act=True, token=_long(line, where)))
            case [name, "look" | "act" as role, token]:
                found.append(Caller(name, role == "act", _long(token, f"{where}: {name}")))
            case _:
                raise SettingsError(f"{where}: line {number} is neither a token alone nor {LINE}")
        if any(found[-1].name == each.name or found[-1].token == each.token for each in found[:-1]):
            raise SettingsError(f"{where}: line {number} has the name or the token of a line before it")
    if not found:
        raise SettingsError(f"{where} holds no token: write one, or {LINE}")
    return found


@lru_cache(maxsize=1)
def callers_of(text: str) -> list[Caller]:
    """As `read_callers`, for a text that was checked before; [] for an empty one."""
    return read_callers(text, "the token") if text else []


def caller(known: list[Caller], given: bytes) -> Caller | None:
    """Find the caller with this token. The time of each comparison does not depend on where the tokens differ."""
    found = [each for each in known if hmac.compare_digest(given, each.token)]
    return found[0] if found else None


def is_this_host(name: str) -> bool:
    """Whether this address or name always means this host. Anybody can point any other name here."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _long(text: str, where: str) -> bytes:
    token = one_line(text, where)
    if len(token) < MIN_TOKEN:
        raise SettingsError(f"{where}: a token has at least {MIN_TOKEN} characters; openssl rand -hex 24 prints one")
    return token.encode()
