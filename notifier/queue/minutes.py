"""The numbers of each minute, as *settle* and *enqueue* sum them; see `minute.lua` for the fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from notifier.scripts.keys import redis_key
from notifier.store.exchange import Commands, Exchange

KEPT_MINUTES: Final = 3 * 24 * 60
BUCKETS: Final = 22  # the last is for times above 2**20 ms
BOUNDS_S: Final = [2.0**n / 1000 for n in range(BUCKETS - 1)]  # the upper bounds of the others
# Words under which *settle* counts jobs that have not ended.
UNENDED: Final = frozenset({"retried", "returned"})


def counts_in(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    """The counts in a hash of Redis, by name, without values that are no numbers of 64 bits."""
    numbers = {name: n for name, n in fields.items() if n.removeprefix(b"-").isdigit() and len(n) < 20}  # noqa: PLR2004
    return {name.decode(errors="replace"): int(n) for name, n in numbers.items()}


@dataclass(slots=True)
class Histogram:
    """Counts of times, by bucket."""

    counts: Counter[int] = field(default_factory=Counter)
    sum_s: float = 0.0

    def quantile_s(self, share: float) -> float | None:
        """The time that this share of them did not exceed, rounded up to a bucket's bound; None without any."""
        wanted, seen = share * self.counts.total(), 0
        for n in sorted(self.counts):
            seen += self.counts[n]
            if seen >= wanted:
                return BOUNDS_S[min(n, BUCKETS - 2)]
        return None


@dataclass(slots=True)
class Numbers:
    """The numbers of one minute, or of several together.

    ended: by (outcome, category, route); it includes retried and returned ones.
    late: by category, the time from when a user was due until the provider got the notification.
    answers: by route, how long the providers took.
    events: of other kinds: 'poison'.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    late: dict[str, Histogram] = field(default_factory=dict)
    answers: dict[str, Histogram] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def add(self, fields: Mapping[str, int]) -> None:
        """Add the fields of a minute's hash."""
        for name, n in fields.items():
            kind, *labels = name.split("|")
            match kind, labels:
                case "a", [category]:
                    self.accepted[category] += n
                case "e", [event]:
                    self.events[event] += n
                case "o", [outcome, category, route]:
                    self.ended[outcome, category, route] += n
                case (("late" | "answer"), [label, which]):
                    of = (self.late if kind == "late" else self.answers).setdefault(label, Histogram())
                    if which == "s":
                        of.sum_s += n / 1e6
                    else:
                        of.counts[int(which)] += n

    def outcomes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (outcome, _, _), n in self.ended.items():
            found[outcome] += n
        return found


def merged(histograms: Iterable[Histogram]) -> Histogram:
    made = Histogram()
    for each in histograms:
        made.counts.update(each.counts)
        made.sum_s += each.sum_s
    return made


def find_fields(choose: Callable[[int], Iterable[int]]) -> Exchange[tuple[int, dict[int, dict[str, int]]]]:
    """Read the current minute of Redis's clock, counted since 1970, and the fields of the chosen minutes that have any.

    choose: returns the minutes to read, given the current one.
    """
    ((seconds, _),) = yield Commands(lambda pipe: pipe.time())
    newest = int(seconds) // 60
    asked = list(choose(newest))
    found = yield Commands(lambda pipe: [pipe.hgetall(redis_key("minute", minute)) for minute in asked])
    return newest, {minute: counts_in(fields) for minute, fields in zip(asked, found, strict=True) if fields}
