"""Write what is made from the code: `make reference`. A test compares it with the code."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, get_args, get_origin

from typer.cli import get_docs_for_click
from typer.main import get_command

from docs.settings_page import settings_page
from docs.settings_schema import schema_text
from notifier.cli.app import app
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.kinds.kind import RuleOfSends

ROOT: Final = Path(__file__).parents[1]
MADE: Final = "This page is made from the code: `make reference`."
ARGUMENT: Final = re.compile(r"^(\w+): ", re.MULTILINE)
PYTHON: Final = {
    "Enqueue": (
        *("notifier.Notifier", "notifier.Notification", "notifier.Device", "notifier.Status", "notifier.Record"),
        *("notifier.Cancellation", "notifier.Gone", "notifier.Ended", "notifier.Held", "notifier.deliver"),
        *("notifier.throttled", "notifier.mark_sent", "notifier.UserPermit"),
    ),
    "What users choose": ("notifier.producer.users.Users", "notifier.Preferences", "notifier.Mute"),
    "Broadcast channels": (
        *(
            "notifier.to_channel",
            "notifier.producer.channels.Channels",
            "notifier.providers.apns.broadcast.BroadcastChannel",
        ),
    ),
    "Enqueue in an asyncio program": ("notifier.AsyncNotifier",),
    "Rules and settings": (
        *("notifier.Policy", "notifier.Window", "notifier.Burst", "notifier.CalendarWindow", "notifier.Hours"),
        *("notifier.Category", "notifier.Rules", "notifier.Policies", "notifier.Settings", "notifier.load_settings"),
    ),
    "The limiter": (
        *("notifier.limiter.Limiter", "notifier.limiter.AsyncLimiter", "notifier.limiter.MemoryLimiter"),
        "notifier.limiter.AsyncMemoryLimiter",
        *("notifier.limiter.Permit", "notifier.limiter.Hold", "notifier.limiter.Usage"),
        *("notifier.limiter.Point", "notifier.limiter.RankedKey"),
        "notifier.limiter.LimitExceeded",
    ),
    "Limits in web programs": (
        *("notifier.limiter.middleware.WebLimit", "notifier.limiter.middleware.WebRequest"),
        *("notifier.limiter.middleware.WebAnswer", "notifier.limiter.middleware.ASGILimits"),
        *("notifier.limiter.middleware.WSGILimits", "notifier.limiter.middleware.client_address"),
        *("notifier.limiter.middleware.api_key", "notifier.limiter.middleware.user"),
        *(
            f"notifier.limiter.middleware.fastapi.{name}"
            for name in ("rate_limit", "RateLimitedError", "answer_refused")
        ),
        "notifier.limiter.middleware.starlette.answer_exceeded",
        *(f"notifier.limiter.middleware.flask.{name}" for name in ("rate_limit", "answer_exceeded")),
        *(f"notifier.limiter.middleware.django.{name}" for name in ("rate_limit", "middleware", "answer_exceeded")),
    ),
    "Django": ("notifier.django.get_notifier", "notifier.django.send_on_commit"),
    "Tests": ("notifier.testing.FakeNotifier", "notifier.testing.Sent"),
    "The worker": ("workers.PushWorker",),
    "Errors": (
        *("notifier.NotifierError", "notifier.InvalidNotificationError", "notifier.InvalidPreferenceError"),
        *("notifier.OverloadedError", "notifier.SettingsError", "notifier.RedisUnusableError"),
        *("notifier.NotReplicatedError", "notifier.LimiterUnreachableError", "notifier.ChannelError"),
    ),
}
OPENING: Final = f"""\
# The Python API

Everything that is public: the names that `notifier`, `notifier.limiter`, `notifier.testing` and `workers` list in their
`__all__`, and the middleware for web programs. What is not listed here may change with any version
([which changes to expect](../how-to/upgrade.md)). In Python, `help(notifier.Notifier)` shows the same.
{MADE}
"""
OPENING_COMMANDS: Final = f"""\
# Every command and option

