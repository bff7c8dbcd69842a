"""The pace of a category for all users together, with real workers, where the simulators receive it."""

import signal
from collections import Counter
from pathlib import Path

from notifier.operations.explain import Inspection
from notifier.operations.route_view import view_routes
from notifier.settings import load_settings
from tests.harness.support import apns, eventually, fcm, note, write_config
from tests.laws.test_held_routes import service

LIMIT, SECOND = 20, 1_000_000
CATEGORIES = {
    "default": {"lane": "default"},
    "chat": {"lane": "urgent"},
    "marketing": {"lane": "bulk", "overall": f"{LIMIT}/1s"},
}


def test_a_pace_for_all_users_holds_at_the_wire(tmp_path: Path) -> None:
    """Three workers, two platforms, 25 users: no second has more than 20 in it, none starves, chat waits for none."""
    users = [f"u{n}" for n in range(25)]
    with service(tmp_path, categories=CATEGORIES) as up:
        for name in ("one", "two", "three"):
            up.work(name)
        campaign = [
            note(user, f"pace-{user}-{n}", (apns if n % 2 else fcm)(user), category="marketing")
            for n in range(4)
            for user in users
        ]
        up.send(campaign)
        up.send([note(user, f"chat-{user}-0", apns(user), category="chat") for user in users])
        held = eventually(lambda: [one for one in up.producer.routes() if one.kind == "full"], "the pace to be reached")
        assert [(one.route, one.state) for one in held] == [("overall:marketing", "slow")]
        eventually(lambda: up.delivered() == 5 * len(users), "all to be delivered")
        arrived = sorted((a.at_us, a.title) for a in up.simulators.all() if a.status == 200)
        uses = {now["route"]: now["limit"] for now in view_routes(up.redis, load_settings(up.config))}
        assert uses["overall:marketing"] == f"{LIMIT}/1s"
    at = [at_us for at_us, title in arrived if title.startswith("pace-")]
    assert len(at) == 4 * len(users)
    assert all(after - first >= SECOND for first, after in zip(at, at[LIMIT:], strict=False))
    assert [title for at_us, title in arrived if title.startswith("chat-") and at_us > at[2 * LIMIT]] == []
    first_turns = Counter(title.split("-")[1] for _, title in arrived if title.startswith("pace-") and title[-1] == "0")
    assert first_turns == Counter(users)


def test_a_new_pace_is_followed_by_what_waits(tmp_path: Path) -> None:
    """At 1 an hour all but one wait; the file says 1000 a second, and they go."""
    slow = CATEGORIES | {"marketing": {"lane": "bulk", "overall": "1/1h"}}
    fast = CATEGORIES | {"marketing": {"lane": "bulk", "overall": "1000/1s"}}
    with service(tmp_path, categories=slow) as up:
        up.work("one")
        up.send([note(f"u{n}", f"pace-u{n}-0", apns(f"u{n}"), category="marketing") for n in range(10)])
        eventually(lambda: up.delivered() == 1, "the first")
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:overall:marketing|full") == 9, "the rest to wait")
        waiting = next(f"u{n}" for n in range(10) if up.redis.exists(f"notifier:backlogs:{{u{n}}}"))
        look = Inspection(up.redis, load_settings(up.config).policies(), waiting)
        found, other = look.explain("marketing"), look.explain("chat")
        assert [(use.rule, use.used, use.limit) for use in found.uses] == [("overall 1/1h", 1, 1)]
        assert [(held.route, held.why) for held in found.routes] == [
            ("overall:marketing", "as many as overall allows have gone to all users")
        ]
        assert (found.decided_by, other.uses, other.routes) == ("marketing overall 1/1h", [], ())
        assert found.next_at is not None
        shown = {each["route"]: each["used"] for each in view_routes(up.redis, load_settings(up.config))}
        assert shown["overall:marketing"] == 1
        (standing,) = look.backlog()
        assert standing.not_before.startswith("overall:marketing is slow")
        assert up.redis.hgetall("notifier:waits") == {b"poverall:marketing|full": b"9"}
        path = write_config(tmp_path, up.server.url, up.simulators.providers(), categories=fast)
        path.touch()
        eventually(lambda: up.delivered() == 10, "the others")
        assert "by marketing overall" in str(up.producer.history(waiting)[0])


def test_a_killed_workers_sends_count(tmp_path: Path) -> None:
    """Law 1 over all users, where a worker dies with some in flight: what it may have sent counts."""
    with service(tmp_path, categories=CATEGORIES) as up:
        one = up.work("one")
        up.send([note(f"u{n}", f"pace-u{n}-0", apns(f"u{n}"), category="marketing") for n in range(60)])
        eventually(lambda: up.simulators.titles("pace-"), "the first to arrive")
        one.end(signal.SIGKILL)
        up.work("two")
        eventually(lambda: up.delivered() == 60, "all to be delivered")
        at = sorted(a.at_us for a in up.simulators.all() if a.status == 200)
    assert all(after - first >= SECOND for first, after in zip(at, at[LIMIT:], strict=False))
