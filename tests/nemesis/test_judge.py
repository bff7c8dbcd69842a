"""The judge of the nemesis finds each kind of violation in a story made for it, and nothing where all is right."""

from typing import Any

import pytest

from notifier.rules.policies import Policies
from notifier.settings import parse_settings
from notifier.simulators.wire import Arrival
from tests.nemesis.history import Trouble
from tests.nemesis.judge import Facts, Violation, broken_off, judge
from tests.nemesis.rates_book import Rules
from tests.nemesis.traffic import Accepted

S = 1_000_000
T0 = 1_000 * S  # the beginning: nothing is as old as the epoch


def policies(**user: Any) -> Policies:
    """Rules of a user, and the categories that a story needs."""
    text = f"user: {user}\ncategories: {{default: {{lane: default}}, chat: {{lane: urgent, windows: [1/2s]}}}}\n"
    return parse_settings(text, name="a story").policies()


SLOW = policies(windows=["2/10s"], gap="1s")
FAST = policies(windows=["2/10s"], gap="100ms")
FAST_CHATS = policies(gap="100ms")
ALWAYS = (T0 - 100 * S, T0 + 100 * S)


def story(*came: tuple[Any, ...], **given: Any) -> Facts:
    """Facts out of (number, seconds, status or more of the arrival); everything was accepted at the beginning."""
    accepted = given.pop("accepted", None)
    count = 1 + max(number for number, *_ in came)
    if accepted is None:
        accepted = [one(number) for number in range(count)]
    arrivals = []
    for number, at_s, *more in came:
        token = more[1] if len(more) > 1 else accepted[number].tokens[0]
        status = more[0] if more else 200
        arrivals.append(Arrival(T0 + round(at_s * S), "apns", token, status, "", "", data={"n": str(number)}))
    states = {one.number: "delivered" for one in accepted} | given.pop("states", {})
    given.setdefault("rules", [Rules("slow", SLOW, (ALWAYS,))])
    return Facts(accepted, arrivals, states=states, **given)


def one(number: int, **fields: Any) -> Accepted:
    """A notification of the one user."""
    defaults = {"category": "default", "tokens": ("a",), "asked_us": T0, "at_us": T0}
    return Accepted(number, f"n{number}", "ann", **(defaults | fields))


def laws(facts: Facts) -> list[str]:
    """Which laws it finds violated."""
    return [violation.law for violation in judge(facts)]


def changed(*rules: tuple[str, Policies]) -> list[Rules]:
    """Rules that hold until five seconds after the beginning, and those that hold then."""
    spans = ((T0 - S, T0 + 5 * S), (T0 + 5 * S, T0 + 90 * S))
    return [Rules(name, each, (span,)) for (name, each), span in zip(rules, spans, strict=True)]