In a terminal, `notifier --help` and `notifier <command> --help` show the same. [The command `notifier`](cli.md) says
what they are for, and what they print. {MADE}
"""


def main() -> None:
    """Write all of them."""
    for name, made in PAGES.items():
        (ROOT / name).write_text(made(), encoding="utf-8")


def commands() -> str:
    """Each command of `notifier` with its arguments and options, as Typer knows them."""
    command = get_command(app)
    context = command.context_class(command, info_name="notifier", **command.context_settings)
    text = get_docs_for_click(obj=command, ctx=context, name="notifier")
    text = re.sub(r"^#(#+) ", r"\1 ", text.partition("\n")[2], flags=re.MULTILINE)  # the page has a title of its own
    return re.sub(r"\n{3,}", "\n\n", f"{OPENING_COMMANDS}\n{text}".rstrip() + "\n")


def python() -> str:
    """Each public name with its signature and its docstring, and the public methods of classes."""
    parts = [OPENING]
    for title, names in PYTHON.items():
        parts += [f"## {title}\n", *(part for name in names for part in _item(name))]
    return "\n".join(parts)


def _item(name: str) -> Iterator[str]:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    yield f"### {name}\n"
    given = _given(found)
    yield _shown(attribute, found, given)
    if not inspect.isclass(found) or issubclass(found, BaseException | RuleOfSends | CalendarWindow):
        return  # of a rule people need how it is made
    for method, raw in _methods(found):
        yield f"#### {attribute}.{method}\n"
        yield _shown(method, raw, given)


def _given(of: Any) -> Mapping[str, str]:
    """What a class gives its base in the place of each type variable."""
    bases = [base for base in getattr(of, "__orig_bases__", ()) if get_origin(base) is not Generic]
    return {
        variable.__name__: _plain(inspect.formatannotation(value))
        for base in bases
        for variable, value in zip(get_origin(base).__parameters__, get_args(base), strict=True)
    }


def _methods(of: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties, the inherited ones of ours among them, in the order of the source."""
    seen = set()
    for base in reversed([each for each in of.__mro__ if each.__module__.startswith(("notifier", "workers"))]):
        for method, raw in vars(base).items():
            is_ours = callable(raw) or isinstance(raw, property | cached_property | classmethod | staticmethod)
            if is_ours and not method.startswith("_") and method not in seen:
                seen.add(method)
                yield method, vars(base)[method] if isinstance(raw, property) else getattr(of, method)


def _shown(name: str, found: Any, given: Mapping[str, str]) -> str:
    if isinstance(found, property | cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        return f"```python\n{name}: {_annotation(getter)}\n```\n\n{_text(found)}"
    head = f"{'class ' if inspect.isclass(found) else 'async ' if inspect.iscoroutinefunction(found) else ''}{name}"
    # What is made from a YAML has keys, on a page of their own; and nobody but we makes errors.
    if hasattr(found, "model_fields") or (inspect.isclass(found) and issubclass(found, BaseException)):
        return f"```python\n{head}\n```\n\n{_text(found)}"
    signature = inspect.signature(found)
    parts = [str(each) for each in _starred(signature)]
    returns = signature.return_annotation
    ending = "" if returns is inspect.Signature.empty or inspect.isclass(found) else f" -> {_plain(str(returns))}"
    parts, ending = [_filled(part, given) for part in parts], _filled(ending, given)
    line = f"{head}({', '.join(parts)}){ending}"
    if len(line) > 100:  # noqa: PLR2004 - characters of a line
        line = f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){ending}"
    return f"```python\n{line}\n```\n\n{_text(found)}"


def _filled(text: str, given: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: given.get(word[0], word[0]), text)


def _starred(signature: inspect.Signature) -> Iterator[str]:
    """The parameters as they are written; of a default that is no constant, an ellipsis."""
    star = True
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = False
        if parameter.kind is parameter.KEYWORD_ONLY and star:
            star = False
            yield "*"
        default = parameter.default
        if default is not parameter.empty and not isinstance(default, str | int | float | bool | tuple | None):
            parameter = parameter.replace(default=...)  # noqa: PLW2901 - the same one, as it is shown
        yield _plain(str(parameter)).replace("Ellipsis", "...")


def _plain(annotation: str) -> str:
    """A type without its quotes, and without the modules that it comes from."""
    before, sign, default = annotation.partition(" = ")
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", before.replace("'", "")) + sign + default


def _annotation(getter: Any) -> str:
    return str(getter.__annotations__.get("return", "Any")).strip("'")


def _text(found: Any) -> str:
    """The docstring; each line that says what an argument is becomes an item of a list."""
    text = inspect.getdoc(found) or _of_twin(getattr(found, "fget", found))
    if is_dataclass(found) and text.startswith(f"{getattr(found, '__name__', '')}("):  # made by dataclass
        text = ""
    shown = []
    for paragraph in text.split("\n\n"):
        first = ARGUMENT.search(paragraph)
        if first:
            before, listed = paragraph[: first.start()], paragraph[first.start() :]
            listed = ARGUMENT.sub(r"- `\1`: ", listed)
            shown += [before.rstrip(), re.sub(r"\n(?!- )", "\n  ", listed)]
        else:
            shown.append(paragraph)
    return textwrap.dedent("\n\n".join(filter(None, shown))).replace("``", "`") + "\n"


def _of_twin(found: Any) -> str:
    """What is said of a method that only is awaited."""
    name = getattr(found, "__qualname__", "")
    return f"See `{name.removeprefix('Async').replace('KeyLimiter', 'Limiter')}`." if name.startswith("Async") else ""


PAGES: Final = {
    "config/notifier.schema.json": schema_text,
    "docs/reference/configuration.md": settings_page,
    "docs/reference/commands.md": commands,
    "docs/reference/python.md": python,
}

if __name__ == "__main__":
    main()
