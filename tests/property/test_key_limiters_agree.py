"""MemoryLimiter gives the answers of `Limiter`, whatever is asked in whatever order."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Limiter, MemoryLimiter, Permit, Policy, Window
from notifier.limiter.memory import MemoryKeys
from notifier.limiter.memory_keys import KeySends

MANY_KEYS = 1_100  # more than are in memory before those that nobody needs go
START = 1_700_000_040_000_000
KEYS = st.sampled_from(["a", "b", "é"])
RATES = st.sampled_from(
    [
        "3/10s",
        "2/1s; 5/minute; gap 300ms",
        "4/20s",
        "5/minute; 9/3m",
        "4/10s; 4/minute; 9/calendar-day",
        "burst 3 then 1/2s",
        "gap 1s; burst 20 then 1/300ms",
        "4/minute; burst 4 then 1/5s",
        "3/calendar-day",
        "4/month; 2/10s; gap 1s",
        Window(6, "2m"),
        Policy(),
    ]
)
SPANS = st.sampled_from(["1s", "10s", "1m", "3m"])
STEPS = st.one_of(
    st.tuples(st.just("acquire"), KEYS, RATES, st.integers(1, 2)),
    st.tuples(st.just("peek"), KEYS, RATES, st.integers(1, 2)),
    st.tuples(st.just("acquire"), KEYS, st.just("1000000/2m"), st.integers(1, 900_000)),
    st.tuples(st.just("ahead"), KEYS, RATES, st.integers(0, 30)),
    st.tuples(st.just("ahead"), KEYS, RATES, st.just(100)),
    st.tuples(st.just("many"), KEYS, st.sampled_from([1, 3, 700]), st.integers(20, 200)),
    st.tuples(st.just("others"), st.integers(0, MANY_KEYS + 100)),
    st.tuples(st.just("add"), KEYS, st.integers(1, 3)),
    st.tuples(st.just("adjust"), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.just("adjust"), st.integers(0, 300), st.integers(0, 5)),
    st.tuples(st.just("reward"), KEYS, st.integers(1, 4)),
    st.tuples(st.just("block"), KEYS, st.sampled_from(["0s", "5s", "2m"])),
    st.tuples(st.just("count"), KEYS, SPANS),
    st.tuples(st.just("refund"), st.integers(0, 20)),
    st.tuples(st.just("reset"), KEYS),
    st.tuples(st.just("usage"), KEYS),
    st.tuples(st.just("top"), st.sampled_from(["total", "last_used", "held"]), st.booleans()),
    st.tuples(st.just("series"), st.one_of(st.none(), KEYS)),
    st.tuples(st.just("advance"), st.integers(-5_000_000, 40_000_000)),
    st.tuples(st.just("advance"), st.sampled_from([3_600_000_000, 86_400_000_000, 20 * 86_400_000_000])),
)


def ask(limiter: Any, permits: list[Permit], step: tuple[Any, ...]) -> object:  # noqa: C901, PLR0912 - each verb
    """What a limiter answers to a step; a permit without its id, which is each limiter's own."""
    verb, *words = step
    answer: Any
    match verb:
        case "acquire" | "peek":
            answer = getattr(limiter, verb)(words[0], words[1], cost=words[2])
        case "all":
            found = limiter.acquire_all([(words[0], words[1], words[2])])
            answer = found[0] if isinstance(found, list) else found
        case "ahead":
            answer = limiter._ask([limiter._requests.request(words[0], words[1])], "take", words[2])[0]
        case "add":
            answer = limiter.add(words[0], words[1], keep="1h")
        case "count":
            answer = limiter.count(words[0], last=words[1])
        case "many":
            many = limiter.acquire_many([(words[0], "300000/2m; 400000/3m", words[1])] * words[2])
            permits += [answer for answer in many if isinstance(answer, Permit)]
            return [replace(answer, id="") if isinstance(answer, Permit) else answer for answer in many]
        case "others":
            others = limiter.acquire_many([(f"other {n}", "1/2m") for n in range(words[0], words[0] + 30)])
            return [replace(answer, id="") if isinstance(answer, Permit) else answer for answer in others]
        case "adjust":
            answer = limiter.adjust(permits[-1 - words[0]], words[1]) if words[0] < len(permits) else None
        case "reward" | "block":
            answer = getattr(limiter, verb)(*words)
        case "refund":
            answer = limiter.refund(permits[-1 - words[0]]) if words[0] < len(permits) else None
        case "top":
            answer = limiter.top(2, by=words[0], ascending=words[1])
        case "series":
            answer = limiter.series(words[0], last="4m", step="2m")
        case _:
            answer = getattr(limiter, verb)(words[0])
    if not isinstance(answer, Permit):
        return answer
    if verb != "peek":
        permits.append(answer)
    return replace(answer, id="")


def name_of(key: str) -> str:
    return f"notifier:keys:n:{{{key}}}"


def forget_in_memory(redis: Redis, memory: MemoryKeys, now: int) -> None:
    """Forget there what no rule asks for any more and Redis has forgotten, as it settled the use."""
    lapsed = [key for key, sends in memory._keys.items() if sends.until_us + sends.shorter_us <= now]
    asked = redis.pipeline()
    for key in lapsed:
        asked.hexists(name_of(key), "h")
    for key, is_there in zip(lapsed, asked.execute(), strict=True):
        if not is_there:
            del memory._keys[key]
            memory._turns.remove(key)


def forget_in_redis(redis: Redis, before: dict[str, KeySends], keys: dict[str, KeySends]) -> None:
    """Forget there what memory has just forgotten; what it has begun anew it had forgotten, too."""
    for key, sends in before.items():
        if keys.get(key) is not sends and (fields := [each for each in redis.hkeys(name_of(key)) if each != b"u"]):
            redis.hdel(name_of(key), *fields)


@given(
    st.lists(STEPS, min_size=10, max_size=60),
    st.sampled_from(["1h", None]),
    st.booleans(),
    st.sampled_from([0, 0, 0, MANY_KEYS]),
)
@settings(max_examples=120)
def test_both_limiters_agree(
    redis: Redis, steps: list[tuple[Any, ...]], usage_keep: str | None, long: bool, known: int
) -> None:
    """Each answer of the limiter in memory is that of the one in Redis, at the same moments; clocks are set back too.

    long: by `acquire_all`, which never takes the short way of the script. known: so many keys are in use.
    """
    redis.flushdb()
    now = START
    of_redis = Limiter(redis, namespace="n", usage_keep=usage_keep)
    of_memory = MemoryLimiter(lambda: now, usage_keep=usage_keep)
    permits: tuple[list[Permit], list[Permit]] = ([], [])
    for step in [*(("others", n) for n in range(0, known, 30)), *steps]:
        if usage_keep is None and step[0] in {"usage", "top", "series"}:
            continue
        if step[0] == "advance":
            now += step[1] if usage_keep is None else min(step[1], 40_000_000)  # what is kept goes by Redis's own clock
            continue
        of_redis._requests.clock = str(now)
        forget_in_memory(redis, of_memory._keys, now)
        if long and step[0] == "acquire":
            step = ("all", *step[1:])  # noqa: PLW2901
        before = dict(of_memory._keys._keys)
        answer = ask(of_memory, permits[1], step)
        if step[0] != "reset":
            forget_in_redis(redis, before, of_memory._keys._keys)
        assert answer == ask(of_redis, permits[0], step), step
