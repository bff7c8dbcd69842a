"""What commands print: the bar of what takes long, and where it is printed."""

import io
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console

from notifier.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever command ran before in this process."""
    monkeypatch.setattr(output.GIVEN, "json", False)


@pytest.mark.parametrize("goes_to", [Terminal, io.StringIO])
def test_no_bar_takes_an_answer_from_its_file(goes_to: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """`notifier audit --json > file` has its findings in the file; the bar is on the terminal."""
    answer, terminal = goes_to(), Terminal()
    monkeypatch.setattr(sys, "stdout", answer)
    monkeypatch.setattr(output, "SHOWN_AFTER_S", -1.0)
    monkeypatch.setattr(output, "Console", lambda **_: Console(file=terminal, force_terminal=True))
    with output.ProgressBar("audit") as bar:
        bar.move(1, 2)
        output.print_json({"left": 1})
    assert "audit" in terminal.getvalue()
    assert (answer.getvalue() == '{"left": 1}\n') is (goes_to is io.StringIO)


def test_without_a_terminal_there_is_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even its line feed: cron would send that by mail."""
    monkeypatch.setattr(output, "SHOWN_AFTER_S", -1.0)
    with output.ProgressBar("audit") as bar:
        bar.move(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_table_takes_its_room_from_what_can_be_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`notifier line` at 80 columns: an id stays whole, and two times of another day stand on two lines.

    Where the words alone are wider, so is the table: no column is left out.
    """
    monkeypatch.setenv("COLUMNS", "80")
    at = datetime(2026, 12, 24, 18, 0, 0, tzinfo=UTC)
    columns = ("place", "job", "for", "priority", "tries", "expected", "expires")
    output.answer(None, output.Rows(columns, [(1, "a" * 20, 1, "normal", 0, at, at)]))
    told = capsys.readouterr().out
    assert "a" * 20 in told
    assert max(map(len, told.splitlines())) <= 80
    output.answer(None, output.Rows(columns, [(1, "a" * 64, 1, "normal", 0, at, at)]))
    assert {"a" * 64, *columns} <= {*capsys.readouterr().out.split()}


@pytest.mark.parametrize("name", ["[/x]", "[red]Bob[/red]", ":smile:", "\x1b[31mred"])
def test_a_name_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anywhere in a table, and where there is none: no markup, no emoji, and nothing that steers a terminal."""
    shown = name.replace("\x1b", "\\u001b")
    output.answer(None, output.Rows(("job",), [(name,)], name))
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [shown, "job", "─" * len(shown), shown]
    output.answer(None, output.Rows(("job",), [], empty=f"no record of {name}"), name)
    assert capsys.readouterr().out == f"no record of {shown}\n{shown}\n"


@pytest.mark.parametrize("year", [datetime.now(UTC).year - 1, datetime.now(UTC).year + 1])
def test_a_moment_of_another_year_has_its_seconds(year: int) -> None:
    """So that `stats`, which leaves them out, still has the minute in the first night of a year."""
    assert output.moment(datetime(year, 6, 15, 12, 34, 56, tzinfo=UTC)).endswith(":56")
