"""The laws, held against what came over the wire, what the workers logged, and what Redis says in the end.

What exactly is held, of each user:

- *Windows and gaps.* A message may have been let go at most a lease, and the length of any stall of a provider, before
  that provider received it. Of all the rules that some worker followed in that time there is one set that the message
  kept, given what the user had received before. What was received so long ago that rules followed since then did not
  look back so far need not count. What a provider refused does not count; what it perhaps delivered does, repeats too.
- *Order.* To one device the messages of one category come first in the order in which they were accepted, high ones
  before normal ones that were accepted later. Not held: a message that a provider had seen before, or that a worker
  tried and could not bring to the provider (a retry may step out of order), what was requeued, and what collapses.
- *Ends.* Each accepted notification is in one terminal state, and was counted once there; none was delivered that no
  provider received; none arrived after it was cancelled, nor a lease after it had expired. Not counted is the time
  in which a provider did not read, or in which the worker that sent it was stopped: it cannot know the time then. One
  comes twice only after an answer that left it open, or while something was wrong.
- *Nothing broke.* The audit is clean all the time, no worker ended by itself, none logged a traceback, and in the end
  nothing is left to do.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import notifier.providers.apns.answers
import notifier.providers.fcm.answers
from notifier.notification.job import TERMINAL
from notifier.providers.contract import Outcome
from notifier.rules.policy import Policy
from notifier.simulators.wire import Arrival
from tests.nemesis.history import Trouble
from tests.nemesis.rates_book import DAY_US, Rules, reach_us, remembered
from tests.nemesis.traffic import Accepted

LEASE_US: Final = 3_000_000
TIMEOUT_US: Final = 1_000_000
MARGIN_US: Final = 200_000
REQUEUE_US: Final = 2_000_000  # of RQ's own requeue, and of an audit meanwhile
TABLES: Final = {"apns": notifier.providers.apns.answers.TABLE, "fcm": notifier.providers.fcm.answers.TABLE}
COUNTS: Final = {Outcome.DELIVERED, Outcome.UNKNOWN}
TRIED: Final = {"retry", "unknown", "returned", "unsent", "fault", "not_settled", "lease_lost"}
BREAKS: Final = {"sender_broke", "provider_broke", "beat_missed"}  # said louder than for the one who debugs
COLLAPSES: Final = {"news"}
HARMLESS: Final = {"rates", "script flush", "suspended", "half a file"}  # no Redis and no connection is away for it


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that did not hold: which, when, of whom, and what is to be read about it."""

    law: str
    at_us: int
    text: str
    user: str | None = None
    numbers: frozenset[int] = frozenset()


