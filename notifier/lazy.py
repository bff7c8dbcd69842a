"""Lazy imports: a package imports each public name at its first use, so a program loads only the modules it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

Lazy: TypeAlias = tuple[Callable[[str], Any], Callable[[], list[str]]]


def lazily(package: str, homes: Mapping[str, str]) -> Lazy:
    """Return the `__getattr__` and `__dir__` of a package. homes: for each module, its public names.

    Also sets the package's `__all__`: if the package itself computed the list, mypy would read an empty one. Type
    checkers read the names from imports under TYPE_CHECKING, written `X as X`, which marks a public name. A test
    compares the two lists.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    vars(sys.modules[package])["__all__"] = sorted(home)

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # so Python calls `load` once for each name
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *home})
