"""Names that a package offers, each imported when it is first used: a program pays for what it uses alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

Lazy: TypeAlias = tuple[Callable[[str], Any], Callable[[], list[str]]]


def lazily(package: str, homes: Mapping[str, str]) -> Lazy:
    """The `__getattr__` and `__dir__` of a package. homes: the names it offers, by the module of each.

    Writes its `__all__` too: one that stood there and had to be computed would be an empty list to mypy. Type checkers
    read the same names from imports under TYPE_CHECKING, where each stands as itself (`X as X`), which is how a package
    says to them that it offers what it imports; a test holds the two together.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    vars(sys.modules[package])["__all__"] = sorted(home)

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # so this is asked once
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *home})