@dataclass
class Facts:
    """All that a run is judged by. log: each worker's lines, with `at_us` and `worker`. states: how each ended."""

    accepted: Sequence[Accepted]
    arrivals: list[Arrival]
    rules: Sequence[Rules]
    troubles: Sequence[Trouble] = ()
    log: Sequence[Mapping[str, Any]] = ()
    states: Mapping[int, str | None] = field(default_factory=dict)
    stats: Mapping[str, int] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)  # the rules that had no room after an arrival

    def __post_init__(self) -> None:
        self.arrivals = sorted(self.arrivals, key=lambda arrival: arrival.at_us)
        self._number_by_id = {one.job_id: one.number for one in self.accepted}
        self.of_number: dict[int, list[Arrival]] = defaultdict(list)
        for arrival in self.arrivals:
            self.of_number[number_of(arrival)].append(arrival)
        self.tried: dict[str, list[int]] = defaultdict(list)
        for line in self.log:
            if line.get("event") in TRIED and "job_id" in line:
                self.tried[line["job_id"]].append(line["at_us"])
            if line.get("event") == "unsent" and line.get("reason") == "GoAway":
                self._disown(line)

    def _disown(self, line: Mapping[str, Any]) -> None:
        """Forget what the simulator had read, and then called unprocessed by a GOAWAY before its slow answer."""
        of_job = self.of_number[self._number_by_id.get(line["job_id"], -1)]
        read = [each for each in of_job if each.platform == "apns" and each.at_us <= line["at_us"]]
        if read:
            of_job.remove(read[-1])
            self.arrivals.remove(read[-1])

    def stalled_us(self, since_us: int, until_us: int, worker: str | None = None) -> int:
        """How much of this time a provider did not read what it was sent, or this worker stood still."""
        stalled, reached_us = 0, since_us
        for trouble in sorted(self.troubles, key=lambda trouble: trouble.since_us):
            stalls = trouble.kind == "stopped provider" or (trouble.kind, trouble.target) == ("stopped worker", worker)
            if stalls and trouble.overlaps(reached_us, until_us):
                begins_us, reached_us = max(reached_us, trouble.since_us), min(until_us, trouble.until_us or until_us)
                stalled += reached_us - begins_us
        return stalled

    def sent_by(self, arrival: Arrival) -> str | None:
        """The worker that says that it has sent this, if one does: the first after it was received, or the last before.

        Before it says so who no longer waits for the answer.
        """
        job_id = self.accepted[number_of(arrival)].job_id
        said = [
            (line["at_us"], line["worker"])
            for line in self.log
            if line.get("event") == "sent" and line.get("job_id") == job_id
        ]
        after = [each for each in said if each[0] >= arrival.at_us]
        return (min(after) if after else max(said))[1] if said else None

    def may_be_default(self, one: Accepted) -> bool:
        """Whether a worker whose rules do not know its category may have taken it for `default`, which it then is."""
        first_us = min((arrival.at_us for arrival in self.of_number[one.number]), default=one.at_us)
        return any(
            one.category not in rules.policies.categories and rules.in_force(one.asked_us, first_us)
            for rules in self.rules
            if one.category != "default"
        )

    def back_us(self, at_us: int) -> int:
        """How long before it was received a message may have been let go."""
        return LEASE_US + self.unread_us(at_us)

    def unread_us(self, at_us: int) -> int:
        """How long what was received at a moment may have stood in the buffers of a provider that was stopped."""
        return self.stalled_us(at_us - 2 * LEASE_US - 10_000_000, at_us)

    def wrong(self, since_us: int, until_us: int) -> bool:
        """Whether anything was wrong in between by which a message may come twice."""
        return any(t.kind not in HARMLESS and t.overlaps(since_us - MARGIN_US, until_us) for t in self.troubles)


def number_of(arrival: Arrival) -> int:
    """The number of the notification that this is."""
    return int(arrival.data["n"])


def counts(arrival: Arrival) -> bool:
    """Whether the user may have got it."""
    return arrival.status == 0 or TABLES[arrival.platform].outcome(arrival.status, arrival.reason) in COUNTS


def judge(facts: Facts) -> list[Violation]:
    """All that was violated, in order of time."""
    found = [*limits(facts), *order(facts), *ends(facts), *repeats(facts), *broken(facts)]
    return sorted(found, key=lambda violation: violation.at_us)


def broken_off(found: Violation, accepted: Sequence[Accepted]) -> bool:
    """Whether the audit saw what RQ's requeue leaves in its middle: it takes a job out, and then puts it in."""
    text = re.match(r"job n(\d+) of .* is failed and stands nowhere", found.text)
    if found.law != "audit" or text is None:
        return False
    one = accepted[int(text[1])]
    return not one.certain or any(0 <= found.at_us - at_us < REQUEUE_US for at_us in one.requeued)


def limits(facts: Facts) -> Iterable[Violation]:
    """Windows and gaps, see above."""
    by_user: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in facts.arrivals:
        if counts(arrival):
            by_user[facts.accepted[number_of(arrival)].user].append(arrival)
    for user, arrivals in by_user.items():
        for index, arrival in enumerate(arrivals):
            one = facts.accepted[number_of(arrival)]
            category, certain = one.category, not facts.may_be_default(one)
            back_us = facts.back_us(arrival.at_us)
            candidates = [each for each in facts.rules if each.in_force(arrival.at_us - back_us, arrival.at_us)]
            problems = []
            for rules in candidates:
                if rules.bypasses(category):
                    problems.append([])
                    continue
                before = [
                    (scope, policy, arrivals[:index] if number == 0 else _of(facts, arrivals[:index], category))
                    for number, (scope, policy) in enumerate(rules.scopes(user, category)[: 1 + certain])
                ]
                problems.append([
                    f"by {rules.name!r} {scope} {said}"
                    for number, (scope, policy, earlier) in enumerate(before)
                    for said in _too_soon(facts, earlier, arrival, rules, policy, (user, category if number else None))
                ])  # fmt: skip
            if all(problems):
                why = "; or ".join(sorted({" and ".join(problem) for problem in problems})) or "no rules were in force"
                text = f"{facts.accepted[number_of(arrival)]} came too soon: {why}"
                near = {number_of(each) for each in arrivals[max(0, index - 8) : index + 1]}
                yield Violation("windows and gaps", arrival.at_us, text, user, frozenset(near))


