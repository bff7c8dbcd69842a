"""A stranger at the pages of `notifier serve`, in Debian's chromium. Run by `make test-browser`.

With PICTURES=<folder>, pictures of each page at 400 and 1280 pixels are left there.
"""

import os
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from redis import Redis

from notifier.store.published import published_rates
from notifier.testing.embedded import EmbeddedRedis
from notifier.texts import seconds_text
from tests.harness.serve_rig import TOKEN, Client, serving
from tests.harness.support import ends, eventually, fcm, note, notifier, worker, write_config

expect.set_options(timeout=30_000)  # a machine with much to do is not what is tested

PAGES = {
    "now": "/",
    "user": "/user?id=ann",
    "routes": "/routes",
    "rates": "/rates",
}
RULES = {
    "user": {"windows": ["1/1h", "20/1d"], "gap": "2s"},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent", "windows": ["5/10s"]},
        "news": {"lane": "bulk", "windows": ["3/1d"], "expires": "6h"},
    },
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    assert found, "chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found)  # without a sandbox, as Playwright has it
        yield chromium
        chromium.close()


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> Path:
    assert redis.dbsize() == 0
    return write_config(tmp_path, redis_server.url, **RULES)


@pytest.fixture
def server(config: Path) -> Iterator[Client]:
    with serving(config, TOKEN) as client:
        yield client


@pytest.fixture
def page(browser: Browser, server: Client) -> Iterator[Page]:
    said: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        said.append(message.text)

    with browser.new_context(
        base_url=server.url, http_credentials={"username": "stranger", "password": TOKEN}
    ) as context:
        page = context.new_page()
        page.on("console", hear)
        yield page
        # No breach of the policy, no file that is missing; what was refused on purpose is said as well.
        assert [text for text in said if "422" not in text] == []


def fill(config: Path) -> list[str]:
    """One delivered, and some that wait; their job ids."""
    with worker(config, name="worker-1"), notifier(config) as producer:
        first = producer.send(note("ann", "Hello", fcm("ann"), category="chat"))
        ends(producer, first, "delivered")
        ids = [producer.send(note("ann", "Hello", fcm("ann"), category=name)) for name in ("chat", "chat", "news")]
        for job_id in ids:
            eventually(lambda job_id=job_id: producer.status(job_id).state == "waiting", "one that waits")
    return ids


def test_a_stranger_sees_why_a_message_waits_and_cancels_it(page: Page, config: Path) -> None:
    """From the first page, by what stands on it alone: find a user, see what holds a message, cancel it."""
    job_id = fill(config)[0]
    page.goto("/")
    page.get_by_label("Find a user or a job").fill("ann")
    page.get_by_role("button", name="Find").first.click()
    row = page.get_by_role("row").filter(has_text=job_id)
    expect(row).to_contain_text("the rule user 1/1h")
    expect(row).to_contain_text(re.compile(r"in\s(59\smin|1\sh)\b"))
    row.get_by_role("link", name=job_id).click()
    expect(page.get_by_role("main")).to_contain_text("waiting")
    page.go_back()
    row.get_by_role("button", name=f"Cancel {job_id}").click()
    expect(page.get_by_role("status")).to_have_text("Cancelled. It will not be sent.")
    expect(page.get_by_role("button", name=f"Cancel {job_id}")).to_have_count(0)
    expect(row).to_contain_text("cancelled")  # in the history
    with notifier(config) as producer:
        assert producer.status(job_id).state == "cancelled"
    page.get_by_role("link", name="Log").click()
    expect(page.get_by_role("row").filter(has_text="cancel")).to_contain_text("stranger")


def test_a_stranger_previews_and_applies_a_rate(page: Page, redis: Redis) -> None:
    """With the keyboard alone: a wrong rate is refused with its line, a right one is previewed, then applied."""
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.get_by_role("link", name="Rates").press("Enter")
    yaml = page.get_by_label("YAML")
    old = yaml.input_value()
    assert "1/1h" in old
    yaml.fill(old.replace("1/1h", "1/ever"))
    page.get_by_role("button", name="Preview").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"the new rates:\d+:\d+: user.windows"))
    yaml.fill(old.replace("1/1h", "2/1h"))
    page.get_by_role("button", name="Preview").press("Enter")
    expect(page.get_by_role("main")).to_contain_text("+ user.windows: [2/1h, 20/1d]")
    page.get_by_role("button", name="Apply to all workers").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Applied.")
    expect(page.get_by_role("main")).to_contain_text("applied through Redis")
    assert published_rates(redis)[1]["user"]["windows"] == ["2/1h", "20/1d"]


