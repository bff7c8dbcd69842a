"""A preview: its traces, its figures on traffic small enough to compute by hand, its drawing, its command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from notifier.cli.__main__ import main
from notifier.forecast.trace import Event, TraceError, read_event, read_trace
from notifier.operations.preview.plot import span, svg
from notifier.operations.preview.report import Waits, compare, timeline
from notifier.rules.policies import Policies
from notifier.rules.policy import Category, Policy, Window
from workers.demo.traffic import notifications

S = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"

SLOW = Policies(Policy((Window(1, interval_us=10 * S),)), categories={"chat": Category("chat", expires_us=15 * S)})
FAST = Policies(Policy(gap_us=S))
FOUR = [Event(0), Event(0), Event(0, "chat"), Event(2 * S, high=True)]

Ran = tuple[int, str, str]
Run = Callable[..., Ran]


def test_a_line_of_a_trace() -> None:
    """What is not said has the defaults; times are rounded up to whole microseconds; what else stands there is left."""
    assert read_event(b'{"at": 0.0000012, "user": "42"}') == ("42", Event(2))
    full = {
        "at": 1.1,
        "user": "ada",
        "category": "chat",
        "priority": "high",
        "expires_in": 2,
        "collapse_id": "match",
        "devices": [],
        "title": 3,
    }
    event = Event(1_100_000, "chat", high=True, expires_in_us=2 * S, collapse_id="match")
    assert read_event(json.dumps(full).encode()) == ("ada", event)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("[1]", "JSON object"),
        ("{", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"at": 1}', "user"),
        ('{"at": 1, "user": 42}', "user"),
        ('{"at": 1, "user": ""}', "user"),
        ('{"user": "42"}', "at"),
        ('{"at": "1", "user": "42"}', "at"),
        ('{"at": true, "user": "42"}', "at"),
        ('{"at": -1, "user": "42"}', "at"),
        ('{"at": NaN, "user": "42"}', "at"),
        ('{"at": 1e300, "user": "42"}', "at"),
        ('{"at": 1, "user": "42", "category": "CHAT!"}', "category"),
        ('{"at": 1, "user": "42", "priority": "urgent"}', "priority"),
        ('{"at": 1, "user": "42", "priority": []}', "priority"),
        ('{"at": 1, "user": "42", "expires_in": 0}', "expires_in"),
        ('{"at": 1, "user": "42", "expires_in": "2s"}', "expires_in"),
        ('{"at": 1, "user": "42", "collapse_id": 7}', "collapse_id"),
        (f'{{"at": 1, "user": "{"x" * 1_000_000}"}}', "longer"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: str, named: str, tmp_path: Path) -> None:
    """The error names the file, the line and the field."""
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"at": 1, "user": "42"}}\n\n{line}\n')
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert named in str(refused.value)


def test_a_trace_is_each_users_in_the_order_of_its_times(tmp_path: Path) -> None:
    """Lines may come in any order; those of one moment keep the file's. The bytes read are told, all of them."""
    path = tmp_path / "trace.jsonl"
    ats = [(3, "a"), (1, "b"), (1, "c"), (2, "a")]
    path.write_text("".join(json.dumps({"at": at, "user": "x", "category": name}) + "\n" for at, name in ats))
    told: list[int] = []
    trace = read_trace(path, told.append)
    assert [(event.at_us // S, event.category) for event in trace["x"]] == [(1, "b"), (1, "c"), (2, "a"), (3, "a")]
    assert sum(told) == path.stat().st_size


def test_a_trace_may_say_when_it_began(tmp_path: Path) -> None:
    """In its first line, for what goes by the clock; a time without a zone is refused."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 1, "user": "ann", "began": "2026-11-21T08:00:00+01:00"}\n{"at": 2, "user": "ann"}\n')
    assert read_trace(path).began_us == 1_795_244_400 * S
    path.write_text('{"at": 1, "user": "ann"}\n')
    assert read_trace(path).began_us is None
    path.write_text('{"at": 1, "user": "ann", "began": "2026-11-21T08:00:00"}\n')
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: began: must be a time with its zone"):
        read_trace(path)


def test_a_file_of_notifications_is_a_trace(tmp_path: Path) -> None:
    """What send-file sends can be replayed too, if it has times."""
    path, rows = tmp_path / "notifications.jsonl", notifications()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert sum(map(len, trace.values())) == len(rows)
    assert len(trace) == 244


def test_the_figures() -> None:
    """One in ten seconds against a gap of one second: by hand, 0, 10 (the high), 20 and an expired; 0, 2, 3, 1."""
    report, sent_at = compare({"ann": FOUR, "bob": [Event(S)]}, SLOW, FAST)
    assert sorted(sent_at["old"]) == [0, S, 10 * S, 20 * S]
    assert sorted(sent_at["new"]) == [0, S, S, 2 * S, 3 * S]
    assert report.overall == {
        "old": Waits(
            sent=4, expired=1, superseded=0, dropped=0, p50_us=0, p99_us=20 * S, longest_us=20 * S, sum_us=28 * S
        ),
        "new": Waits(
            sent=5, expired=0, superseded=0, dropped=0, p50_us=0, p99_us=3 * S, longest_us=3 * S, sum_us=4 * S
        ),
    }
    assert report.categories["chat"]["old"] == Waits(0, 1, 0, 0, 0, 0, 0, 0)
    assert report.max_held == {"old": 3, "new": 2}
    assert (report.longer, report.shorter) == (0, 2)
    assert (report.notifications, report.users, report.span_us) == (5, 2, 2 * S)
    assert report.worst == []


def test_whose_wait_grows_most() -> None:
    """By the mean wait, in which one that expires has waited until then; who waits no longer is not named."""
    trace = {"ann": FOUR, "bob": [Event(S)], "cy": [Event(0), Event(0)]}
    report, _ = compare(trace, FAST, SLOW)
    ann, cy = report.worst
    assert (ann.user, cy.user) == ("ann", "cy")
    assert ann.mean_us == {"old": 4 * S // 4, "new": (0 + 20 + 15 + 8) * S // 4}
    assert ann.expired == {"old": 0, "new": 1}
    assert cy.longest_us == {"old": S, "new": 10 * S}
    assert (report.longer, report.shorter) == (3, 0)


def test_a_send_that_takes_time_holds_up_the_next() -> None:
    """Gaps and windows are counted from where a send was settled."""
    _, sent_at = compare({"ann": [Event(0)] * 3}, SLOW, FAST, latency_us=50_000)
    assert list(sent_at["new"]) == [0, 1_050_000, 2_100_000]
    assert list(sent_at["old"]) == [0, 10_050_000, 20_100_000]


def test_a_pace_for_all_users() -> None:
    """At two a second over all users five go in three seconds, and one that expires until then takes nobody's place."""
    sale = Category("sale", overall=Window(2, interval_us=S))
    trace = {f"u{n}": [Event(0, "sale", expires_in_us=S if n == 2 else None)] for n in range(6)}
    paced = Policies(Policy(), categories={"sale": sale})
    report, sent_at = compare(trace, Policies(Policy()), paced)
    assert sorted(sent_at["new"]) == [0, 0, S, S, 2 * S]
    assert (report.overall["new"].expired, report.longer) == (1, 3)
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
    assert report.max_held == {"old": 3, "new": 1}
    moments = timeline(trace, "ann", SLOW, new)
    assert [moment.ended["new"] for moment in moments] == ["sent", "superseded", "superseded", "sent"]
    assert [moment.sent_us["new"] for moment in moments] == [0, None, None, 10 * S]


def test_the_drawing() -> None:
    """An SVG of two lines, whose heights are in proportion to the counts, and whose names are as they are."""
    times = {"old": [0] * 4, "new": [0, 0, 239 * S, 239 * S]}
    root = ET.fromstring(svg(times, {"old": "<a & b>.yaml", "new": "new.yaml"}))
    old, new = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in root.iter(f"{SVG}polyline")
    )
    floor = max(y for _, y in old)
    assert floor - new[0][1] == pytest.approx((floor - old[0][1]) / 2)
    assert new[-1][1] == new[0][1]
    assert old[-1][1] == floor
    assert "old: <a & b>.yaml" in [text.text for text in root.iter(f"{SVG}text")]


def test_a_drawing_of_nothing() -> None:
    """A trace in which nothing is sent has a drawing too."""
    ET.fromstring(svg({"old": [], "new": []}, {"old": "a", "new": "b"}))


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0"), (1, "1ms"), (850_000, "850ms"), (S, "1s"), (12_345_678, "12.3s"), (250 * S, "4m10s"), (300 * S, "5m"),
     (11_100 * S, "3h05m"), (7200 * S, "2h"), (187_200 * S, "2d4h"), (172_800 * S, "2d")],
)  # fmt: skip
def test_a_span_for_people(us: int, text: str) -> None:
    """At most two units."""
    assert span(us) == text


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, in a folder with old.yaml (the configured one), new.yaml and trace.jsonl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NOTIFIER_CONFIG", "old.yaml")
    rest = {"redis": {"url": "redis://localhost:1/0"}, "providers": {"fcm": {"client": "console"}}}
    for name, rate in (("old", "1/10s"), ("new", "1/1s")):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(rest | {"user": {"windows": [rate]}}))
    Path("trace.jsonl").write_text('{"at": 0, "user": "ann"}\n' * 3)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["notifier", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capfd.readouterr())

    return run