TO_FAST, TO_SLOW = changed(("slow", SLOW), ("fast", FAST)), changed(("fast", FAST), ("slow", SLOW))
TO_LONGER = changed(("short", policies(windows=["1/1s"])), ("slow", SLOW))
FREE = [Rules("free", policies(), (ALWAYS,))]
FEW = parse_settings("user: {gap: 100ms}\ncategories: {default: {lane: default}}", name="few").policies()
KNOWN, TAKEN = Rules("fast", FAST_CHATS, (ALWAYS,)), Rules("few", FEW, ((T0, T0 + S // 2),))
CHATS = [one(number, category="chat") for number in range(3)]
BOTH = [one(0, tokens=("a", "b")), one(1, tokens=("a", "b"))]
HIGH = [one(0), one(1, high=True), one(2)]
CANCELLED, TOO_LATE = ([one(0, cancelled=[(T0, answer)])] for answer in ("cancelled", "sending"))
RETRIED, RETRIED_LATER, RETRIED_BEFORE = (
    [{"event": "retry", "job_id": "n0", "at_us": T0 + s * S, "worker": "w1"}] for s in (0, 2, -3)
)
BROKE = {"event": "sender_broke", "exception": "Traceback …", "at_us": T0, "worker": "w1", "job_id": "n0"}
STALLED = [Trouble("stopped provider", "apns", T0 + 4 * S, T0 + 10 * S)]
STALLED_BEFORE = [Trouble("stopped provider", "fcm", T0 - 6 * S, T0 - 2 * S)]
KILLED = [Trouble("end of a worker", "w1", T0 + S, T0 + 2 * S)]
RATES, ORDER, ENDS = ["windows and gaps"], ["order"], ["ends"]
STORIES: dict[str, tuple[Facts, list[str]]] = {
    "two within ten seconds, a second apart, in order, each delivered": (story((0, 0), (1, 1), (2, 11)), []),
    "a millisecond less than the gap": (story((0, 0), (1, 0.999)), RATES),
    "the third within ten seconds, though the gaps are long": (story((0, 0), (1, 5), (2, 9.9)), RATES),
    "two chats within two seconds, where one may come": (story((0, 0), (1, 1.5), accepted=CHATS[:2]), RATES),
    "two chats two seconds apart": (story((0, 0), (1, 2.0), accepted=CHATS[:2]), []),
    "a 429 takes no room": (story((0, 0, 429), (0, 1), (1, 2)), []),
    "a 503 of Apple's, which may have delivered, takes room": (story((0, 0, 503), (0, 1), (1, 2)), RATES),
    "the same message again after no answer, before the gap is over": (story((0, 0, 0), (0, 0.5)), RATES),
    "the same message again after the gap": (story((0, 0, 0), (0, 1.5)), []),
    "one message to two devices counts once, and no gap lies between the two": (
        story((0, 0), (0, 0.01, 200, "b"), (1, 1.5), (1, 1.51, 200, "b"), accepted=BOTH), []),
    "two devices at great distances": (
        story((0, 0), (0, 0.9, 200, "b"), (1, 1.5), (1, 2.6, 200, "b"), accepted=BOTH), RATES),
    # By which rates it was let go nobody knows: by those that some worker went by at most a lease before.
    "the new rates were not known yet": (story((0, 4.0), (1, 4.2), rules=TO_FAST), RATES),
    "by the new rates": (story((0, 5.0), (1, 5.2), rules=TO_FAST), []),
    "by the old rates, on its way for a second": (story((0, 6.0), (1, 6.2), rules=TO_SLOW), []),
    "by the old rates, longer than a lease after": (story((0, 9.0), (1, 9.2), rules=TO_SLOW), RATES),
    "a window counts nothing of the time in which the rules looked back for less": (
        story((0, 0), (1, 1), (2, 2), (3, 9), rules=TO_LONGER), []),
    "a window counts all of the time in which the rules looked back for it": (
        story((0, 20), (1, 22), (2, 24), rules=TO_LONGER), RATES),
    "what stood in a provider's buffers for six seconds was let go by the rules of then": (
        story((0, 10.0), (1, 10.2), rules=TO_SLOW, troubles=STALLED), []),
    # Accepted while some worker did not know its category, it is `default` for good, by backlog and rules.
    "chats too close and in disorder": (
        story((1, 1), (0, 1.5), (2, 1.7), accepted=CHATS, rules=[KNOWN]), [*RATES, *ORDER, *RATES]),
    "what was taken for default": (story((1, 1), (0, 1.5), (2, 1.7), accepted=CHATS, rules=[KNOWN, TAKEN]), []),
    "what was taken for default, too close": (
        story((0, 1), (1, 1.05), accepted=CHATS[:2], rules=[KNOWN, TAKEN]), RATES),
    "the second before the first": (story((1, 0), (0, 1), rules=FREE), ORDER),
    "a retry steps out of order": (story((0, 0, 429), (1, 1), (0, 2), rules=FREE), []),
    "what was tried before steps out of order": (story((1, 1), (0, 2), rules=FREE, log=RETRIED), []),
    "a retry after it excuses nothing": (story((1, 1), (0, 2), rules=FREE, log=RETRIED_LATER), ORDER),
    "a high one passes what was accepted before it": (
        story((1, 0), (0, 1), (2, 2), accepted=HIGH, rules=FREE), []),
    "what was accepted after a high one passes it": (
        story((2, 0), (1, 1), (0, 2), accepted=HIGH, rules=FREE), [*ORDER, *ORDER]),
    **{f"one that is {state} in the end": (story((0, 0), states={0: state}), ENDS) for state in (
        None, "waiting", "sending")},
    "delivered, though a provider only ever refused it": (story((0, 0, 429)), ENDS),
    "a message two seconds after its cancellation": (
        story((0, 2), accepted=CANCELLED, states={0: "cancelled"}), ENDS),
    "a message after a cancellation that came too late": (story((0, 1), accepted=TOO_LATE), []),
    "a message five seconds after it had expired": (story((0, 6), accepted=[one(0, expires_us=S)]), ENDS),
    "the totals are those of the states": (story((0, 0), stats={"delivered": 1}), []),
    "the totals are others": (story((0, 0), stats={"delivered": 2}), ENDS),
    "twice to one device": (story((0, 0), (0, 5)), ["repeats"]),
    "twice to one device, after an answer that left it open": (story((0, 0, 0), (0, 5)), []),
    "twice to one device, with something wrong in between": (story((0, 0), (0, 5), troubles=KILLED), []),
    "twice to one device, though a retry was logged": (story((0, 0), (0, 1), log=RETRIED_BEFORE), ["repeats"]),
    "twice to one device, of which the first stood in the provider's buffers": (
        story((0, 0), (0, 1), log=RETRIED_BEFORE, troubles=STALLED_BEFORE), []),
    "a line that no worker may log": (story((0, 0), log=[BROKE]), ["nothing breaks"]),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_a_violation_is_found_and_nothing_else(name: str) -> None:
    """Of each story the laws that are violated in it, in the order of time."""
    facts, found = STORIES[name]
    assert laws(facts) == found


@pytest.mark.parametrize(
    ("stopped", "sender", "found"),
    [
        pytest.param([("w1", 0.5, 5.8)], "w1", [], id="all the time"),
        pytest.param([("w1", 0.5, 1.9)], "w1", ["ends"], id="for too short a time"),
        pytest.param([("w1", -5, 0.9)], "w1", ["ends"], id="before it expired"),
        pytest.param([("w2", 0.5, 5.8)], "w1", ["ends"], id="another worker"),
        pytest.param([("w1", 0.5, 5.8)], "w2", ["ends"], id="sent by another worker"),
        pytest.param([("w1", 0.5, 5.8)], None, ["ends"], id="sent by who knows whom"),
        pytest.param([("w1", 1, 2.5), ("w1", 1, 2.5)], "w1", ["ends"], id="no time counts twice"),
    ],
)
def test_a_worker_that_is_stopped_knows_of_no_expiry(
    stopped: list[tuple[str, float, float]], sender: str | None, found: list[str]
) -> None:
    """Five seconds after its expiry, of which the worker that sent it was stopped for two at least."""
    troubles = [Trouble("stopped worker", name, T0 + round(a * S), T0 + round(b * S)) for name, a, b in stopped]
    log = [{"event": "sent", "job_id": "n0", "worker": sender, "at_us": T0 + 6 * S + 900}] if sender else []
    assert laws(story((0, 6), accepted=[one(0, expires_us=S)], troubles=troubles, log=log)) == found


@pytest.mark.parametrize(("certain", "what", "is_excused"), [
    (False, "failed and stands nowhere", True),
    (True, "failed and stands nowhere", False),
    (False, "queued and stands nowhere", False),
])  # fmt: skip
def test_what_a_broken_requeue_leaves_is_rqs(certain: bool, what: str, is_excused: bool) -> None:
    """RQ takes a failed job out of its registry before it enqueues it: nothing else excuses a finding of the audit."""
    found = Violation("audit", T0, f"job n1 of ann is {what}; right would be: in rq:failed:bulk")
    assert broken_off(found, [one(0), one(1, certain=certain)]) is is_excused
    assert broken_off(found, [one(0), one(1, requeued=[T0 - S])]) is ("failed" in what)
    assert not broken_off(found, [one(0), one(1, requeued=[T0 - 3 * S])])
