"""A preview: its figures on traffic small enough to compute by hand."""

from notifier.forecast.trace import Event
from notifier.operations.preview.report import Waits, compare, timeline
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window

S = 1_000_000

SLOW = Policies(Policy((Window(1, interval_us=10 * S),)), categories={"chat": Category("chat", expires_us=15 * S)})
FAST = Policies(Policy(gap_us=S))
FOUR = [Event(0), Event(0), Event(0, "chat"), Event(2 * S, high=True)]


def test_the_figures() -> None:
    """One in ten seconds against a gap of one second: by hand, 0, 10 (the high), 20 and an expired; 0, 2, 3, 1."""
    report, sent_at = compare({"ann": FOUR, "bob": [Event(S)]}, SLOW, FAST)
    assert sorted(sent_at["old"]) == [0, S, 10 * S, 20 * S]
    assert sorted(sent_at["new"]) == [0, S, S, 2 * S, 3 * S]
    assert report.overall == {
        "old": Waits(sent=4, expired=1, superseded=0, dropped=0, p50_us=8 * S, p99_us=20 * S, longest_us=20 * S),
        "new": Waits(sent=5, expired=0, superseded=0, dropped=0, p50_us=0, p99_us=3 * S, longest_us=3 * S),
    }
    assert report.categories["chat"]["old"] == Waits(0, 1, 0, 0, 0, 0, 0)
    assert (report.longer, report.shorter) == (0, 2)
    assert (report.notifications, report.users, report.span_us) == (5, 2, 2 * S)
    assert report.worst == []


def test_whose_wait_grows_most() -> None:
    """By the mean wait of what is sent; who waits no longer is not named."""
    trace = {"ann": FOUR, "bob": [Event(S)], "cy": [Event(0), Event(0)]}
    report, _ = compare(trace, FAST, SLOW)
    ann, cy = report.worst
    assert (ann.user, cy.user) == ("ann", "cy")
    assert ann.mean_us == {"old": 4 * S // 4, "new": (0 + 20 + 8) * S // 3}
    assert ann.expired == {"old": 0, "new": 1}
    assert cy.longest_us == {"old": S, "new": 10 * S}
    assert (report.longer, report.shorter) == (3, 0)


def test_an_expiry_of_the_category_is_that_of_the_rates() -> None:
    """A recording has the expiry by which each was accepted; one that is of its category becomes the new one."""
    patient = Policies(Policy((Window(1, interval_us=10 * S),)), categories={"chat": Category("chat")})
    trace = {"ann": [Event(0, "chat", expires_in_us=15 * S)] * 3 + [Event(0, "chat", expires_in_us=14 * S)]}
    report, _ = compare(trace, SLOW, patient)
    found = {side: (waits.sent, waits.expired) for side, waits in report.overall.items()}
    assert found == {"old": (2, 2), "new": (3, 1)}


def test_a_pace_for_all_users() -> None:
    """At two a second over all users six go in three seconds, and one that expires until then takes nobody's place."""
    sale = Category("sale", overall=Window(2, interval_us=S), expires_us=3 * S)
    trace = {f"u{n}": [Event(0, "sale", expires_in_us=S if n == 2 else None)] for n in range(8)}
    trace["late"] = [*[Event(0, "another")] * 3, *[Event(9 * S, "sale")] * 3]
    paced = Policies(Policy(), categories={"sale": sale})
    report, sent_at = compare(trace, Policies(Policy()), paced)
    assert sorted(sent_at["new"]) == [*[0] * 5, S, S, 2 * S, 2 * S, 9 * S, 9 * S, 10 * S]
    assert (report.overall["new"].expired, report.longer) == (2, 5)
    (moment,) = timeline(trace, "u5", Policies(Policy()), paced)
    assert (moment.sent_us["new"], moment.decided_by["new"]) == (2 * S, "sale overall 2/1s")


def test_a_timeline() -> None:
    """Each notification of one user, in the order of the trace: when it goes under both, and what held it."""
    moments = timeline({"ann": FOUR}, "ann", SLOW, FAST)
    assert [moment.sent_us["old"] for moment in moments] == [0, 20 * S, None, 10 * S]
    assert [moment.decided_by["old"] for moment in moments] == ["", "user 1/10s", "user 1/10s", "user 1/10s"]
    assert [moment.sent_us["new"] for moment in moments] == [0, S, 3 * S, 2 * S]
    assert [moment.decided_by["new"] for moment in moments] == ["", "user gap 1s", "user gap 1s", ""]
    assert [moment.priority for moment in moments] == ["normal"] * 3 + ["high"]
    assert timeline({"ann": FOUR}, "bob", SLOW, FAST) == []


def test_what_collapses() -> None:
    """Of those that wait under one collapse id the newest goes, in the oldest one's place."""
    scores = {"score": Category("score", when_blocked="collapse")}
    new = Policies(Policy((Window(1, interval_us=10 * S),)), categories=scores)
    trace = {
        "ann": [
            Event(0, "score", collapse_id="match"),
            *(Event(n * S, "score", collapse_id="match") for n in (1, 2, 3)),
        ]
    }
    report, sent_at = compare(trace, SLOW, new)
    assert sorted(sent_at["old"]) == [0, 10 * S, 20 * S, 30 * S]
    assert sorted(sent_at["new"]) == [0, 10 * S]
    assert {side: of.superseded for side, of in report.overall.items()} == {"old": 0, "new": 2}
    moments = timeline(trace, "ann", SLOW, new)
    assert [moment.ended["new"] for moment in moments] == ["sent", "superseded", "superseded", "sent"]
    assert [moment.sent_us["new"] for moment in moments] == [0, None, None, 10 * S]
