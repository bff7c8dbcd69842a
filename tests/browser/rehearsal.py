"""The rehearsal: scenes of a bad night, played with real workers and simulators, and read from the first page alone.

Run by `make test-browser`. With PICTURES=<folder> it leaves pictures of the first page in each scene, wide and narrow,
light and dark.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import TimeoutError as TooLateError

from tests.browser.in_a_browser import browser  # noqa: F401 - a fixture
from tests.harness.serve_rig import TOKEN, Client, serving
from tests.harness.support import apns, ends, eventually, fcm, note, worker
from tests.laws.test_held_routes import Service, service, slammed_door

expect.set_options(timeout=30_000)  # a machine with much to do is not what is tested

RULES = {
    "user": {"windows": ["3/1h"]},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent"},
        "marketing": {"lane": "bulk", "windows": ["1/1d"]},
    },
}
FITS = "width => document.documentElement.scrollWidth <= width"
# What is wider than the window.
WIDE = """width => [...document.querySelectorAll("*")].filter(each => each.getBoundingClientRect().right > width)
    .map(each => `${each.tagName} ${each.className} ${each.textContent.slice(0, 40)}`)"""


@contextmanager
def stage(tmp_path: Path, browser: Browser) -> Iterator[tuple[Service, Client, Page]]:  # noqa: F811
    """Everything up: simulators, Redis, one worker, the server, and somebody called anna before the first page."""
    with (
        service(tmp_path, **RULES) as up,
        serving(up.config, TOKEN) as server,
        browser.new_context(
            base_url=server.url, http_credentials={"username": "anna", "password": TOKEN}, color_scheme="light"
        ) as context,
    ):
        up.work("w1")
        page = context.new_page()
        yield up, server, page


def look(page: Page, scene: str) -> Locator:
    """The first page, as somebody who was called sees it; a picture of it is taken."""
    page.goto("/")
    expect(page.locator("#plots canvas").first).to_be_visible()
    return photograph(page, scene)


def photograph(page: Page, scene: str) -> Locator:
    """Pictures of what is shown, of which nothing is wider than the window."""
    pictures = os.environ.get("PICTURES")
    for theme, width in product(("light", "dark"), (390, 1280)):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        try:  # what is drawn follows when the browser has laid out the rest
            page.wait_for_function(FITS, arg=width)
        except TooLateError:
            pytest.fail(f"{scene} at {width}: {page.evaluate(WIDE, width)}")
        if pictures:
            page.screenshot(path=f"{pictures}/{scene}-{theme}-{width}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 800})  # what is read without scrolling
    if pictures:
        page.screenshot(path=f"{pictures}/{scene}.png")
    return page.get_by_role("main")


def figure(main: Locator, name: str) -> Locator:
    """The value of a large figure, or of one of those beside why they wait."""
    return main.locator("dl > div").filter(has=main.page.get_by_text(name, exact=True)).locator("dd").first


def fill(up: Service, users: int = 6, each: int = 5) -> list[str]:
    """Some traffic, of which the limits let a part go."""
    ids = up.send([note(f"u{n}", f"s-u{n}-{k}", apns(f"u{n}")) for k in range(each) for n in range(users)])
    return ids + up.send([note("bob", f"m-bob-{k}", fcm("bob"), category="marketing") for k in range(4)])


def test_all_is_well(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Is it healthy? It says so; how many wait and why, which user, how many workers."""
    with stage(tmp_path, browser) as (up, _, page):
        fill(up)
        eventually(lambda: up.delivered() == 19, "what may go to be delivered")
        main = look(page, "well")
        expect(figure(main, "waiting")).to_have_text("15")
        expect(figure(main, "Empty")).to_contain_text("not while more come than go")
        expect(main).to_contain_text("7 users wait.")
        expect(main.get_by_role("status")).to_contain_text("All is well")
        expect(main.get_by_role("row").filter(has_text="user 3/1h").first).to_contain_text("12")
        expect(main.get_by_role("row").filter(has_text="marketing 1/1d").first).to_contain_text("3")
        expect(main.get_by_role("row").filter(has=page.get_by_role("link", name="bob"))).to_contain_text(
            "marketing 1/1d"
        )
        expect(main).to_contain_text("1 of 1 working")
        expect(main.get_by_role("listitem").filter(has_text="apns").first).to_contain_text("✔ working")