def test_the_command(run: Run) -> None:
    """It needs no Redis; the configured file is the old one, unless another is named."""
    status, out, err = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--plot", "plot.svg")
    assert (status, err) == (0, "")
    assert "3 notifications for 1 user in 0; old → new:" in out
    assert "10s → 1s" in out
    assert "0 would wait longer, 2 shorter" in out
    assert ET.parse("plot.svg").getroot().tag == f"{SVG}svg"
    status, out, _ = run("preview", "--new", "new.yaml", "--old", "new.yaml", "--trace", "trace.jsonl", "--json")
    found = json.loads(out)
    assert found["overall"]["old"] == found["overall"]["new"]
    assert found["overall"]["new"]["longest_us"] == 2 * S


def test_the_command_shows_what_collapses(run: Run) -> None:
    """A column of its own, where something does."""
    new = yaml.safe_load(Path("new.yaml").read_text())
    Path("new.yaml").write_text(
        yaml.safe_dump(new | {"categories": {"default": {"lane": "bulk", "when_blocked": "collapse"}}})
    )
    Path("trace.jsonl").write_text('{"at": 0, "user": "ann", "collapse_id": "match"}\n' * 3)
    _, out, _ = run("preview", "--new", "new.yaml", "--trace", "trace.jsonl")
    head, _, row, *_ = [line.split() for line in out.splitlines()[1:]]
    assert head[:4] == ["category", "sent", "expired", "superseded"]
    assert row[:8] == ["default", "3", "→", "1", "0", "0", "→", "2"]
    assert "superseded" in run("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--user", "ann")[1]


