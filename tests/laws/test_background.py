"""Apple takes three background pushes an hour for a device: what is over that holds up no alert of its backlog."""

from pathlib import Path

from notifier import Notification
from notifier.operations.explain import Inspection
from notifier.settings import load_settings
from notifier.units import moment
from tests.harness.support import apns, eventually, write_config
from tests.laws.test_held_routes import Service, service


def message(kind: str, n: int) -> Notification:
    """An alert with a title, or a background push, which has none; both of one user, one backlog and one device."""
    shown = {"title": f"{kind}-{n}"} if kind == "alert" else {}
    return Notification("ann", [apns("ann")], data={"is": f"{kind}-{n}"}, **shown)


def arrived(up: Service) -> list[str]:
    return [str((arrival.data or {}).get("is")) for arrival in up.simulators.all() if arrival.status == 200]


def test_alerts_pass_background_pushes_that_wait_for_their_device(tmp_path: Path) -> None:
    """They go at once and in order, also one that finds nothing but such pushes waiting; these keep their order too."""
    with service(tmp_path) as up:
        providers = up.simulators.providers()
        providers["apns"]["limits"] = {"background": ["1/1h"]}
        write_config(tmp_path, up.server.url, providers)
        up.work("one")
        up.send([message("push", 0)])
        eventually(lambda: up.delivered() == 1, "the first push")
        up.send([message(*what) for what in (("push", 1), ("alert", 0), ("push", 2), ("alert", 1), ("push", 3))])
        eventually(lambda: up.delivered() == 3, "the alerts")
        assert arrived(up) == ["push-0", "alert-0", "alert-1"]
        up.send([message("alert", 2)])
        eventually(lambda: up.delivered() == 4, "an alert that comes when only pushes wait")
        up.send([message("push", 4)])
        looked = int(up.redis.hget("notifier:stats", "looked") or 0)
        for n in range(1, 5):  # the hour is over, again and again
            up.redis.delete(*up.redis.keys("notifier:device:*"))
            up.redis.zadd("notifier:wakeups:default", {"ann": 0}, xx=True)
            up.redis.delete("notifier:leaders")
            eventually(lambda n=n: up.delivered() == 4 + n, f"push {n}")
        assert arrived(up)[3:] == ["alert-2", "push-1", "push-2", "push-3", "push-4"]
        assert int(up.redis.hget("notifier:stats", "looked") or 0) - looked <= 8


def test_until_when_a_push_waits_for_its_device_is_told(tmp_path: Path) -> None:
    """The moment at which a worker will look again, not now; an alert that came now would pass it."""
    with service(tmp_path) as up:
        providers = up.simulators.providers()
        providers["apns"]["limits"] = {"background": ["1/1h"]}
        config = write_config(tmp_path, up.server.url, providers)
        up.work("one")
        up.send([message("push", 0)])
        eventually(lambda: up.delivered() == 1, "the first, which counts from its lease's end until then")
        up.send([message("push", 1)])
        eventually(lambda: up.redis.hget("notifier:backlogs:{ann}", "#w:default") == b"d", "the second one to wait")
        at_us = int(up.redis.zscore("notifier:wakeups:default", "ann"))
        told = Inspection(up.redis, load_settings(config, {}).policies(), "ann")
        (waits,) = told.backlog()
        assert (waits.expected_at, waits.not_before) == (moment(at_us), "a limit of its device")
        found = told.explain("default")
        assert (found.next_at, found.decided_by) == (moment(at_us), "a limit of its device")
