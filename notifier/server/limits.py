"""Read the program's own limits, for their page and for the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from notifier.operations.limit_view import RANKS, view_namespace, view_namespaces
from notifier.scripts.keys import under
from notifier.server.answers import ProblemError
from notifier.server.state import State


def read(state: State, request: Request) -> dict[str, Any]:
    """All namespaces that count usage; with `id` in the query, the one of that."""
    return namespace(state, request) if "id" in request.query_params else namespaces(state, request)


def namespaces(state: State, _: Request) -> dict[str, Any]:
    """All namespaces that count usage."""
    with _limits(state) as redis:
        return {"at": state.now(), "namespaces": view_namespaces(redis)}


def namespace(state: State, request: Request) -> dict[str, Any]:
    """The keys of one, ranked, and a series."""
    name = request.path_params.get("namespace") or request.query_params.get("id", "")
    by, key = request.query_params.get("by", "total"), request.query_params.get("key", "")
    if by not in RANKS:
        raise ProblemError(404, "Unknown", f"keys are ranked by {', '.join(RANKS)}")
    try:
        with _limits(state) as redis:
            found = view_namespace(redis, name, next(rank for rank in RANKS if rank == by), key)
    except ValueError as error:
        raise ProblemError(404, "Unknown", str(error)) from None
    if found is None:
        raise ProblemError(404, "Unknown", "no namespace of this name counts its usage; give its Limiter usage_keep")
    return {"at": state.now(), **found}


@contextmanager
def _limits(state: State) -> Iterator[Any]:
    """The partition in which a program's own limits are counted: the first."""
    with under(state.redis[0].prefixes):
        yield state.redis[0].client