def test_our_key_is_wrong(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """What is wrong and since when, whose fault, how many wait for it, when the next probe is, and what to do."""
    with stage(tmp_path, browser) as (up, _, page):
        up.simulators.team_keys.clear()
        ids = up.send([note(f"u{n}", f"s-u{n}-0", apns(f"u{n}")) for n in range(20)])
        eventually(lambda: any(held.kind == "fault" for held in up.held()), "the route to be stopped")
        ends(up.producer, up.send([note("cy", "fine", fcm("cy"))])[0], "delivered")
        eventually(lambda: up.redis.hget("notifier:waits", "papns") == b"20", "all to wait for it")
        main = look(page, "wrong-key")
        said = main.get_by_role("alert").first
        expect(said).to_contain_text(
            re.compile(r"apns stopped for .*403 InvalidProviderToken, ours to mend; 20 wait; next probe in")
        )
        expect(main.get_by_role("row").filter(has_text="apns stopped").first).to_contain_text("20")
        expect(main.locator(".bar .why-route")).to_have_count(1)
        expect(figure(main, "waiting")).to_have_text("20")
        expect(figure(main, "Oldest overdue")).to_have_text(re.compile(r"\d"))
        expect(figure(main, "Overdue")).to_have_text("20")
        expect(main).to_contain_text("20 users wait, each with 1; here are 10.")
        said.get_by_role("link", name="What to do").click()
        expect(page.get_by_role("main")).to_contain_text("A route is stopped")
        page.goto(f"/user?id=u{len(ids) - 1}")
        expect(page.get_by_role("main")).to_contain_text("when apns works again; next probe")
        expect(page.get_by_role("main")).not_to_contain_text("Wouldgo")


def test_the_provider_cannot_be_reached(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """The same by the provider's fault, in the words of a person; it mends by itself."""
    with stage(tmp_path, browser) as (up, _, page):
        with slammed_door(up.simulators):
            ids = up.send([note(f"u{n}", f"s-u{n}-0", apns(f"u{n}")) for n in range(20)])
            eventually(lambda: any(held.kind == "unreachable" for held in up.held()), "the route to be stopped")
            eventually(lambda: up.redis.hget("notifier:waits", "papns") == b"20", "all to wait for it")
            said = look(page, "unreachable").get_by_role("alert").first
            expect(said).to_contain_text(re.compile(r"apns stopped for .*; next probe in"))
            expect(said).to_contain_text("closes the connection")
            expect(said).not_to_contain_text("ours to mend")
        for job_id in ids:
            ends(up.producer, job_id, "delivered")
        page.goto("/")
        expect(page.get_by_role("status")).to_contain_text("All is well")


def test_the_provider_answers_503(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """It answers, but with errors: what it says, whose fault it is, and how many wait; it mends by itself."""
    with stage(tmp_path, browser) as (up, _, page):
        up.simulators.apns.fail = {"unavailable": 1}
        up.send([note(f"u{n}", f"s-u{n}-0", apns(f"u{n}")) for n in range(30)])
        eventually(lambda: any(held.kind == "failing" for held in up.held()), "the route to be stopped")
        main = look(page, "503")
        said = main.get_by_role("alert").first
        expect(said).to_contain_text(re.compile(r"apns stopped for .*503 ServiceUnavailable, .*; next probe in"))
        expect(said).to_contain_text("the provider's to mend")
        expect(figure(main, "waiting")).to_have_text("30")
        expect(main).to_contain_text(re.compile(r"\d users wait, each with 1[.;]"))  # the others are tried again
        up.simulators.apns.fail = {}
        ends(up.producer, up.send([note("cy", "after", apns("cy"))])[0], "delivered")
        eventually(lambda: not up.held(), "the route to work")
        page.goto("/")
        expect(page.get_by_role("status")).to_contain_text("All is well")


def test_the_provider_is_slow(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """It takes a few a second: which route, since when, how many wait for it, and when they will have gone."""
    with stage(tmp_path, browser) as (up, _, page):
        up.simulators.fcm.rate = 20
        ids = up.send([note(f"u{n}", f"s-u{n}-0", fcm(f"u{n}")) for n in range(300)])
        eventually(lambda: [held.kind for held in up.producer.routes()] == ["busy"], "the route to be slow")
        main = look(page, "slow-provider")
        said = main.get_by_role("alert").first
        expect(said).to_contain_text(re.compile(r"fcm slow for .*: its provider serves \d+ at once"))
        (number,) = re.findall(r"(\d+) wait", said.inner_text())
        expect(main.get_by_role("row").filter(has_text="fcm slow").first).to_contain_text(number)
        expect(figure(main, "waiting")).to_have_text(number)
        expect(figure(main, "Empty")).to_contain_text("not while more come than go")
        expect(figure(main, "Overdue")).to_have_text(number)
        expect(figure(main, "Oldest overdue")).to_have_text(re.compile(r"\d"))
        up.simulators.fcm.rate = 0
        for job_id in ids:
            ends(up.producer, job_id, "delivered")


def test_redis_dies(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """It says that Redis does not answer, and what to do; when Redis is back the page is, by itself."""
    with stage(tmp_path, browser) as (up, _, page):
        fill(up)
        eventually(lambda: up.delivered() == 19, "what may go to be delivered")
        page.goto("/")
        expect(page.get_by_role("status")).to_contain_text("All is well")
        up.server.kill()
        try:
            page.goto("/")
            main = photograph(page, "dead-redis")
            said = main.get_by_role("alert").first
            expect(said).to_contain_text("Redis does not answer")
            expect(said).to_contain_text(re.compile(r"It answered last .* ago"))
            expect(said.get_by_role("link", name="What to do")).to_be_visible()
        finally:
            up.server.restart()
        expect(page.get_by_role("heading", name="Why they wait")).to_be_visible(timeout=30_000)
        expect(page.locator("#plots canvas").first).to_be_visible()


def test_somebody_suspended_all(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """A red banner, since when a worker has seen it, and that nobody keeps who; what is queued waits."""
    with stage(tmp_path, browser) as (up, _, page):
        up.redis.set("rq:suspended", 1)
        eventually(lambda: up.redis.hget("rq:worker:w1", "state") == b"suspended", "the worker to stop")
        up.send([note("ann", "s-ann-0", apns("ann"))])
        main = look(page, "suspended")
        expect(main.get_by_role("alert").first).to_contain_text(
            re.compile("✖ Suspended for .*: .*; RQ does not keep who suspended them; 1 waits")
        )
        expect(figure(main, "waiting")).to_have_text("1")
        expect(main).to_contain_text("1 of 1 suspended")
        expect(figure(main, "Overdue")).to_have_text("1")
        expect(figure(main, "Oldest overdue")).to_have_text(re.compile(r"\d"))
        expect(main).to_contain_text("apns ? unknown: no worker works")
        expect(main).to_contain_text("No user has a backlog.")  # what is queued has a figure of its own
        up.redis.delete("rq:suspended")
        eventually(lambda: up.delivered() == 1, "it to go after all")


def test_an_emergency_stop(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Pause a category from the page, with a reason; see who did it; resume it."""
    with stage(tmp_path, browser) as (up, _, page):
        page.goto("/")
        page.get_by_role("link", name="Pause", exact=True).click()
        page.get_by_label("What").fill("category:chat")
        page.get_by_label("For how long").fill("1h")
        page.get_by_label("Why").fill("wrong text")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_contain_text("Paused.")
        ids = up.send([note(f"u{n}", f"c-u{n}-0", apns(f"u{n}"), category="chat") for n in range(5)])
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:category:chat") == 5, "all to wait")
        main = look(page, "paused")
        said = main.get_by_role("alert").first
        expect(said).to_contain_text(
            re.compile(
                r"category:chat paused for .* by anna: wrong text; 5 wait; ends in\s(59\smin(\s\d+\ss)?|1\sh)What to do"
            )
        )
        expect(main.get_by_role("row").filter(has_text="the pause of category:chat").first).to_contain_text("5")
        expect(main).to_contain_text("pause category:chat by anna")
        expect(figure(main, "Empty")).to_have_text("not while something is stopped or paused")
        assert up.simulators.titles("c-") == []
        said.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_contain_text("Resumed.")
        for job_id in ids:
            ends(up.producer, job_id, "delivered")
        page.get_by_role("link", name="Log").click()
        expect(page.get_by_role("row").filter(has_text="wrong text")).to_contain_text("anna")


def test_somebody_changed_the_rates(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Who, when, and what: on the first page and in the log."""
    with stage(tmp_path, browser) as (up, _, page):
        page.goto("/rates")
        yaml = page.get_by_label("YAML")
        yaml.fill(yaml.input_value().replace("3/1h", "9/1h"))
        page.get_by_role("button", name="Preview").click()
        version = up.redis.hget("rq:worker:w1", "rates_version")
        page.get_by_role("button", name="Apply to all workers").click()
        expect(page.get_by_role("status")).to_contain_text("Applied.")
        eventually(lambda: up.redis.hget("rq:worker:w1", "rates_version") != version, "the worker to follow")
        main = look(page, "changed")
        expect(main).to_contain_text(re.compile(r"apply rates by anna .* ago"))
        main.get_by_role("link", name="Changed last").click()
        log = photograph(page, "changed-log")
        expect(log.get_by_role("row").filter(has_text="apply rates")).to_contain_text("anna")


def test_a_worker_hangs(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """Which of the workers, on which host, for how long."""
    with stage(tmp_path, browser) as (up, _, page):
        second = up.work("w2")
        os.kill(second.process.pid, signal.SIGSTOP)
        try:
            seconds, _us = up.redis.time()  # type: ignore[misc]
            up.redis.hset("rq:worker:w2", "push_looked", (seconds - 70) * 1_000_000)
            main = look(page, "hung-worker")
            expect(main.get_by_role("alert").first).to_contain_text(re.compile(r"w2 hangs: .* for 1 min 1\d s"))
            expect(main).to_contain_text("1 of 2")
        finally:
            os.kill(second.process.pid, signal.SIGCONT)


def test_many_are_cancelled_only_by_who_is_sure(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """It asks with the number, and what was cancelled stays in the figures."""
    with stage(tmp_path, browser) as (up, _, page):
        fill(up, users=1, each=30)
        eventually(lambda: up.redis.hget("notifier:waits", "u3/3600000000") == b"27", "the rest to wait")
        page.goto("/user?id=u0")
        page.get_by_role("button", name="Cancel all that waits").click()
        expect(page.get_by_text("27 notifications in the backlogs of u0")).to_be_visible()
        page.get_by_role("button", name="Cancel all that waits").click()
        expect(page.get_by_role("status")).to_contain_text("Cancelled.")
        main = look(page, "cancelled")
        minutes = main.get_by_role("table").filter(has_text="cancelled").last
        expect(minutes.get_by_role("cell", name="27", exact=True).first).to_be_visible()
        expect(main).to_contain_text("cancel of user u0 by anna")


def test_without_a_script(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """The same is said, and the banner is there, without JavaScript."""
    with service(tmp_path, **RULES) as up, serving(up.config, TOKEN) as server:
        credentials = {"username": "anna", "password": TOKEN}
        with worker(up.config, name="w1") as only:
            only.ready(up.redis)
            eventually(lambda: up.redis.exists("notifier:looked"), "a worker to tell that it looks")
        context = browser.new_context(base_url=server.url, http_credentials=credentials, java_script_enabled=False)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto("/")
        expect(page.get_by_role("alert").first).to_contain_text(re.compile("No worker for .*: none looks"))
        if pictures := os.environ.get("PICTURES"):
            page.screenshot(path=f"{pictures}/without-a-script.png")
        context.close()
