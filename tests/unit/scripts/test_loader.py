"""The loader puts a script together from what it says it needs, and refuses what is not so."""

import re
import resource

import pytest
from redis import Redis

from notifier.scripts import loader
from notifier.scripts.keys import declared, in_script


@pytest.mark.parametrize("name", loader.names_of())
def test_a_script_brings_each_piece_that_it_needs(name: str) -> None:
    """Each once, and none that nobody needs."""
    source = loader.script(name).source
    made = [line for line in source.splitlines() if line.startswith("local function piece_")]
    assert len(made) == len(set(made))
    assert "--!" not in source


def test_a_process_reads_no_script_later() -> None:
    """Another release may stand there by then, whose scripts this one does not know; or no open file is left."""
    loader.script("lead")
    loader.script.cache_clear()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
    try:
        made = {name: loader.script(name).source for name in ("hand_over", "settle")}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert all(made.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("--! needs nothing_of_the_kind\nreturn nothing_of_the_kind()\n", "which no piece exports"),
        ("--! needs now_us\nreturn 1\n", "does not use it"),
        ("--! needs now_us\nreturn 1 -- not now_us\n", "does not use it"),
        ("return now_us('')\n", "does not say that it needs"),
        ("--! exports a\nlocal b = 1\n", "does not make once"),
        ("--! exports a\nlocal a = 1\nlocal function f()\n  a = 2\nend\n", "makes it anew"),
        ("--! needs lacking\nlocal function f(lacking) return lacking end\n", "hides what it needs"),
        ("--! needs lacking\nlocal on_demand = lacking\n", "hides what it needs"),
    ],
)
def test_what_a_script_says_of_itself_is_held(text: str, why: str) -> None:
    """An error says which file, and what is wrong."""
    with pytest.raises(ValueError, match=rf"^odd\.lua .*{why}"):
        loader.assemble("odd", text)


def test_what_only_pieces_on_demand_need_is_made_on_demand() -> None:
    """*enqueue* tells of the end of what it drops, and that alone: nothing of it is made where nothing is dropped."""
    early = re.findall(r"^local function piece_(\w+)", loader.script("enqueue").source, re.MULTILINE)
    assert sorted(early) == ["clock", "job_key", "minute"]


def test_a_piece_on_demand_is_made_when_one_of_its_names_is_used(redis: Redis) -> None:
    """A name is none of it in a string, behind a dot, or as the name of a field."""
    text = "--! needs needs_of\nlocal of = {needs_of = 'needs_of', n = #needs_of({})}\nreturn {of.needs_of, of.n}\n"
    assert redis.eval(in_script(loader.assemble("odd", text)), 2, *declared()) == [b"needs_of", 0]