def test_the_commands_timeline(run: Run) -> None:
    """Of one user; status 1 for one who is not in the trace."""
    asked = ("preview", "--new", "new.yaml", "--trace", "trace.jsonl", "--user")
    status, out, _ = run(*asked, "ann")
    assert status == 0
    assert [line.split()[2:] for line in out.splitlines()[-2:]] == [
        ["10s", "user", "1/10s", "1s", "user", "1/1s"],
        ["20s", "user", "1/10s", "2s", "user", "1/1s"],
    ]
    assert "user 1/10s" in out
    assert len(json.loads(run(*asked, "ann", "--json")[1])) == 3
    assert run(*asked, "bob") == (1, "", "nothing in the trace is for bob\n")


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"--trace": "none.jsonl"}, 1, "none.jsonl: cannot be read: No such file"),
        ({"--trace": "old.yaml"}, 1, "old.yaml:1: is not a JSON object"),
        ({"--new": "none.yaml"}, 3, "none.yaml: cannot be read"),
        ({"--plot": "plot.png"}, 2, ".svg"),
        ({"--plot": "none/plot.svg"}, 1, "none/plot.svg: cannot be written"),
        ({"--live": "5s"}, 2, "a file, or --live TIME"),
        ({"--latency": "50"}, 2, "without a unit"),
        ({"--latency": "1h"}, 2, "outside"),
    ],
)
def test_what_is_not_right_is_said(run: Run, changed: dict[str, str], status: int, said: str) -> None:
    """Each with its exit status, and no trace of Python."""
    options = {"--new": "new.yaml", "--trace": "trace.jsonl", **changed}
    ended, _, err = run("preview", *(word for option in options.items() for word in option))
    assert (ended, said in err, "Traceback" in err) == (status, True, False), err
