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


def test_what_keeps_all_laws_is_right() -> None:
    """Two within ten seconds, a second apart, in order, each delivered."""
    assert laws(story((0, 0), (1, 1), (2, 11))) == []


def test_a_gap_that_is_too_short_is_found() -> None:
    """A millisecond less than the gap."""
    assert laws(story((0, 0), (1, 0.999))) == ["windows and gaps"]


def test_a_window_that_is_too_full_is_found() -> None:
    """The third within ten seconds, though the gaps are long."""
    assert laws(story((0, 0), (1, 5), (2, 9.9))) == ["windows and gaps"]


def test_a_categorys_own_rules_count() -> None:
    """Two chats within two seconds, where one may come; with another category between them too."""
    kinds = [one(0, category="chat"), one(1, category="chat")]
    assert laws(story((0, 0), (1, 1.5), accepted=kinds)) == ["windows and gaps"]
    assert laws(story((0, 0), (1, 2.0), accepted=kinds)) == []


def test_what_was_refused_does_not_count() -> None:
    """A 429 takes no room; a 503 of Apple's, which may have delivered, does."""
    assert laws(story((0, 0, 429), (0, 1), (1, 2))) == []
    assert laws(story((0, 0, 503), (0, 1), (1, 2))) == ["windows and gaps"]


def test_a_repeat_keeps_gap_and_window_too() -> None:
    """The same message again after no answer: not before the gap is over."""
    assert laws(story((0, 0, 0), (0, 0.5))) == ["windows and gaps"]
    assert laws(story((0, 0, 0), (0, 1.5))) == []


def test_two_devices_are_one_send() -> None:
    """One message to two devices counts once, and no gap lies between the two."""
    both = [one(0, tokens=("a", "b")), one(1, tokens=("a", "b"))]
    came = [(0, 0), (0, 0.01, 200, "b"), (1, 1.5), (1, 1.51, 200, "b")]
    assert laws(story(*came, accepted=both)) == []
    assert laws(story((0, 0), (0, 0.9, 200, "b"), (1, 1.5), (1, 2.6, 200, "b"), accepted=both)) == ["windows and gaps"]


def test_changed_rates_hold_for_what_is_let_go_by_them() -> None:
    """By which rates it was let go nobody knows: by those that some worker went by at most a lease before."""
    changed = [Rules("slow", SLOW, ((T0 - S, T0 + 5 * S),)), Rules("fast", FAST, ((T0 + 5 * S, T0 + 90 * S),))]
    assert laws(story((0, 4.0), (1, 4.2), rules=changed)) == ["windows and gaps"], "the new ones were not known yet"
    assert laws(story((0, 5.0), (1, 5.2), rules=changed)) == []
    back = [Rules("fast", FAST, ((T0 - S, T0 + 5 * S),)), Rules("slow", SLOW, ((T0 + 5 * S, T0 + 90 * S),))]
    assert laws(story((0, 6.0), (1, 6.2), rules=back)) == [], "on its way for a second"
    assert laws(story((0, 9.0), (1, 9.2), rules=back)) == ["windows and gaps"], "longer than a lease after"


def test_rates_that_look_further_back_begin_with_what_is_known() -> None:
    """A window of ten seconds counts nothing of the time in which the rules looked back for one."""
    short = policies(windows=["1/1s"])
    changed = [Rules("short", short, ((T0 - S, T0 + 5 * S),)), Rules("slow", SLOW, ((T0 + 5 * S, T0 + 90 * S),))]
    assert laws(story((0, 0), (1, 1), (2, 2), (3, 9), rules=changed)) == []
    assert laws(story((0, 20), (1, 22), (2, 24), rules=changed)) == ["windows and gaps"]


def test_a_stalled_provider_widens_what_may_have_been_in_force() -> None:
    """What stood in a provider's buffers for six seconds was let go by the rules of then."""
    back = [Rules("fast", FAST, ((T0 - S, T0 + 5 * S),)), Rules("slow", SLOW, ((T0 + 5 * S, T0 + 90 * S),))]
    stall = [Trouble("stopped provider", "apns", T0 + 4 * S, T0 + 10 * S)]
    assert laws(story((0, 10.0), (1, 10.2), rules=back, troubles=stall)) == []


FREE = [Rules("free", policies(), (ALWAYS,))]


