"""RateLimit and RateLimit-Policy in the syntax of draft-ietf-httpapi-ratelimit-headers-10: lists of RFC 9651.

Each item is a String with parameters that are Integers: q (required) and w of a policy, r (required) and t of a limit.
"""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from notifier.limiter import Burst, MemoryLimiter, Policy, Window
from notifier.limiter.middleware import WebLimit
from notifier.limiter.middleware.guard import Guard
from notifier.limiter.middleware.request import WebRequest

STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
INTEGER = r"-?[0-9]{1,15}"
KEY = r"[a-z*][a-z0-9_.*-]*"
ITEM = re.compile(rf"({STRING})((?:; *{KEY}={INTEGER})*)")

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
WINDOWS = st.builds(
    lambda limit, interval_us: Window(limit, interval_us=interval_us),
    st.integers(1, 10**6),
    st.integers(1_000, 400 * 86_400_000_000),
)
BURSTS = st.builds(lambda size, us: Burst(size, every_us=us), st.integers(1, 100), st.integers(1_000, 10**10))
POLICIES = st.builds(
    Policy,
    st.lists(WINDOWS, max_size=4, unique_by=str).map(tuple),
    st.one_of(st.just(0), st.integers(1_000, 10**10)),
    st.one_of(st.none(), BURSTS),
).filter(lambda policy: not policy.is_empty)


def read(field: str) -> dict[str, dict[str, int]]:
    """The items of a field, by what they are called; an item that the grammar does not admit fails."""
    items = {}
    for text in re.split(r"[ \t]*,[ \t]*", field):
        item = ITEM.fullmatch(text)
        assert item, text
        parameters = (part.strip().partition("=") for part in item[2].split(";")[1:])
        assert item[1] not in items, "no two items of a field are of one policy"
        items[item[1]] = {key: int(value) for key, _, value in parameters}
    assert items, "a list is not empty"
    return items


@given(NAMES, POLICIES, st.integers(1, 12))
@settings(max_examples=40)
def test_the_fields_are_structured(name: str, policy: Policy, requests: int) -> None:
    """Whatever the rules, both fields are lists that any parser reads, and the one names policies of the other."""
    now = 1_700_000_000_000_000
    guard = Guard(MemoryLimiter(lambda: now), [WebLimit(name, policy, key=lambda _: "k")], awaited=False)
    for _ in range(requests):
        verdict = guard.ask(WebRequest("GET", "/", {}, "192.0.2.1", None))
        headers = dict(verdict.headers if verdict.refusal is None else verdict.refusal.headers)
        policies = read(headers["RateLimit-Policy"])
        assert all(set(values) <= {"q", "w"} and values["q"] >= 1 for values in policies.values())
        assert all(values.get("w", 1) >= 1 for values in policies.values())
        if "RateLimit" in headers:
            limits = read(headers["RateLimit"])
            assert limits.keys() <= policies.keys()
            assert all(set(values) == {"r", "t"} and min(values.values()) >= 0 for values in limits.values())
        if verdict.refusal is not None:
            # The draft: both speak of the same moment.
            assert int(headers["Retry-After"]) == max(1, next(iter(limits.values()))["t"])
            assert next(iter(limits.values()))["r"] == 0
