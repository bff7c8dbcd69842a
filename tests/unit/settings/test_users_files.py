"""Users in files of JSON lines: the same rules as under `users`, every wrong line named, and fast for many of them."""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from notifier.errors import SettingsError
from notifier.rules.policy import Policy, Window
from notifier.settings import Settings, load_settings, parse_settings, read_source, users_files
from notifier.settings.loading import fingerprint
from notifier.settings.provenance import Provenance
from notifier.settings.yaml_source import write_yaml
from workers.configuration.reload import read

S, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000
CONFIG = "user: {windows: [10/minute], gap: 1s}\ntiers: {quiet: {gap: 9s}}\nusers_from: users.jsonl\n"


def lines(**users: Any) -> str:
    """A line for each user, with these rules."""
    return "".join(json.dumps({"user": user, **rules}) + "\n" for user, rules in users.items())


def load(folder: Path, users: str, config: str = CONFIG) -> Settings:
    (folder / "users.jsonl").write_text(users, encoding="utf-8")
    (folder / "n.yaml").write_text(config, encoding="utf-8")
    return load_settings(folder / "n.yaml", environ={})


def test_a_line_is_an_entry_under_users(tmp_path: Path) -> None:
    """A tier's name or rules, as `users apply` reads them; what is not given is as under `user`."""
    own = {"b": {"windows": ["20/minute", "300/day"]}, "c": {"windows": [], "gap": "0s"}}
    policies = load(tmp_path, lines(a={"tier": "quiet"}, **own, d={})).policies()
    minute = (Window(10, interval_us=MINUTE),)
    assert policies.for_user("a") == Policy(minute, 9 * S)
    assert policies.for_user("b") == Policy((Window(20, interval_us=MINUTE), Window(300, interval_us=DAY)), S)
    assert policies.for_user("c").is_empty
    assert policies.for_user("d") == policies.for_user("nobody") == Policy(minute, S)