def _of(facts: Facts, arrivals: Sequence[Arrival], category: str) -> list[Arrival]:
    of = ((arrival, facts.accepted[number_of(arrival)]) for arrival in arrivals)
    return [arrival for arrival, one in of if one.category == category and not facts.may_be_default(one)]


def _too_soon(  # noqa: PLR0917 - all that it is judged by
    facts: Facts,
    earlier: Sequence[Arrival],
    arrival: Arrival,
    rules: Rules,
    policy: Policy,
    whose: tuple[str, str | None],
) -> list[str]:
    """What of a policy forbids an arrival after these, in words. whose: the user, and the category if it is that's."""
    longest = reach_us(policy)
    known = []
    for each in reversed(earlier):
        if arrival.at_us - each.at_us >= longest:
            break
        if remembered(facts.rules, whose, each.at_us - LEASE_US, arrival.at_us, arrival.at_us - each.at_us):
            known.append(each)
    said = []
    if known and policy.gap_us and not _same_send(known[0], arrival):
        apart_us = arrival.at_us - known[0].at_us
        if apart_us < policy.gap_us:
            said.append(f"gap of {policy.gap_us / 1000:g} ms: {apart_us / 1000:.1f} ms")
        facts.met[f"gap {policy.gap_us // 1000}ms"] += apart_us < 1.5 * policy.gap_us
    for name, since_us, room in _rooms(policy, known, arrival.at_us):
        count = _sends(facts, rules, [arrival, *(each for each in known if each.at_us > since_us)])
        if count > room:
            said.append(f"{name}: {count}")
        facts.met[name] += count + _cost(facts, rules, number_of(arrival)) > room
    return said


def _rooms(policy: Policy, known: Sequence[Arrival], at_us: int) -> Iterator[tuple[str, int, int]]:
    """Each rule that counts: what it is called, since when it counts, and how many it admits since then."""
    for window in policy.windows:
        yield f"window {window}{' by buckets' if window.precision_us else ''}", at_us - window.interval_us, window.limit
    for calendar in policy.calendar:
        yield f"window {calendar}", at_us - at_us % DAY_US, calendar.limit
    if (burst := policy.burst) is not None:
        for each in known:
            yield str(burst), each.at_us - 1, burst.limit + (at_us - each.at_us) // burst.every_us


def _same_send(one: Arrival, other: Arrival) -> bool:
    """Whether both may be one send, to two devices."""
    return number_of(one) == number_of(other) and one.token != other.token and other.at_us - one.at_us < LEASE_US


def _sends(facts: Facts, rules: Rules, arrivals: Iterable[Arrival]) -> int:
    """The least that these can count for, by what each costs: one goes to each device once."""
    devices = Counter((number_of(arrival), arrival.token) for arrival in arrivals)
    sends: dict[int, int] = defaultdict(int)
    for (number, _), times in devices.items():
        sends[number] = max(sends[number], times)
    return sum(times * _cost(facts, rules, number) for number, times in sends.items())


def _cost(facts: Facts, rules: Rules, number: int) -> int:
    one = facts.accepted[number]
    return 1 if facts.may_be_default(one) else rules.policies.category(one.category).cost


def order(facts: Facts) -> Iterable[Violation]:
    """Order, see above."""
    lines: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
    seen: set[tuple[int, str]] = set()
    for arrival in facts.arrivals:
        one = facts.accepted[number_of(arrival)]
        if (one.number, arrival.token) not in seen and one.category not in COLLAPSES:
            seen.add((one.number, arrival.token))
            lines[arrival.token, one.category].append(arrival)
    for arrivals in lines.values():
        for index, late in enumerate(arrivals):
            one = facts.accepted[number_of(late)]
            early = next((each for each in arrivals[:index] if _must_wait(facts, each, one)), None)
            if early is not None:
                other = facts.accepted[number_of(early)]
                text = f"{one} came {(late.at_us - early.at_us) / 1e6:.3f} s after {other}, which was accepted later"
                yield Violation("order", late.at_us, text, one.user, frozenset({one.number, other.number}))