def test_pages_renew_themselves_and_fit_a_phone(page: Page, config: Path) -> None:
    """No page is wider than a phone; the page Now shows without being asked what has happened since."""
    pictures = os.environ.get("PICTURES")
    waits = fill(config) if pictures else []
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for name, path in {**PAGES, **({"job": f"/job?id={waits[0]}"} if waits else {})}.items():
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if pictures:
                page.screenshot(path=f"{pictures}/{name}-{width}.png", full_page=True)
    page.goto("/")
    page.get_by_role("heading", name="Routes").click()  # it focuses the whole page's content, in which nobody works
    lane = page.get_by_role("row").filter(has_text="bulk").first
    with notifier(config) as producer:
        producer.send(note("bob", "Hello", fcm("bob"), category="news"))
    expect(lane.get_by_role("cell").nth(1)).to_have_text("1", timeout=20_000)


def test_long_words_make_no_page_wider(page: Page, config: Path, redis: Redis, server: Client) -> None:
    """Names, reasons and answers of one long word fit at 200 % on a laptop, and no short word is broken for them."""
    user, reason, name = "u" * 200, f"https://status.example.com/{'x' * 150}", "0123456789abcdef" * 2
    asked = server.with_token("n" * 150)
    with worker(config, name=name) as one, notifier(config) as producer:
        one.ready(redis)
        assert asked.post("/api/v1/pause", {"what": f"user:{user}", "reason": reason})[0] == 200
        producer.send(note(user, "Hello", fcm(user)))
        eventually(lambda: user in asked("/api/v1/stats")[1].partition('"throttled"')[2], "it to wait")
        for width in (320, 660, 740, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            for path in ("/", "/pause", "/log", "/problems", f"/user?id={user}"):
                page.goto(path)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} at {width}"
    for width, path, column in ((1280, "/log", "what"), (360, "/", "minute")):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path)
        cell = page.locator(f'td[data-label="{column}"] > div').first
        one_line = "of => of.scrollHeight < 2 * parseFloat(getComputedStyle(of).lineHeight)"
        assert cell.evaluate(one_line), f"{column} at {width}"


def test_a_stranger_watches_what_happens(page: Page, config: Path, server: Client) -> None:
    """The page Now draws what happens as it happens, by the stream alone; what is drawn stays when the page renews."""
    page.clock.install()
    page.goto("/")
    canvas = page.get_by_role("img", name="Notifications accepted and ended").locator("canvas")
    expect(canvas).to_be_visible()
    drawn = "canvas => canvas.toDataURL()"
    before = canvas.evaluate(drawn)
    # As long as somebody works in the page, it does not renew itself.
    page.locator("#plots").evaluate("plots => { plots.tabIndex = 0; plots.focus(); }")
    with worker(config, name="worker-1"), notifier(config) as producer:
        ids = [producer.send(note("ann", "Hello", fcm("ann"), category="chat")) for _ in range(3)]
        ends(producer, ids[0], "delivered")
        legend = page.locator("#plot-throughput table")
        expect(legend).to_contain_text(re.compile(r"delivered\D*1"), timeout=20_000)
    assert canvas.evaluate(drawn) != before
    page.locator("#plots").evaluate("plots => plots.blur()")
    with page.expect_response(f"{server.url}/"):
        page.clock.run_for(6_000)
    minutes = page.get_by_role("table").filter(has_text="delivered").last
    expect(minutes.get_by_role("cell", name="3", exact=True).first).to_be_visible()
    assert canvas.evaluate(drawn) != before


def test_a_plot_writes_durations_as_the_table_below_it(page: Page) -> None:
    """The numbers below a plot and those of its table are the same, and are written alike."""
    script = files("notifier.server").joinpath("static/live.js").read_text(encoding="utf-8")
    two_and_span = script[script.index("  const two = ") : script.index("  const most = ")]
    seconds = [0.0, 0.85, 0.9997, 1.0, 12.34, 59.97, 60.0, 250.0, 300.0, 3_600.0, 11_100.0, 172_800.0, 187_200.0]
    shown = page.evaluate(f"seconds => {{ {two_and_span} return seconds.map(span); }}", seconds)
    assert shown == [seconds_text(each) for each in seconds]


def test_what_is_wrong_is_read_aloud_once(page: Page, redis: Redis, server: Client) -> None:
    """A screen reader reads an alert when it comes; the page renews it every few seconds, and its times change."""
    page.clock.install()
    page.goto("/")
    alerts = page.get_by_role("alert")
    expect(alerts).to_have_text([re.compile("No worker")])
    redis.set("rq:suspended", 1)
    for new in ([re.compile("Suspended")], []):
        with page.expect_response(f"{server.url}/"):
            page.clock.run_for(6_000)
        expect(alerts).to_have_text(new)
        expect(page.get_by_role("main")).to_contain_text("No worker")


def test_without_a_script_the_tables_show_what_happens(browser: Browser, server: Client) -> None:
    """Who runs no script sees the figures and the tables, and no empty frame; nothing takes away what is typed."""
    with browser.new_context(
        base_url=server.url, http_credentials={"username": "any", "password": TOKEN}, java_script_enabled=False
    ) as context:
        page = context.new_page()
        page.goto("/")
        expect(page.get_by_text("late when sent, p99")).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="bulk")).to_be_visible()
        expect(page.locator("#plots")).to_be_hidden()
        expect(page.locator("meta[http-equiv]")).to_have_count(0)
