"""Makes the package `push_throttle_limiter` of notifier/limiter and the modules of notifier that it imports.

notifier.limiter becomes push_throttle_limiter, and what it imports of the rest its private part `_house`. So the two
distributions have no file in common: both can be installed.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[2]
PACKAGE = "push_throttle_limiter"
LIMITER = "notifier.limiter"
NAME = re.compile(r"\bnotifier\.(errors|lazy|units|rules|scripts|store)\b")
ELSEWHERE = "notifier.store"  # a configuration's Redis and rates, see `follow`: these are in push-throttle alone


class Limiter(BuildHookInterface):
    """Called by hatch."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Write the package, and say where its files are."""
        made = Path(self.directory) / PACKAGE
        shutil.rmtree(made, ignore_errors=True)
        write_package(made)
        build_data["force_include"][str(made)] = PACKAGE
        build_data["force_include"][str(ROOT / "LICENSE")] = f"{PACKAGE}/LICENSE"


def write_package(to: Path) -> None:
    """Write the package into a folder."""
    modules = closure()
    for module, path in modules.items():
        write(to / renamed_path(module, path), renamed(path.read_text(encoding="utf-8")))
    lua = ROOT / "notifier/scripts/lua"
    wanted = pieces(lua)
    for path in lua.glob("*/*.lua"):
        if path.stem in wanted:
            write(to / "_house/scripts/lua" / path.relative_to(lua), path.read_text(encoding="utf-8"))
    (to / "py.typed").touch()


def closure() -> dict[str, Path]:
    """Each module of the limiter's and all that it imports of notifier, by name."""
    asked = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "notifier/limiter").rglob("*.py")
    ]
    found: dict[str, Path] = {}
    while asked:
        name = asked.pop()
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or name == "notifier" or name.startswith(ELSEWHERE) or not path.is_file():
            continue
        found[name] = path
        asked += [name.rpartition(".")[0], *imported(path)]
    return found


def imported(path: Path) -> Iterator[str]:
    """What of notifier a module imports, not within a function."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for each in ast.walk(node) if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("notifier."):
                yield each.module or ""


def pieces(lua: Path) -> set[str]:
    """The limiter's scripts, what they include, and the pieces that they need."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in lua.glob("*/*.lua")}
    told = re.compile(r"^--! (?:exports|on_demand) (.*)$", re.MULTILINE)
    home = {name: stem for stem, text in texts.items() for names in told.findall(text) for name in names.split()}
    needs = re.compile(r"^--! (?:needs|include) (.*)$", re.MULTILINE)
    found = {path.stem for path in lua.glob("limiter/limit*.lua")}
    asked = [texts[stem] for stem in found]
    while asked:
        wanted = {home.get(name, name) for names in needs.findall(asked.pop()) for name in names.split()}
        asked += [texts[stem] for stem in wanted - found]
        found |= wanted
    return found


def renamed(text: str) -> str:
    """The text of a module, by the names of the new package."""
    text = text.replace(LIMITER, PACKAGE)
    return NAME.sub(rf"{PACKAGE}._house.\1", text)


def renamed_path(module: str, path: Path) -> Path:
    """Where a module stands in the new package."""
    parts = path.relative_to(ROOT / "notifier").parts
    return Path(*parts[1:]) if module.startswith(LIMITER) else Path("_house", *parts)


def write(path: Path, text: str) -> None:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
