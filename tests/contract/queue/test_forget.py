"""Who is forgotten is limited all the same: sends stand under a hash until the user comes back, and under no name."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Hold, Permit
from notifier.operations.explain import Inspection
from notifier.queue import backlogs
from notifier.queue.calls import Leased
from notifier.queue.forget import Sends, forget
from notifier.queue.retention import Retention
from notifier.queue.walk import Kind, Met, Walk
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Burst, Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.exchange import Exchange, exchange
from tests.contract.test_direct import LEASE, S, Worker, job
from tests.harness.asking import InRedis
from tests.integration.producer.test_users import keys_with
from tests.property.amount import examples
from tests.property.model import violations

M: Final = 60 * S
WHO: Final = "person-77"
KEPT: Final = Retention(S, S, S)
BUCKETED: Final = Window(4, interval_us=20 * M, precision_us=M)
POLICIES: Final = [
    Policies(
        user,
        categories={
            "chat": Category("chat", policy=Policy((Window(2, interval_us=M),))),
            "news": Category("news"),
        },
    )
    for user in (
        Policy((Window(3, interval_us=3 * M),), gap_us=S),
        Policy((BUCKETED,)),
        Policy((Window(9, interval_us=10 * M),), burst=Burst(3, every_us=M)),
    )
]


@dataclass
class Hand(Worker):
    """A worker, a caller of `acquire`, and one who forgets. received: the category and time of each send."""

    flights: list[tuple[Leased, int]] = field(default_factory=list)
    received: list[tuple[str, int]] = field(default_factory=list)
    names: int = 0

    def send(self, category: str, *, direct: bool) -> None:
        """Accept one, and take what may go."""
        self.names += 1
        self.accept(job(f"job-{self.names}", WHO, category))
        self.look(direct=direct)

    def look(self, *, direct: bool) -> None:
        self.flights += [(leased, self.now) for leased in self.take(direct=direct)]

    def settle(self) -> None:
        """What is in flight has reached its user, every other one as soon as it was taken."""
        for n, (leased, taken_us) in enumerate(self.flights):
            self.end(leased, "delivered", reached=True, word="delivered")
            self.received.append((leased.category, self.now if n % 2 else taken_us))
        self.flights.clear()

    def acquire(self, policies: Policies, category: str) -> Permit | Hold:
        """Count a send beside the worker's."""
        rules = Rules(policies.everyone, policies.category(category))
        answer = InRedis(self.redis, clock=str(self.now)).acquire(WHO, rules, cost=rules.category.cost)
        if isinstance(answer, Permit):
            self.received.append((category, self.now))
        return answer

    def forget(self, *, hard: bool = False) -> None:
        """As `Exchanges.forget`."""
        in_flight = False

        def meet(met: Sequence[Met], _: int) -> Exchange[None]:
            nonlocal in_flight
            told = yield backlogs.cancel([each.job_id for each in met], KEPT, clock=self.clock)
            in_flight |= any(answer != "cancelled" for answer in told)

        exchange(self.redis, Walk(Kind(), meet).of_user(WHO))
        sends: Sends = "delete" if hard else "leave" if in_flight else "hide"
        places = [""]
        while places:
            place, cursor, done = places.pop(0), "0", False
            while not done:
                page = run(self.redis, forget(WHO, ["chat"], sends, place, cursor, clock=self.clock))
                cursor, done = page.cursor, page.cursor == "0"
                places = [*page.places, *places]

    @property
    def clock(self) -> str:
        return str(self.now)


def hand(redis: Redis, policies: Policies) -> Hand:
    redis.flushdb()
    return Hand(redis, rules=RuleTable(policies))


def contents(redis: Redis) -> dict[bytes, Any]:
    """All that stands in Redis; a set has no order."""
    return {key: redis.smembers(key) if redis.type(key) == b"set" else redis.dump(key) for key in redis.keys("*")}


@pytest.mark.parametrize("policies", POLICIES)
def test_the_first_after_it_is_held_as_if_nobody_had_been_forgotten(redis: Redis, policies: Policies) -> None:
    """By the direct way, through its line, and by acquire; a page that lists users finds nobody before."""
    for way in ("direct", "line", "acquire"):
        one = hand(redis, policies)
        while isinstance(held := one.acquire(policies, "default"), Permit):
            one.now += 2 * S
        one.forget()
        assert keys_with(redis, WHO) == set()
        kept = contents(redis)
        Inspection(redis, policies, WHO).explain("default")
        assert contents(redis) == kept, "who only looks writes nothing"
        if way == "acquire":
            assert one.acquire(policies, "default") == held
        else:
            one.send("default", direct=way == "direct")
            assert one.flights == []
        one.forget(hard=True)
        assert keys_with(redis, WHO) == set()
        assert isinstance(one.acquire(policies, "default"), Permit)


def test_what_is_in_flight_stays_until_it_is_settled(redis: Redis) -> None:
    """Its permit is where its worker looks; once it has ended, another call leaves no name."""
    one = hand(redis, POLICIES[0])
    one.send("chat", direct=True)
    assert len(one.flights) == 1
    one.forget()
    assert f"notifier:sent:{{{WHO}}}" in keys_with(redis, WHO)
    one.settle()
    one.forget()
    assert keys_with(redis, WHO) == set()
    assert isinstance(one.acquire(POLICIES[0], "chat"), Hold), "the gap"


def test_a_full_redis_forgets(redis: Redis) -> None:
    """To hide the sends writes; and nothing of the user is to stay for want of memory."""
    one = hand(redis, POLICIES[0])
    one.acquire(POLICIES[0], "chat")
    redis.config_set("maxmemory", 1)
    try:
        one.forget()
    finally:
        redis.config_set("maxmemory", 0)
    assert keys_with(redis, WHO) == set()
    assert isinstance(one.acquire(POLICIES[0], "chat"), Hold), "the gap"


