"""The limits of a job of another function: those that its meta names, else those of the function's decorator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.notification.job import is_plain
from notifier.notification.notification import LONGEST_EXPIRY, check_user
from notifier.notification.rq_call import RqCall, read_any_meta
from notifier.rules.category import DEFAULT_CATEGORY
from workers.rq.functions import AllowedFunctions

LONGEST_S: Final = LONGEST_EXPIRY.total_seconds()
CATEGORY: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")


def steering_of(
    call: RqCall, meta: bytes | None, functions: AllowedFunctions, knows: Callable[[str], bool] | None = None
) -> str:
    """Return the meta that the scripts read; '' if nothing limits the job, or it may not run here.

    knows: whether a category is configured; an unknown one becomes `default`. Raises InvalidNotificationError if the
    call lacks the user that the decorator names, or the scripts could not read the meta.
    """
    if not functions.allows(call.function):
        return ""
    fields = read_any_meta(meta or b"")
    user = fields.get("user")
    if isinstance(user, int) and not isinstance(user, bool):
        fields["user"] = user = str(user)
    if not isinstance(user, str) or not user:
        found = functions.throttle_of(call.function)
        if found is None:
            return ""
        function, throttle = found
        fields |= throttle.meta(function, call.args, call.kwargs)
    else:
        check_user(user)
    category = fields.get("category")
    if not isinstance(category, str) or not CATEGORY.fullmatch(category) or (knows is not None and not knows(category)):
        fields["category"] = DEFAULT_CATEGORY
    if not is_plain(fields):
        raise InvalidNotificationError("user, or another field of meta", "is not Unicode")
    expires_in = fields.get("expires_in")
    if expires_in is not None and not (type(expires_in) in {int, float} and abs(expires_in) <= LONGEST_S):
        raise InvalidNotificationError("expires_in", "must be a number of seconds, of a hundred years at most")
    return json.dumps(fields)
