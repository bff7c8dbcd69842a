"""The functions of RQ's own jobs that a worker may run: those of `worker.functions`, and those that `throttled` marks.

A job's data comes from Redis. So no name in it leads to an import: the worker imports the modules once, at its start.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.serializers import PickleSerializer
from rq.utils import import_attribute

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification.job import unpack_data
from notifier.notification.rq_call import PICKLED, RqCall, open_pickle, read_any_meta
from notifier.notification.throttled import MARKER, Throttle
from notifier.texts import readable

MAX_SHOWN: Final = 200
# Classes that any pickle may build: Python's own, which hold nothing but values.
PLAIN: Final = frozenset(
    {
        *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
        *("zoneinfo.ZoneInfo", "builtins.getattr"),  # `open_pickle` has it return what makes a zone, and nothing else
        *("decimal.Decimal", "uuid.UUID", "builtins.set", "builtins.frozenset", "collections.OrderedDict"),
    }
)


class Pickles:
    """A serializer of RQ's pickles that builds no class in the worker, and only allowed classes in a work horse."""

    def __init__(self, opens: Callable[[str], bool]) -> None:
        """opens: whether a pickle may name this class."""
        self._opens = opens
        self._worker = os.getpid()

    def dumps(self, value: Any, /) -> bytes:
        """Pickle, as RQ does."""
        return PickleSerializer.dumps(value)

    def loads(self, pickled: bytes, /) -> Any:
        """Unpickle. Raises ValueError for a class that may not be built; RQ then leaves a job's meta as it is."""
        return open_pickle(pickled, self._opens if os.getpid() != self._worker else None)


class StartedByRedisClock(StartedJobRegistry):
    """As RQ's, by Redis's clock, by which it is cleaned: a worker's clock may be minutes behind."""

    def add_execution(self, execution: Any, pipeline: Any, ttl: int = 0, xx: bool = False) -> int:
        """As RQ's. ttl: seconds; that of a heartbeat, so never infinite."""
        now_s: Any = self.connection.time()
        added: int = pipeline.zadd(self.key, {execution.composite_key: now_s[0] + ttl}, xx=xx)
        return added


class AllowedFunctions:
    """Knows which functions this worker may run."""

    def __init__(self, names: Sequence[str]) -> None:
        """Import these modules and functions. Raises SettingsError for a name that cannot be imported."""
        self.pickles = Pickles(self.opens)
        self._modules: set[str] = set()
        self._functions: set[str] = set()
        for name in names:
            (self._modules if _is_module(name) else self._functions).add(name)

    def allows(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        module, _, attribute = name.rpartition(".")
        found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        # A function that the module only imported is not its own: else a job could name `tasks.system`.
        own = module in self._modules and callable(found) and getattr(found, "__module__", None) == module
        return own or name in self._functions or MARKER in getattr(found, "__dict__", {})

    def opens(self, name: str) -> bool:
        """Whether a pickle may name this class: one of PLAIN, or one that is allowed."""
        return name in PLAIN or self.allows(name)

    def why_not(self, job: Job, call: RqCall) -> str:
        """The reason why this job may not run here; '' if it may."""
        refused = next((name for name in _names(job, call) if not self.allows(name)), "")
        if refused != "":
            return f"worker.functions does not name {readable(repr(refused), MAX_SHOWN)}"
        refused = next((name for name in call.needs if not self.opens(name)), "")
        if refused != "":
            return f"its pickle needs {readable(repr(refused), MAX_SHOWN)}, which worker.functions does not name"
        return ""

    def guarded_job(self) -> type[Job]:
        """RQ's Job, safe to read: RQ would unpack any size, and import and call the functions that the job names."""
        allows, pickles = self.allows, self.pickles

        class GuardedJob(Job):
            def restore(self, raw_data: Any) -> None:
                """As RQ's, but raises NoSuchJobError for a job that is too large, so that RQ passes over it."""
                try:
                    data, _ = (unpack_data(raw_data.get(field, b"")) for field in (b"data", b"exc_info"))
                except InvalidNotificationError as error:
                    raise NoSuchJobError(str(error)) from None
                if data.startswith(PICKLED):
                    self.serializer = pickles
                super().restore(raw_data)
                meta = raw_data.get(b"meta")
                if self.meta == {"unserialized": meta}:  # RQ writes no empty meta, so a pickled one stays in Redis
                    self.meta = {} if self.serializer is pickles else read_any_meta(meta)

            @property
            def started_job_registry(self) -> StartedByRedisClock:
                """As RQ's, by Redis's clock."""
                return StartedByRedisClock(self.origin, self.connection, type(self), serializer=self.serializer)

            @property
            def failure_callback(self) -> Any:
                """As RQ's; None if it may not run here."""
                return super().failure_callback if allows(self._failure_callback_name) else None

        return GuardedJob

    def throttle_of(self, name: str) -> tuple[Callable[..., Any], Throttle] | None:
        """Return a function that may run, and its decorator's limits; None if it has none."""
        found = import_attribute(name) if self.allows(name) else None
        throttle = getattr(found, MARKER, None)
        return (found, throttle) if callable(found) and isinstance(throttle, Throttle) else None


def _names(job: Job, call: RqCall) -> Iterable[object]:
    """All that RQ would import and call for this job."""
    callbacks = (job._success_callback_name, job._failure_callback_name, job._stopped_callback_name)  # noqa: SLF001 - the properties import it
    return (call.function, *(name for name in callbacks if name))


def _is_module(name: str) -> bool:
    """Whether a module has this name; False if a function has. Raise SettingsError if neither has."""
    try:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, but a module that it imports is not
            if callable(import_attribute(name)):
                return False
            raise ValueError("it is no function") from None
    except Exception as error:
        raise SettingsError(
            f"worker.functions: {name} cannot be imported: {readable(str(error))}; write a module, such as shop.tasks,"
            " or a function, such as shop.tasks.mail, and start the worker where Python finds it"
        ) from error
    return True