def test_what_is_in_flight_counts_whatever_is_begun_anew(redis: Redis) -> None:
    """Law 1: it has not reached its user yet, so no call can take back that it will have."""
    one = hand(redis, POLICIES[0])
    one.send("chat", direct=True)
    one.now += S // 2
    one.forget(hard=True)
    one.now += LEASE // 2
    one.settle()
    one.now += S // 2
    one.send("news", direct=True)
    assert one.flights == [], "the gap"
    assert redis.zcard(f"notifier:sent:{{{WHO}}}:chat") == 1


def test_what_is_dated_ahead_since_the_clock_was_set_back_is_begun_anew(redis: Redis) -> None:
    """Nothing of the user is in flight."""
    one = hand(redis, POLICIES[0])
    one.acquire(POLICIES[0], "chat")
    one.now -= 60 * S
    one.forget(hard=True)
    assert redis.exists(f"notifier:sent:{{{WHO}}}", f"notifier:sent:{{{WHO}}}:chat") == 0


def test_a_refund_finds_a_permit_that_is_hidden(redis: Redis) -> None:
    """Another may go then."""
    one = hand(redis, POLICIES[0])
    permit = one.acquire(POLICIES[0], "default")
    assert isinstance(permit, Permit)
    one.forget()
    assert InRedis(redis).refund(permit)
    assert isinstance(one.acquire(POLICIES[0], "default"), Permit)


def test_what_comes_meanwhile_is_found_by_its_tag(redis: Redis) -> None:
    """To look through all keys takes its time: what was accepted after the beginning is not of the forgotten."""
    one, found = hand(redis, POLICIES[0]), list[str]()
    for place in ("", "keys"):
        run(redis, forget(WHO, ["chat"], "hide", place, clock=one.clock))
        if not place:
            one.accept(replace(job("new", WHO, "chat", tags=["thread"]), tagged=WHO))

    def meet(met: Sequence[Met], _: int) -> Exchange[None]:
        found.extend(each.job_id for each in met)
        yield from ()

    exchange(redis, Walk(Kind(tag="thread"), meet).of_user(WHO))
    assert found == ["new"]


def test_the_log_of_actions_names_them_no_more(redis: Redis) -> None:
    """A cancel and a pause of the user go; those of a longer name, and of a category of that name, stay."""
    actions = {"cancel of user": (f"{WHO} category chat", f"{WHO}8 tag x"), "pause": (f"user:{WHO}", f"category:{WHO}")}
    for action, both in actions.items():
        for of in both:
            redis.xadd("notifier:actions", {"who": "me", "action": action, "of": of})
    one = Hand(redis, rules=RuleTable(POLICIES[0]))
    one.forget()
    left: Any = redis.xrange("notifier:actions")
    assert [entry[b"of"].decode() for _, entry in left] == [both[1] for both in actions.values()]


def test_what_is_hidden_goes_with_the_limits(redis: Redis) -> None:
    """Nothing stays longer than the sends would have, the marker by which workers know of it neither."""
    one = hand(redis, POLICIES[0])
    one.acquire(POLICIES[0], "chat")
    left = redis.pttl(f"notifier:sent:{{{WHO}}}")
    one.forget()
    found = redis.keys("notifier:forgotten*")
    assert len(found) == 4, "the marker, the list, and the sends of the user and of the category"
    assert all(0 < redis.pttl(key) <= left for key in found)
    assert redis.pttl("notifier:forgotten") > left - 10_000


def test_nobody_pays_while_nobody_is_forgotten(redis: Redis) -> None:
    """The commands of a message are as many; while somebody is forgotten each new user costs two more at most."""

    def commands(of: Hand) -> list[int]:
        redis.config_resetstat()
        of.send("chat", direct=True)
        of.settle()
        stats = redis.info("commandstats")
        return [stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("exists", "get", "smembers")]

    one = hand(redis, POLICIES[0])
    commands(one)
    one.now += 5 * M
    exists, get, smembers = commands(one)
    one.now += 5 * M
    redis.set("notifier:forgotten", "salt")
    # *pull* and *settle* each ask then what it is that is rare: counts, choices, or this.
    assert commands(one) == [exists + 2 * 3, get + 1, smembers + 1]


steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["chat", "news", "default"]), st.booleans()),
    st.tuples(st.just("send"), st.sampled_from(["chat", "news"]), st.booleans()),
    st.tuples(st.just("acquire"), st.sampled_from(["chat", "news", "default"])),
    st.tuples(st.just("settle")),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("forget")),
    st.tuples(st.just("forget")),
    st.tuples(st.just("advance"), st.integers(1, 2 * M)),
)


@settings(max_examples=examples(180))
@given(st.sampled_from(POLICIES), st.lists(steps, min_size=10, max_size=40))
def test_forgetting_never_lets_more_through(redis: Redis, policies: Policies, plan: list[tuple[Any, ...]]) -> None:
    """Law 1 over all that was sent before and after; and with nothing in flight, no key or value names the user."""
    one = hand(redis, policies)
    for what, *more in plan:
        if what == "send":
            one.send(more[0], direct=more[1])
        elif what == "acquire":
            one.acquire(policies, more[0])
        elif what == "settle":
            one.settle()
        elif what == "take":
            one.look(direct=more[0])
        elif what == "advance":
            one.now += min(more[0], LEASE - 1) if one.flights else more[0]
            one.settle()
        else:
            one.forget()
            assert one.flights or keys_with(redis, WHO) == set()
    one.settle()
    assert violations(policies.everyone, [at for _, at in one.received]) == []
    chat = [at for category, at in one.received if category == "chat"]
    assert violations(policies.category("chat").policy, chat) == []
