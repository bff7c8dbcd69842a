"""Read the call of an RQ job, JSON or pickle, and run nothing: a pickle builds only classes that the caller allows."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, Final, NamedTuple
from zoneinfo import ZoneInfo

from notifier.errors import InvalidNotificationError
from notifier.notification.job import STEERING, decode_call, read_meta, unpack_data

PICKLED: Final = b"\x80"  # the first byte of each pickle that RQ writes; no JSON begins with it
LOADS: Final = pickle._Unpickler.dispatch  # noqa: SLF001 - see `_Reader`
MAX_OPCODES: Final = 250_000  # of one pickle: each may build some 200 bytes
MAX_NAME: Final = 200  # characters of the name of a class: each mention is a copy in memory
MAX_KEY_BITS, MAX_LENGTH = 64, 100  # of a number as a key; of a tuple as a key or as arguments
# By opcode: the part of the stack, since the last mark, that becomes keys of a dict or members of a set.
KEYS: Final = {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}
BUILT: Final = {pickle.BUILD: slice(-2, -1)}
ARGUMENTS: Final = {pickle.REDUCE: slice(-1, None), pickle.NEWOBJ: slice(-1, None), pickle.NEWOBJ_EX: slice(-2, -1)}


class RqCall(NamedTuple):
    """The function's name and its arguments. needs: the classes that its pickle names; each is an `Unread`."""

    function: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    pickled: bool = False
    needs: Sequence[str] = ()


class Unread:
    """A placeholder for an object that a pickle would have built."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __call__(self, *_: Any, **__: Any) -> Unread:
        return self

    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, _: Any, __: Any) -> None: ...
    def append(self, _: Any) -> None: ...

    extend = add = append


Load = Callable[[Any], None]


def _safely(places: Mapping[bytes, slice], is_safe: Callable[[Any], bool], why_not: str) -> dict[int, Load]:
    def safely(load: Load, place: slice) -> Load:
        def load_safely(reader: Any) -> None:
            if not all(map(is_safe, reader.stack[place])):
                raise ValueError(why_not)
            load(reader)

        return load_safely

    return {opcode[0]: safely(LOADS[opcode[0]], place) for opcode, place in places.items()}


def _is_safe_key(key: object, *, in_tuple: bool = False) -> bool:
    """Whether a key is quick to hash: a forged pickle must not block the worker.

    The hash of nested tuples recurs without a limit. Numbers of more than 64 bits can be chosen to share one hash, and
    then a dict compares each of them with all others.
    """
    if isinstance(key, tuple):
        return not in_tuple and len(key) <= MAX_LENGTH and all(_is_safe_key(each, in_tuple=True) for each in key)
    return not isinstance(key, int) or key.bit_length() <= MAX_KEY_BITS


def _are_few(arguments: object) -> bool:
    """Whether a call with them is cheap. A text would be one argument for each of its characters."""
    return isinstance(arguments, tuple) and len(arguments) <= MAX_LENGTH


class _Reader(pickle._Unpickler):  # noqa: SLF001 - C's allocates the memory that a forged index asks for
    """Builds an `Unread` for each object of a class, and notes the class in `needs`."""

    dispatch: ClassVar = {
        **LOADS,
        **_safely(KEYS, _is_safe_key, "a key is a tuple of tuples, or too long"),
        **_safely(ARGUMENTS, _are_few, "arguments are no tuple, or too many"),
        **_safely(BUILT, lambda it: not isinstance(it, type | FunctionType), "a class or a function would be changed"),
    }

    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled), fix_imports=False)  # would map the name of a class after the check
        self._pickled = pickled
        self.needs: list[str] = []

    def load(self) -> Any:
        """Build the value. Raises ValueError if it cannot, or if the value needs much more memory than the pickle."""
        try:
            for n, _ in enumerate(pickletools.genops(self._pickled)):  # raises for a length beyond the end
                if n >= MAX_OPCODES:
                    raise ValueError(f"it has more than {MAX_OPCODES:,} parts")  # noqa: TRY301 - reported like any
            return super().load()
        except Exception as error:
            raise ValueError(f"this pickle cannot be opened: {error}") from error

    def find_class(self, module: str, name: str) -> Any:
        if len(module) + len(name) > MAX_NAME:
            raise ValueError("the name of a class is too long")
        self.needs.append(f"{module}.{name}")
        return Unread

    def get_extension(self, code: int) -> None:
        self.append(self.find_class("copyreg", str(code)))  # type: ignore[attr-defined]

    def persistent_load(self, _: Any) -> Any:
        return self.find_class("persistent", "id")()


def _zone_getattr(owner: Any, name: str) -> Any:
    """Replace `getattr`: the pickle of a zone needs it for this function, a forged one could reach anything by it."""
    if owner is not ZoneInfo or name != "_unpickle":
        raise ValueError("it needs getattr")
    return getattr(owner, name)


class _Opener(_Reader):
    """Builds objects of the classes that `opens` allows, and no others."""

    def __init__(self, pickled: bytes, opens: Callable[[str], bool]) -> None:
        super().__init__(pickled)
        self._opens = opens

    def find_class(self, module: str, name: str) -> Any:
        if not self._opens(f"{module}.{name}"):
            raise ValueError(f"it needs {module}.{name}")
        if (module, name) == ("builtins", "getattr"):
            return _zone_getattr
        return super(_Reader, self).find_class(module, name)  # imports nothing: the allowed classes are loaded already


def open_pickle(pickled: bytes, opens: Callable[[str], bool] | None) -> Any:
    """The value of a pickle. opens: whether a class may be built; None allows none. Raises ValueError for any other."""
    return _Opener(pickled, opens or (lambda _: False)).load()


def read_pickle(pickled: bytes) -> tuple[Any, Sequence[str]]:
    """The plain values of a pickle, and the classes that it names. Raises ValueError if it is no pickle."""
    reader = _Reader(pickled)
    return reader.load(), reader.needs


def read_call(data: bytes, meta: bytes = b"") -> RqCall:
    """The call that a job's data holds. Raises InvalidNotificationError if it holds none.

    meta: the job's. If both are pickles, `needs` has the classes of the meta too.
    """
    raw = unpack_data(data)
    if not raw.startswith(PICKLED):
        return RqCall(*decode_call(raw))
    try:
        (function, instance, args, kwargs), needs = read_pickle(raw)
        more = read_pickle(meta)[1] if meta.startswith(PICKLED) else ()
    except (ValueError, TypeError):
        what = "its data, or its meta, is neither JSON nor a pickle that can be opened"
        raise InvalidNotificationError("job", what) from None
    if not isinstance(function, str) or not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise InvalidNotificationError("job", "its data is not a call")
    if instance is not None:
        raise InvalidNotificationError("job", "it calls a method of an object: enqueue a function")
    return RqCall(function, args, kwargs, pickled=True, needs=[*needs, *more])


def read_any_meta(meta: bytes) -> dict[str, Any]:
    """Read a job's meta, JSON or pickle; of a pickle only the keys that limit the job."""
    if not meta.startswith(PICKLED):
        return read_meta(meta)
    try:
        found, _ = read_pickle(meta)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    if isinstance(kept := found.get("unserialized"), bytes):  # JSON in a pickle, by a tool of RQ 2
        return read_meta(kept)
    return {name: found[name] for name in STEERING if isinstance(found.get(name), str | int | float)}
