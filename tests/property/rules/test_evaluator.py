"""The evaluator against counting: at the moment that it names the rules let one go, and at none before."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from notifier.rules import verify
from notifier.rules.category import Category
from notifier.rules.evaluator import Sends, opens
from notifier.rules.hours import longest_open_us
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Burst, Policy, Window
from notifier.rules.quiet_hours import ByClock
from notifier.rules.zones import zone_at
from tests.property import test_clock
from tests.property.amount import examples
from tests.property.clock_model import QUARTER, Clock
from tests.property.model import admits
from tests.property.world import LEASE, ZONES, S

M = 60 * S
spans = st.one_of(st.sampled_from([S, M]), st.integers(S, 5 * M))
policies = st.builds(
    Policy,
    st.lists(st.builds(Window, st.integers(3, 6), interval_us=spans), max_size=3).map(tuple),
    st.one_of(st.just(0), spans),
)
sent = st.lists(st.tuples(st.integers(0, 10 * M), st.integers(1, 3)), max_size=30)


def on_record(policy: Policy, sends: list[tuple[int, int]]) -> Sends:
    """These sends, all of them kept."""
    found = Sends()
    for n, (at, cost) in enumerate(sends):
        found.add(policy, str(n), at, 0, cost=cost)
    return found


@given(policies, policies, sent, sent, st.integers(1, 3))
@settings(max_examples=examples(300))
def test_the_first_moment_is_the_first(
    user: Policy, own: Policy, of_user: list[tuple[int, int]], of_category: list[tuple[int, int]], cost: int
) -> None:
    """Gap and windows, of user and category together: it keeps them all, and a microsecond earlier it would not."""
    rules = Rules(user, Category("chat", policy=own, cost=cost))
    at, by = opens(rules, on_record(user, of_user), on_record(own, of_category), 0)
    scopes = ((user, of_user), (own, of_category))
    assert all(admits(policy, sends, at, cost) for policy, sends in scopes)
    assert (by is None) == (at == 0)
    assert not at or not all(admits(policy, sends, at - 1, cost) for policy, sends in scopes)


@given(policies, sent, st.data())
@settings(max_examples=examples(200))
def test_what_is_taken_back_was_never_there(policy: Policy, sends: list[tuple[int, int]], data: st.DataObject) -> None:
    """Also where several stand at the same moment, and what was settled counts from then on."""
    found, kept = on_record(policy, sends), []
    for n, (at, cost) in enumerate(sends):
        match data.draw(st.sampled_from(["keep", "remove", "move"])):
            case "keep":
                kept.append((at, cost))
            case "remove":
                assert found.remove(str(n)) == (0 if policy.is_empty else cost)
            case "move":
                found.move(str(n), at + S)
                kept.append((at + S, cost))
    assert found.opens(policy, 2) == on_record(policy, kept).opens(policy, 2)


@given(policies, policies, st.lists(st.integers(0, 3 * M), min_size=1, max_size=20))
@settings(max_examples=examples(100))
def test_late_is_what_comes_after_the_first_moment(user: Policy, own: Policy, delays: list[int]) -> None:
    """What the demo measures at the wire: of sends that each come so much later than counting first admits them."""
    times, now = list[int](), M
    for delay in delays:
        pairs = [(at, 1) for at in times]
        lengths = {0, *(policy.gap_us for policy in (user, own))}
        lengths |= {window.interval_us for policy in (user, own) for window in policy.windows}
        moments = sorted({now, *(at + length for at in times for length in lengths if at + length > now)})
        first = next(at for at in moments if admits(user, pairs, at) and admits(own, pairs, at))
        now = first + delay
        times.append(now)
    sends = [
        verify.Send(str(n), "ann", "chat", at, at, ready)
        for n, (at, ready) in enumerate(zip(times, [M, *times], strict=False))
    ]
    assert verify.lateness_us(sends, Policies(user, categories={"chat": Category("chat", policy=own)})) == delays


def test_a_cost_counts_at_the_wire() -> None:
    """Two of cost 3 within a window of 5 break it, and a burst of 5."""
    policy = Policy((Window(5, interval_us=M),), burst=Burst(5, every_us=S))
    rules = Policies(policy, categories={"dear": Category("dear", cost=3)})
    (found,) = verify.tightness([verify.Send(str(n), "ann", "dear", n, n) for n in range(2)], rules)
    assert found.broken == (
        f"ann (user): 6 within {policy.windows[0]}",
        f"ann (user): {policy.burst} exceeded by {S - 1} µs",
    )


@given(
    test_clock.policies(),
    test_clock.policies(),
    st.sampled_from(test_clock.STARTS),
    st.sampled_from(ZONES),
    st.lists(st.integers(-72, 12).map(lambda n: n * QUARTER + n), max_size=6).map(sorted),
    st.integers(0, 40),
)
@settings(max_examples=examples(150))
def test_the_clock_lets_go_at_the_first_moment(  # noqa: PLR0917 - what an example consists of
    user: Policy, own: Policy, now: int, name: str, sends: list[int], ago: int
) -> None:
    """Quiet hours, send hours, calendar windows and the pace after a night, in zones whose clocks change."""
    assume(longest_open_us(user.closed_minutes | own.closed_minutes))
    sends, since = [now + at for at in sends], now - ago * QUARTER
    rules = Rules(user, Category("news", policy=own))
    of_user, of_category = Sends.on_record(sends, (), {}), Sends.on_record(sends[::2], (), {})
    opens_us, by = ByClock(rules, zone_at(name, now), since, LEASE, of_user.latest, of_category.latest).first_open(now)
    clock = Clock(name, since, (user, own), ((user, sends), (own, sends[::2])), LEASE)
    assert clock.admits(opens_us)
    assert (by is None) == (opens_us == now)
    earlier = {now, opens_us - 1, *range(now // QUARTER * QUARTER + QUARTER, opens_us, QUARTER)}
    assert not any(clock.admits(at) for at in earlier if now <= at < opens_us)