def test_files_that_are_too_large_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read no further than the rest of what all may have: a link to an endless file fills no memory."""
    config, one = CONFIG.replace("users.jsonl", "of"), lines(a={"gap": "5s"})
    (of := tmp_path / "of").mkdir()
    (of / "a.jsonl").write_text(one, encoding="utf-8")
    (of / "b.jsonl").write_text(one.replace('"a"', '"b"'), encoding="utf-8")
    monkeypatch.setattr(users_files, "MAX_BYTES", 2 * len(one))
    load(tmp_path, "", config)
    monkeypatch.setattr(users_files, "MAX_BYTES", 2 * len(one) - 1)
    with pytest.raises(SettingsError, match=r"of/b\.jsonl: with it users_from has more than .* MB; so many users"):
        load(tmp_path, "", config)


def test_a_folder(tmp_path: Path) -> None:
    """All .jsonl files of a folder are read, however their names write it; other files, and side files, are not.

    While somebody edits a file, Emacs keeps a link to nowhere beside it; macOS and editors keep files of bytes.
    """
    config = CONFIG.replace("users.jsonl", "of")
    (of := tmp_path / "of").mkdir()
    (of / "a.jsonl").write_text(lines(a={"gap": "5s"}), encoding="utf-8")
    (of / "b.JSONL").write_text(lines(b={"tier": "quiet"}), encoding="utf-8")
    (of / "README").write_text("nonsense", encoding="utf-8")
    before = load(tmp_path, "", config)
    (of / ".#a.jsonl").symlink_to("ann@host.4711:1700000000")
    (of / "._a.jsonl").write_bytes(b"\x00\x05\x16\x07\xff")
    (of / ".a.jsonl").write_text(lines(a={"gap": "6s"}), encoding="utf-8")
    after = load(tmp_path, "", config)
    assert [after.policies().for_user(user).gap_us for user in "ab"] == [5 * S, 9 * S]
    assert after.rates_version == before.rates_version
    seen = fingerprint(tmp_path / "n.yaml", of)
    assert seen is not None
    assert len(seen) == 3, "the configuration and two files"


def test_a_file_whose_mode_changes_is_looked_at_anew(tmp_path: Path) -> None:
    """What could not be read may be read now; the time and the size of the file are the same."""
    (of := tmp_path / "users.jsonl").write_text(lines(a={"gap": "5s"}), encoding="utf-8")
    (config := tmp_path / "n.yaml").write_text("{}", encoding="utf-8")
    seen = [fingerprint(config, of)]
    for file in (config, of):
        file.chmod(0o640)
        seen.append(fingerprint(config, of))
    assert len(set(seen)) == 3


def test_where_they_stand_is_known(tmp_path: Path) -> None:
    """Each rule by its line; what is not given stands under `user`."""
    config = 'user: {quiet_hours: "21:00-08:00", gap: 1s}\nusers_from: users.jsonl\n'
    users = lines(a={"windows": ["10/minute"]}, b={"quiet_hours": "22:30-06:00"}, e={})
    found = load(tmp_path, users, config)
    places = Provenance(found, read_source(tmp_path / "n.yaml"), "n.yaml")
    assert places.of_user("e").at("gap") == "n.yaml:1", "no rules are those of user"
    quiet = [places.of_user(user).at("quiet_hours") for user in ("a", "b", "d")]
    assert quiet == ["n.yaml:1", "users.jsonl:2", "n.yaml:1"]


A = '{"user": "a", '
WRONG = {
    "user,tier\n": ':1: is no JSON object; write one such as {"user": "44", "tier": "quiet"} or',
    "[]\n": ":1: is no JSON object",
    '{"tier": "quiet"}\n': ":1: names no user; write a JSON object such as",
    '{"user": 7}\n': ':1: user: must be text such as "7", is a number',
    '{"user": "\\ud800"}\n': r":1: user: '\ud800' is not valid Unicode text",
    A + '"gap": "5s"\n': ":1: is no JSON object",  # half of a line
    "": ":1: is empty; write a JSON object such as",
    A + '"tier": "loud"}\n': ":1: tier: unknown tier 'loud'; tiers are quiet",
    A + '"tier": null}\n': ":1: tier: is empty; give a value, or delete the key",
    A + '"tier": 7}\n': ":1: tier: unknown tier '7'; tiers are quiet",
    A + '"tier": "quiet", "gap": "1s"}\n': ":1: tier: names 'quiet' beside rules of its own; keep one",
    A + '"windows": ["10/fortnight"]}\n': ":1: windows[0]: '10/fortnight': unknown unit 'fortnight'",
    A + '"gap": null}\n': ":1: gap: is empty; give a value, or delete the key",
    A + '"burst": {"capacity": 20}}\n': ":1: burst.refill: is missing",
    A + '"gaps": "5s"}\n': ":1: gaps: unknown key; did you mean gap?",
    '{"user": "", "gap": "5s"}\n': ":1: user: '' is not a user's id",
    A + '"gap": "5s"}\n\n' + A + '"gap": "6s"}\n': ":3: 'a' has an entry in users.jsonl:1 already; keep one",
}


@pytest.mark.parametrize("users", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, users: str) -> None:
    """File, line, what is wrong; nothing is taken from a file that is not whole."""
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, users)
    assert WRONG[users] in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "users.jsonl"))


def test_two_files_for_one_user(tmp_path: Path) -> None:
    """An entry in the file beside one in the configuration is an error, and so is a file that is not there."""
    with pytest.raises(SettingsError, match="'a' has an entry in users already"):
        load(tmp_path, lines(a={"gap": "5s"}), CONFIG + "users: {a: quiet}\n")
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, lines(a={"gap": "5s"}), CONFIG.replace("users.jsonl", "other.jsonl"))
    where = f"{tmp_path / 'n.yaml'}:3:13: users_from: {tmp_path / 'other.jsonl'}"
    assert str(refused.value) == f"{where} is neither a file nor a folder with .jsonl files"


def test_every_wrong_line_is_named_up_to_a_screen(tmp_path: Path) -> None:
    """A file with a thousand wrong lines names fifty, and how many there are."""
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, lines(**{f"u{n}": {"gap": "x"} for n in range(1_000)}))
    said = str(refused.value).splitlines()
    assert (len(said), said[-1].partition(": ")[2]) == (51, "and 950 more")


def test_a_changed_line_changes_the_version(tmp_path: Path) -> None:
    """Workers that follow other users than others are told apart; the order of the keys does not matter."""
    rules = {"gap": "5s", "windows": []}, {"windows": [], "gap": "5s"}, {"gap": "6s", "windows": []}
    one, same, other = (load(tmp_path, lines(a=each)).rates_version for each in rules)
    assert one == same != other


def test_what_is_written_out_is_what_was_read(tmp_path: Path) -> None:
    """Published to other hosts, or pasted from the page, the users of a file have the same rules."""
    own, same = {"windows": ["20/minute", "300/day"]}, {"windows": [], "gap": "1500ms"}
    read = load(tmp_path, lines(a={"tier": "quiet"}, b=own, c=same, d={}, e=same))
    again = parse_settings(write_yaml(dict(read.rates)))
    assert again.rates_version == read.rates_version, "config check names them as config apply does"
    assert set(again.users) == {"a", "b", "c", "d", "e"}
    for user in again.users:
        assert read.policies().for_user(user) == again.policies().for_user(user)


def fifty_thousand() -> str:
    of = ({"windows": [f"{n % 50 + 1}/minute", "200/day"], "gap": f"{n % 9}s"} for n in range(50_000))
    return lines(**{f"user-{n}": rules for n, rules in enumerate(of)})


@pytest.mark.skipif(sys.gettrace() is not None, reason="under coverage all takes longer")
def test_fifty_thousand_are_read_in_two_seconds_and_found_in_microseconds(tmp_path: Path) -> None:
    """What tens of thousands of users cost: two seconds of this process at the start, and 5 µs a notification."""
    users = fifty_thousand()
    begun = time.process_time()
    policies = load(tmp_path, users).policies()
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
    (tmp_path / "users.jsonl").write_text(fifty_thousand(), encoding="utf-8")
    (tmp_path / "n.yaml").write_text(CONFIG, encoding="utf-8")
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
