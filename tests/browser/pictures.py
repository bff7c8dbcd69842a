"""Take the pictures of the pages that the docs show: make pictures."""

import math
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.in_a_browser import browser  # noqa: F401 - a fixture
from tests.browser.rehearsal import stage
from tests.harness.support import apns, ends, eventually, fcm, note
from tests.laws.test_held_routes import Service

PICTURES = Path(__file__).parents[2] / "docs/pictures"
HOUR = 60


def fill_an_hour(up: Service) -> None:
    """The numbers of a day's busiest hour, in place of an hour of traffic."""
    this = int(time.time()) // 60
    for ago in range(1, HOUR):
        n = round(1_000 + 400 * math.sin(ago / 9))
        fields = {"a|chat": n, "o|delivered|chat|apns": n - 3, "o|expired|chat|apns": 3}
        fields |= {"late|chat|2": round(n * 0.95), f"late|chat|{8 + ago // 8 % 3}": round(n * 0.05)}
        up.redis.hset(f"notifier:minute:{this - ago}", mapping=fields)


def take(page: Page, name: str, height: int) -> None:
    """A picture of what a window of this height shows."""
    page.set_viewport_size({"width": 1120, "height": height})
    page.screenshot(path=PICTURES / f"{name}.png")


def test_pictures(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    """A user who is limited, why each was late, and the first page while our key is wrong."""
    with stage(tmp_path, browser) as (up, _, page):
        fill_an_hour(up)
        first = up.send([note("ann", f"a{n}", fcm("ann")) for n in range(3)])
        last = up.send([note("ann", f"m{n}", fcm("ann"), category="marketing") for n in range(3)])
        for job_id in first:
            ends(up.producer, job_id, "delivered")
        eventually(lambda: up.producer.status(last[-1]).state == "waiting", "the rest to wait")  # type: ignore[union-attr]
        page.goto("/user?id=ann")
        expect(page.get_by_role("main")).to_contain_text("Waiting")
        take(page, "user", 700)
        up.simulators.team_keys.clear()
        up.send([note(f"u{n}", f"u{n}", apns(f"u{n}")) for n in range(20)])
        up.send([note("bob", f"b{n}", fcm("bob")) for n in range(9)])
        eventually(lambda: up.redis.hget("notifier:waits", "papns") == b"20", "all to wait for the route")
        ends(up.producer, up.send([note("cy", "c", fcm("cy"))])[0], "delivered")
        page.goto("/")
        expect(page.locator("#plots canvas").first).to_be_visible()
        take(page, "now", 860)