def test_what_was_taken_for_default_follows_the_users_rules_alone() -> None:
    """Accepted while some worker did not know its category: it is `default` for good, by backlog and rules."""
    few = parse_settings("user: {gap: 100ms}\ncategories: {default: {lane: default}}", name="few").policies()
    chats = [one(number, category="chat") for number in range(3)]
    came = ((1, 1), (0, 1.5), (2, 1.7))
    known = Rules("fast", FAST_CHATS, (ALWAYS,))
    assert set(laws(story(*came, accepted=chats, rules=[known]))) == {"windows and gaps", "order"}
    taken = Rules("few", few, ((T0, T0 + S // 2),))
    assert laws(story(*came, accepted=chats, rules=[known, taken])) == []
    assert laws(story((0, 1), (1, 1.05), accepted=chats[:2], rules=[known, taken])) == ["windows and gaps"]


def test_disorder_is_found() -> None:
    """The second before the first; a retry, and what was tried before, may step out of order."""
    assert laws(story((1, 0), (0, 1), rules=FREE)) == ["order"]
    assert laws(story((0, 0, 429), (1, 1), (0, 2), rules=FREE)) == []
    tried = [{"event": "retry", "job_id": "n0", "at_us": T0, "worker": "w1"}]
    assert laws(story((1, 1), (0, 2), rules=FREE, log=tried)) == []
    later = [{**tried[0], "at_us": T0 + 2 * S}]
    assert laws(story((1, 1), (0, 2), rules=FREE, log=later)) == ["order"], "a retry after it excuses nothing"


def test_a_high_one_may_pass_and_must_not_be_passed() -> None:
    """A high one passes what was accepted before it; what was accepted after it does not pass it."""
    high = [one(0), one(1, high=True), one(2)]
    assert laws(story((1, 0), (0, 1), (2, 2), accepted=high, rules=FREE)) == []
    assert laws(story((2, 0), (1, 1), (0, 2), accepted=high, rules=FREE)) == ["order", "order"]


@pytest.mark.parametrize("state", [None, "waiting", "sending"])
def test_what_did_not_end_is_found(state: str | None) -> None:
    """Each accepted one has a terminal state in the end."""
    assert laws(story((0, 0), states={0: state})) == ["ends"]


def test_a_delivery_without_an_arrival_is_found() -> None:
    """It ended as delivered, and a provider only ever refused it."""
    assert laws(story((0, 0, 429))) == ["ends"]


def test_what_arrives_after_its_cancellation_or_expiry_is_found() -> None:
    """A message comes two seconds after its cancellation; another, five after it had expired."""
    cancelled = [one(0, cancelled=[(T0, "cancelled")])]
    assert laws(story((0, 2), accepted=cancelled, states={0: "cancelled"})) == ["ends"]
    assert laws(story((0, 6), accepted=[one(0, expires_us=S)])) == ["ends"]
    assert laws(story((0, 1), accepted=[one(0, cancelled=[(T0, "sending")])])) == []


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


def test_a_wrong_count_is_found() -> None:
    """The totals are those of the states in which the notifications are."""
    assert laws(story((0, 0), stats={"delivered": 1})) == []
    assert laws(story((0, 0), stats={"delivered": 2})) == ["ends"]


def test_a_needless_repeat_is_found() -> None:
    """Twice to one device: only after an answer that left it open, or with something wrong in between."""
    assert laws(story((0, 0), (0, 5))) == ["repeats"]
    assert laws(story((0, 0, 0), (0, 5))) == []
    killed = [Trouble("end of a worker", "w1", T0 + S, T0 + 2 * S)]
    assert laws(story((0, 0), (0, 5), troubles=killed)) == []
    tried = [{"event": "retry", "job_id": "n0", "at_us": T0 - 3 * S, "worker": "w1"}]
    assert laws(story((0, 0), (0, 1), log=tried)) == ["repeats"]
    stopped = [Trouble("stopped provider", "fcm", T0 - 6 * S, T0 - 2 * S)]
    assert laws(story((0, 0), (0, 1), log=tried, troubles=stopped)) == [], "the first stood in its buffers meanwhile"


def test_a_broken_worker_is_found() -> None:
    """A line that no worker may log."""
    line = {"event": "sender_broke", "exception": "Traceback …", "at_us": T0, "worker": "w1", "job_id": "n0"}
    assert laws(story((0, 0), log=[line])) == ["nothing breaks"]


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