def _must_wait(facts: Facts, early: Arrival, one: Accepted) -> bool:
    """Whether what arrived early had to wait for this one."""
    other = facts.accepted[number_of(early)]
    if other.number < one.number or (other.high and not one.high) or one.requeued or other.requeued:
        return False
    if other.send_at_us != one.send_at_us or not (one.certain and other.certain):
        return False
    if facts.may_be_default(one) or facts.may_be_default(other):  # then it stood in another line
        return False
    tried_us = [*facts.tried[one.job_id], *(arrival.at_us for arrival in facts.of_number[one.number])]
    return min(tried_us) >= early.at_us


def ends(facts: Facts) -> Iterable[Violation]:
    """Ends, see above."""
    for one in facts.accepted:
        state = facts.states.get(one.number)
        about = one.user, frozenset({one.number})
        if state not in TERMINAL and (one.certain or state is not None):
            yield Violation("ends", one.at_us, f"{one} did not end: {state or 'nobody knows it'}", *about)
            continue
        arrivals = facts.of_number[one.number]
        taken = [arrival for arrival in arrivals if counts(arrival)]
        if state == "delivered" and not any(arrival.status == 200 for arrival in arrivals):
            yield Violation("ends", one.at_us, f"{one} ended as delivered, and no provider took it", *about)
        if one.requeued:
            continue
        for at_us, answer in one.cancelled:
            late = [a for a in taken if a.at_us - facts.stalled_us(at_us - TIMEOUT_US, a.at_us) > at_us + MARGIN_US]
            if answer == "cancelled" and (late or state != "cancelled"):
                yield Violation("ends", one.at_us, f"{one} was cancelled, and then {'sent' if late else state}", *about)
        if one.expires_us is not None:
            expires_us = one.at_us + one.expires_us
            until_us = expires_us + LEASE_US
            late = [a for a in taken if a.at_us > until_us]
            late = [a for a in late if a.at_us - facts.stalled_us(expires_us, a.at_us, facts.sent_by(a)) > until_us]
            if late:
                text = f"{one} arrived {(late[0].at_us - until_us) / 1e6:.3f} s more than a lease after its expiry"
                yield Violation("ends", late[0].at_us, text, *about)
    yield from _totals(facts)


def _totals(facts: Facts) -> Iterable[Violation]:
    if not facts.stats or not all(one.certain for one in facts.accepted):
        return
    ended = Counter(state for state in facts.states.values() if state in TERMINAL)
    requeued = sum(len(one.requeued) for one in facts.accepted)
    counted = {word: facts.stats.get(word, 0) for word in TERMINAL}
    if requeued == 0:
        wrong = {word: (counted[word], ended[word]) for word in TERMINAL if counted[word] != ended[word]}
    else:  # what was requeued ended more than once
        total = sum(counted.values()), sum(ended.values()) + requeued
        wrong = {} if total[0] == total[1] else {"in all": total}
    for word, (said, true) in wrong.items():
        yield Violation("ends", 0, f"notifier:stats counts {said} {word}, and there are {true}")


def repeats(facts: Facts) -> Iterable[Violation]:
    """One comes twice to a device only where something was wrong."""
    for number, arrivals in facts.of_number.items():
        one = facts.accepted[number]
        last: dict[str, Arrival] = {}
        for arrival in arrivals:
            before = last.get(arrival.token)
            if counts(arrival):
                last[arrival.token] = arrival
            if before is None or before.status != 200 or not counts(arrival) or one.requeued:
                continue
            since_us = before.at_us - MARGIN_US - facts.unread_us(before.at_us)
            tried = any(since_us <= at <= arrival.at_us for at in facts.tried[one.job_id])
            if not tried and not facts.wrong(before.at_us, arrival.at_us):
                text = f"{one} came twice, {(arrival.at_us - before.at_us) / 1e6:.3f} s apart, and nothing was wrong"
                yield Violation("repeats", arrival.at_us, text, one.user, frozenset({number}))


def broken(facts: Facts) -> Iterable[Violation]:
    """What a worker logs that must never happen."""
    for line in facts.log:
        breaks = line.get("event") in BREAKS and line.get("level") != "debug"
        if breaks or "Traceback" in str(line.get("exception", "")):
            text = f"{line['worker']} logged {line['event']}: {str(line.get('exception') or line)[-600:]}"
            yield Violation("nothing breaks", line["at_us"], text, line.get("user"))
