"""Users in CSV files: the same rules as under `users`, every wrong line named, and fast for tens of thousands."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

import pytest

from notifier.errors import SettingsError
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import Hours
from notifier.rules.policy import Burst, Policy, Window
from notifier.settings import Settings, load_settings, parse_settings, read_source
from notifier.settings.loading import fingerprint
from notifier.settings.provenance import Provenance
from notifier.settings.yaml_source import write_yaml
from workers.configuration.reload import read

S, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000
CONFIG = "user: {windows: [10/minute], gap: 1s}\ntiers: {quiet: {gap: 9s}}\nusers_from: users.csv\n"


def load(folder: Path, users: str, config: str = CONFIG) -> Settings:
    (folder / "users.csv").write_text(users, encoding="utf-8")
    (folder / "n.yaml").write_text(config, encoding="utf-8")
    return load_settings(folder / "n.yaml", environ={})


def test_a_line_is_an_entry_under_users(tmp_path: Path) -> None:
    """A tier's name or rules; an empty cell is as under `user`, `none` is no window."""
    policies = load(
        tmp_path, "user,tier,windows,gap\na,quiet,,\nb,,20/minute 300/day,\n c ,,none,0s\nd,,,\n"
    ).policies()
    minute = (Window(10, interval_us=MINUTE),)
    assert policies.for_user("a") == Policy(minute, 9 * S)
    assert policies.for_user("b") == Policy((Window(20, interval_us=MINUTE), Window(300, interval_us=DAY)), S)
    assert policies.for_user("c").is_empty
    assert policies.for_user("d") == policies.for_user("nobody") == Policy(minute, S)


def test_none_turns_any_rule_off(tmp_path: Path) -> None:
    """In each column of a rule, as the reference says."""
    rules = "windows: [10/minute], gap: 1s, burst: {capacity: 3, refill: 1/m}"
    hours = 'quiet_hours: "22:00-06:00", send_hours: "08:00-20:00"'
    config = f"user: {{{rules}, {hours}}}\nusers_from: users.csv\n"
    found = load(tmp_path, f"user,windows,gap,burst,quiet_hours,send_hours\na{',none' * 5}\n", config)
    assert found.policies().for_user("a").is_empty
    assert found.users_in_files["a"]["gap"] == "0s"  # type: ignore[index]  # as the configuration writes it


def test_only_the_columns_that_are_needed(tmp_path: Path) -> None:
    """Columns may stand in any order and be left out."""
    policies = load(tmp_path, "gap,user\n5s,a\n").policies()
    assert policies.for_user("a") == Policy((Window(10, interval_us=MINUTE),), 5 * S)


def test_a_folder(tmp_path: Path) -> None:
    """All .csv files of a folder are read, however their names write it; other files are not."""
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "1.csv").write_text("user,tier\na,quiet\n", encoding="utf-8")
    (folder / "2.CSV").write_text("user,gap\nb,3s\n", encoding="utf-8")
    (folder / "README").write_text("nonsense", encoding="utf-8")
    found = load(tmp_path, "", CONFIG.replace("users.csv", "users"))
    assert found.policies().for_user("a").gap_us == 9 * S
    assert found.policies().for_user("b").gap_us == 3 * S


def test_side_files_of_a_folder_are_no_users(tmp_path: Path) -> None:
    """While somebody edits a file, Emacs keeps a link to nowhere beside it; macOS and editors keep files of bytes."""
    config = CONFIG.replace("users.csv", "of")
    (of := tmp_path / "of").mkdir()
    (of / "a.csv").write_text("user,gap\na,5s\n", encoding="utf-8")
    before = load(tmp_path, "", config)
    (of / ".#a.csv").symlink_to("ann@host.4711:1700000000")
    (of / "._a.csv").write_bytes(b"\x00\x05\x16\x07\xff")
    (of / ".a.csv").write_text("user,gap\na,6s\n", encoding="utf-8")
    after = load(tmp_path, "", config)
    assert after.policies().for_user("a").gap_us == 5 * S
    assert after.rates_version == before.rates_version
    seen = fingerprint(tmp_path / "n.yaml", of)
    assert seen is not None
    assert len(seen) == 2


