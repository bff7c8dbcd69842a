"""The errors of this library as others handle them: between processes, and as Celery keeps them."""

import copy
import pickle
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from notifier import InvalidNotificationError, InvalidPreferenceError, NotifierError, Policy
from notifier.errors import ChannelError, NotReplicatedError, OverloadedError, Refused
from notifier.limiter import Hold, LimitExceeded
from workers.sending.sender import PoisonError

ROOT = Path(__file__).parents[2]
REFUSED = Refused(user="42", limit="user", waiting=3, most=3)
MADE_OF: dict[type[NotifierError], tuple[Any, ...]] = {
    InvalidNotificationError: ("devices[1].token", "must be 64 hexadecimal digits"),
    InvalidPreferenceError: ("windows", "must be a list"),
    PoisonError: ("job", "several workers died"),
    NotReplicatedError: (["job-1"], "0 of 1 replicas have it", [REFUSED]),
    OverloadedError: ([REFUSED], 2),
    ChannelError: ("BadPath", 400, "try another"),
    LimitExceeded: ("login:42", Hold(1_500_000, "1/2s"), Policy()),
}


def kinds(of: type[NotifierError]) -> list[type[NotifierError]]:
    return [of, *(kind for heir in of.__subclasses__() for kind in kinds(heir))]


# Wherever one of them is defined; a new one with an `__init__` of its own needs a line above.
for path in (path for package in ("notifier", "workers") for path in (ROOT / package).rglob("*.py")):
    if re.search(r"^class \w+\(\w+Error\):", path.read_text(encoding="utf-8"), re.MULTILINE):
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("kind", sorted(set(kinds(NotifierError)), key=str))
def test_an_error_comes_through_a_process_pool(kind: type[NotifierError]) -> None:
    """Pickled, and copied, it is what it was: its class, its text and what it carries."""
    error = kind(*MADE_OF.get(kind, ("what was wrong",)))
    error.add_note("in the second batch")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


def test_celery_keeps_what_a_task_ended_by() -> None:
    """Celery writes an error's args as JSON, and makes the error again from these."""
    backend = Celery("shop", backend="cache+memory://").backend
    again = backend.exception_to_python(
        backend.prepare_exception(InvalidNotificationError("user", "must not be empty"))
    )
    assert type(again) is InvalidNotificationError
    assert (str(again), again.field) == ("user: must not be empty", "user")
