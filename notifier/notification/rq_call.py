"""Read which function an RQ job calls, with any serializer, and run nothing: a pickle is read, and builds nothing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from notifier.errors import InvalidNotificationError
from notifier.notification.job import decode_call, unpack_data

PICKLED: Final = b"\x80"  # the first byte of any pickle that RQ writes, and of no JSON
LOADS: Final = pickle._Unpickler.dispatch  # noqa: SLF001 - as `_Reader`
MAX_KEY_BITS, MAX_KEY_LENGTH = 64, 100
# Where an opcode finds what becomes keys of a dict, or members of a set: from its mark on, or at the end.
KEYS: Final = {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}


class RqCall(NamedTuple):
    """The function's name and its arguments. needs: the classes that its pickle names; each stands as an `Unread`."""

    function: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    pickled: bool = False
    needs: Sequence[str] = ()


class Unread:
    """In the place of an object that a pickle would have built."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, _: Any, __: Any) -> None: ...
    def append(self, _: Any) -> None:
        """Take what a list would take."""

    extend = add = append


def _with_safe_keys(opcode: bytes, keys: slice) -> Callable[[Any], None]:
    load = LOADS[opcode[0]]

    def load_safely(reader: Any) -> None:
        if not all(map(_is_safe_key, reader.stack[keys])):
            raise ValueError("a key is a tuple of tuples, or too long")
        load(reader)

    return load_safely


def _is_safe_key(key: object, *, in_tuple: bool = False) -> bool:
    """Whether a forger cannot have made it to be hashed without end: a tuple's hash asks its members', without a limit.

    Of numbers beyond 64 bits any number have the same hash, and a dict compares each of them with all.
    """
    if isinstance(key, tuple):
        return not in_tuple and len(key) <= MAX_KEY_LENGTH and all(_is_safe_key(each, in_tuple=True) for each in key)
    return not isinstance(key, int) or key.bit_length() <= MAX_KEY_BITS


class _Reader(pickle._Unpickler):  # noqa: SLF001 - C's one allots whatever memory a forged index asks for
    """Builds an `Unread` in the place of what is not Python's own, and notes which class that was."""

    dispatch: ClassVar = LOADS | {opcode[0]: _with_safe_keys(opcode, keys) for opcode, keys in KEYS.items()}

    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled))
        self.needs: list[str] = []

    def find_class(self, module: str, name: str) -> Any:
        self.needs.append(f"{module}.{name}")
        return Unread

    def get_extension(self, code: int) -> None:
        self.append(self.find_class("copyreg", str(code)))  # type: ignore[attr-defined]

    def persistent_load(self, _: Any) -> Any:
        return self.find_class("persistent", "id")()


class _Opener(_Reader):
    """Builds what it may, and nothing else."""

    def __init__(self, pickled: bytes, opens: Callable[[str], bool]) -> None:
        super().__init__(pickled)
        self._opens = opens

    def find_class(self, module: str, name: str) -> Any:
        if not self._opens(f"{module}.{name}"):
            raise ValueError(f"it needs {module}.{name}")
        return super(_Reader, self).find_class(module, name)  # imports nothing: what may be opened is there


def open_pickle(pickled: bytes, opens: Callable[[str], bool] | None) -> Any:
    """The value of a pickle. opens: which classes may be built; None: none. Raises ValueError if there are others."""
    return _load(_Opener(pickled, opens or (lambda _: False)))


def read_pickle(pickled: bytes) -> tuple[Any, Sequence[str]]:
    """The plain values of a pickle, and the classes that it names besides. Raises ValueError for what is none."""
    reader = _Reader(pickled)
    return _load(reader), reader.needs


def _load(reader: _Reader) -> Any:
    try:
        return reader.load()
    except Exception as error:
        raise ValueError(f"this pickle cannot be opened: {error}") from error


def read_call(data: bytes) -> RqCall:
    """The call that a job's data holds. Raises InvalidNotificationError where it is none."""
    raw = unpack_data(data)
    if not raw.startswith(PICKLED):
        return RqCall(*decode_call(raw))
    try:
        (function, instance, args, kwargs), needs = read_pickle(raw)
    except (ValueError, TypeError):
        raise InvalidNotificationError("job", "its data is neither JSON nor a pickle of RQ's") from None
    if not isinstance(function, str) or not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise InvalidNotificationError("job", "its data is not a call")
    if instance is not None:
        raise InvalidNotificationError("job", "it calls a method of an object: enqueue a function")
    return RqCall(function, args, kwargs, pickled=True, needs=needs)