def test_a_file_whose_mode_changes_is_looked_at_anew(tmp_path: Path) -> None:
    """What could not be read may be read now; the time and the size of the file are the same."""
    (of := tmp_path / "users.csv").write_text("user,gap\na,5s\n", encoding="utf-8")
    (config := tmp_path / "n.yaml").write_text("{}", encoding="utf-8")
    seen = [fingerprint(config, of)]
    for file in (config, of):
        file.chmod(0o640)
        seen.append(fingerprint(config, of))
    assert len(set(seen)) == 3


def test_quiet_hours_and_calendar_windows_in_cells(tmp_path: Path) -> None:
    """`none` is none; an empty cell is as under `user`; where they stand is known."""
    config = 'user: {quiet_hours: "21:00-08:00", gap: 1s}\nusers_from: users.csv\n'
    users = "user,windows,quiet_hours\na,10/minute 3/calendar-day,\nb,,22:30-06:00\nc,,none\ne,,\n"
    found = load(tmp_path, users, config)
    policies = found.policies()
    night = Hours(21 * 60 * MINUTE, 8 * 60 * MINUTE)
    assert policies.for_user("a") == Policy(
        (Window(10, interval_us=MINUTE),), S, calendar=(CalendarWindow(3, "day"),), quiet=(night,)
    )
    assert policies.for_user("b") == Policy(gap_us=S, quiet=(Hours(1350 * MINUTE, 360 * MINUTE),))
    assert policies.for_user("c") == Policy(gap_us=S)
    written = found.users_in_files
    assert [written[user].get("quiet_hours") for user in "abc"] == [None, "22:30-06:00", "none"]
    source = read_source(tmp_path / "n.yaml")
    places = Provenance(source, "n.yaml", found.users_in_files, found.places_in_files)
    assert places.of_user("e").others["gap"] == "n.yaml:1", "an empty row is as under user"
    quiet = [places.of_user(user).others["quiet_hours"] for user in ("a", "b", "d")]
    assert quiet == ["n.yaml:1", "users.csv:3", "n.yaml:1"]


def test_a_burst_in_a_cell(tmp_path: Path) -> None:
    """`none` is no burst; an empty cell is as under `user`. Large limits are counted in buckets."""
    config = "user: {burst: {capacity: 3, refill: 1/m}}\nusers_from: users.csv\n"
    found = load(tmp_path, "user,windows,burst\na,,20 1/3m\nb,2000/day,\nc,,none\n", config)
    policies = found.policies()
    assert policies.for_user("a") == Policy(burst=Burst(20, every_us=3 * MINUTE))
    assert policies.for_user("b") == Policy(
        (Window(2000, interval_us=DAY, precision_us=15 * MINUTE),), burst=Burst(3, every_us=MINUTE)
    )
    assert policies.for_user("c").is_empty
    written = found.users_in_files
    assert [written["a"]["burst"], written["c"]["burst"]] == [{"capacity": 20, "refill": "1/3m"}, "none"]


WRONG = {
    "usr,tier\n": ":1: 'usr' is no column, or named twice; the first line must name the columns: user, and any",
    "": ":1: is empty; the first line must name the columns: user, and any of tier",
    "user,tier\na\n": ":2: has 1 cells; 2 columns are named",
    "user,tier\na,loud\n": ":2: unknown tier 'loud'; tiers are quiet",
    "user,tier,gap\na,quiet,1s\n": ":2: names the tier 'quiet' and has rules of its own; keep one",
    "user,windows\na,10/fortnight\n": ":2: windows: '10/fortnight': unknown unit 'fortnight'",
    "user,windows\na,0/minute\n": ":2: windows: '0/minute': the limit must be at least 1",
    "user,gap\na,5\n": ":2: gap: '5': a number without a unit",
    "user,quiet_hours\na,21-8\n": ":2: quiet_hours: '21-8' are no quiet hours; write from when until when",
    "user,burst\na,20\n": ":2: burst: '20' is not a burst; write capacity and refill, such as '20 1/3m', or none",
    "user,burst\na,many 1/m\n": ":2: burst: 'many 1/m' is not a burst; write capacity and refill, such as '20 1/3m'",
    "user,gap,gap\na,5s,6s\n": ":1: 'gap' is no column, or named twice; the first line",
    "user,gap\n,5s\n": ":2: '' is not a user's id",
    "user,gap\na,5s\n\na,6s\n": ":4: 'a' has an entry in users.csv:2 already; keep one",
    'user,gap\n"a,5s\n': "is not CSV",
}


@pytest.mark.parametrize("users", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, users: str) -> None:
    """File, line, what is wrong; nothing is taken from a file that is not whole."""
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, users)
    assert WRONG[users] in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "users.csv"))


def test_two_files_for_one_user(tmp_path: Path) -> None:
    """An entry in the file beside one in the configuration is an error, and so is a file that is not there."""
    with pytest.raises(SettingsError, match="'a' has an entry in users already"):
        load(tmp_path, "user,gap\na,5s\n", CONFIG + "users: {a: quiet}\n")
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, "user,gap\na,5s\n", CONFIG.replace("users.csv", "other.csv"))
    where = f"{tmp_path / 'n.yaml'}:3:13: users_from: {tmp_path / 'other.csv'}"
    assert str(refused.value) == f"{where} is neither a file nor a folder with .csv files"


def test_every_wrong_line_is_named_up_to_a_screen(tmp_path: Path) -> None:
    """A file with a thousand wrong lines names fifty, and how many there are."""
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, "user,gap\n" + "".join(f"u{n},x\n" for n in range(1_000)))
    said = str(refused.value).splitlines()
    assert (len(said), said[-1].partition(": ")[2]) == (51, "and 950 more")


def test_a_changed_line_changes_the_version(tmp_path: Path) -> None:
    """Workers that follow other users than others are told apart."""
    one, same, other = (load(tmp_path, f"user,gap\na,{gap}\n").rates_version for gap in ("5s", "5s", "6s"))
    assert one == same != other


def test_what_is_written_out_is_what_was_read(tmp_path: Path) -> None:
    """Published to other hosts, or pasted from the page, the users of a file have the same rules."""
    rows = 'a,quiet,,\nb,,"20/minute, 300/day",\nc,,none,1500ms\nd,,,\ne,,none,1500ms\n'
    read = load(tmp_path, "user,tier,windows,gap\n" + rows)
    rates = {"user": {"windows": ["10/minute"], "gap": "1s"}, "tiers": {"quiet": {"gap": "9s"}}}
    again = parse_settings(write_yaml(rates | {"users": dict(read.users_in_files)}))
    assert again.rates_version == read.rates_version, "config check names them as config apply does"
    assert set(again.users) == {"a", "b", "c", "d", "e"}
    for user in again.users:
        assert read.policies().for_user(user) == again.policies().for_user(user)


@pytest.mark.skipif(sys.gettrace() is not None, reason="under coverage all takes longer")
def test_fifty_thousand_are_read_in_two_seconds_and_found_in_microseconds(tmp_path: Path) -> None:
    """What tens of thousands of users cost: two seconds of this process at the start, and 5 µs a notification."""
    rows = "".join(f"user-{n},,{n % 50 + 1}/minute 200/day,{n % 9}s\n" for n in range(50_000))
    begun = time.process_time()
    policies = load(tmp_path, "user,tier,windows,gap\n" + rows).policies()
    assert time.process_time() - begun < 2
    begun = time.process_time()
    for n in range(50_000):
        policies.rules(f"user-{n}", "default")
    assert (time.process_time() - begun) / 50_000 < 5e-6
    assert policies.for_user("user-49").windows[0] == Window(50, interval_us=MINUTE)


def test_reading_fifty_thousand_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    """While a worker reads them anew, in a thread, its sends go on: the loop turns, and nothing is collected meanwhile.

    The collector stops all threads, a fifth of a second for so many users.
    """
    rows = "".join(f"user-{n},,{n % 50 + 1}/minute 200/day,{n % 9}s\n" for n in range(50_000))
    load(tmp_path, "user,tier,windows,gap\n" + rows)

    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collected.append(info["generation"])

    async def turns() -> int:
        reading, turned = asyncio.create_task(asyncio.to_thread(read, tmp_path / "n.yaml")), 0
        while not reading.done():
            await asyncio.sleep(0.001)
            turned += 1
        await reading
        return turned

    gc.callbacks.append(note)
    try:
        assert asyncio.run(turns()) > 20
    finally:
        gc.callbacks.remove(note)
    assert 2 not in collected
