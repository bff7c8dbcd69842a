"""Laws 1 and 2 with workers killed by SIGKILL in the middle of their work."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

from notifier import Device, Notification
from tests.faults.consistency import assert_consistent, assert_empty_of_work
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, await_workers, total

KILLS = "dead" * 16  # as in wire_worker.py
WIRE_WORKER = str(Path(__file__).parents[1] / "laws" / "wire_worker.py")
LEASE_S = 8  # a busy machine stops a worker for some seconds, and one that lives is not to be taken for dead
SHORT = {"worker": {"lease": f"{LEASE_S}s", "grace": "2s"}}


def in_flight(fleet: Fleet, worker: str) -> set[str]:
    """The jobs under a lease that this worker took."""
    return {job_id for job_id, name in fleet.leased().items() if name == worker}


def test_six_kills_lose_nothing_and_burst_nobody() -> None:
    """Law 2: 600 of 60 users, six workers killed: each ends delivered once; law 1 holds over all that arrived.

    One that three of the killed workers held by chance may be set aside: nobody can tell that it is innocent.
    """
    of = {n: (f"u{n % 60}", "chat" if n % 3 else "default") for n in range(600)}
    rates = {
        "worker": {"lease": "6s", "grace": "2s"},
        "user": {"windows": ["3/1s"], "gap": "40ms"},
        "categories": {"default": {"lane": "default"}, "chat": {"lane": "urgent", "windows": ["4/2s"]}},
    }
    chance = random.Random(6)
    held: Counter[str] = Counter()
    with start_fleet(rates, workers=0, latency_ms=30, apns={"timeout": "1s"}) as fleet:
        names = [fleet.start_worker() for _ in range(3)]
        await_workers(fleet.redis, 3)
        with fleet.notifier() as notifier:
            each = (notification(user, n, category) for n, (user, category) in of.items())
            notifier.send_many(each, job_ids=(f"job-{n}" for n in of))
        for kill in range(6):
            fleet.await_delivered(60 + 80 * kill)
            time.sleep(chance.uniform(0, 0.05))  # anywhere in the cycle of a worker
            victim = chance.randrange(len(names))
            for process in fleet.workers:
                process.send_signal(signal.SIGSTOP)
            fleet.workers[victim].kill()
            fleet.workers[victim].wait()
            held.update(in_flight(fleet, names[victim]))
            assert_consistent(fleet.redis)
            del fleet.workers[victim]
            names.pop(victim)
            for process in fleet.workers:
                process.send_signal(signal.SIGCONT)
            names.append(fleet.start_worker())
        fleet.await_ended(600, 90)
        arrivals = fleet.arrivals()
        broken = broken_rules(fleet, sends(arrivals, of))
        ended = {w: total(fleet.redis, w) for w in ("accepted", "delivered", "failed", "rejected", "expired")}
        repeats_allowed = held.total() + total(fleet.redis, "retried")  # a busy machine may be late with an answer
        failed = {i.decode() for q in ("default", "urgent") for i in fleet.redis.zrange(f"rq:failed:{q}", 0, -1)}
        fleet.end_workers()
        for process in fleet.workers:
            process.wait(60)
        # One that a busy machine let wait for longer than its lease was taken for dead while it sent, and says so.
        repeats_allowed += sum(log.read_bytes().count(b"lease_lost") for log in fleet.folder.glob("worker-*.log"))
        assert_empty_of_work(fleet.redis)

    set_aside = {int(job_id.removeprefix("job-")) for job_id in failed}
    assert failed <= {job_id for job_id, killed in held.items() if killed >= 3}
    assert ended == {
        "accepted": 600, "delivered": 600 - len(failed), "failed": len(failed), "rejected": 0, "expired": 0,
    }  # fmt: skip
    assert {int(a.data["n"]) for a in arrivals} | set_aside == set(of)
    assert broken == []
    assert len(arrivals) - len(of) <= repeats_allowed


def test_a_worker_that_stalls_past_its_lease_bursts_nobody() -> None:
    """Laws 1 and 2: a worker stopped for longer than its lease, and then back, sends and counts nothing twice."""
    of = {n: (f"u{n % 20}", "default") for n in range(200)}
    rates = {**SHORT, "user": {"windows": ["3/1s"], "gap": "40ms"}}
    with start_fleet(rates, workers=3, latency_ms=30, apns={"timeout": "1s"}) as fleet:
        with fleet.notifier() as notifier:
            notifier.send_many(notification(user, n) for n, (user, _) in of.items())
        fleet.await_delivered(50)
        fleet.workers[0].send_signal(signal.SIGSTOP)
        repeats_allowed = len(in_flight(fleet, "worker-1"))
        time.sleep(LEASE_S + 1)  # the fault: longer than its lease
        assert_consistent_when_still(fleet)
        fleet.workers[0].send_signal(signal.SIGCONT)
        fleet.await_ended(200)
        fleet.end_workers()
        for worker in fleet.workers:
            worker.wait(60)
        arrivals = fleet.arrivals()
        broken = broken_rules(fleet, sends(arrivals, of))
        ended = {word: total(fleet.redis, word) for word in ("delivered", "failed", "cancelled")}
        repeats_allowed += total(fleet.redis, "retried")  # a busy machine may be late with an answer
        assert_empty_of_work(fleet.redis)

    assert ended == {"delivered": 200, "failed": 0, "cancelled": 0}
    assert {int(a.data["n"]) for a in arrivals} == set(of)
    assert broken == []
    assert len(arrivals) - len(of) <= repeats_allowed


def assert_consistent_when_still(fleet: Fleet) -> None:
    """Stop those that run for the time of a look."""
    running = fleet.workers[1:]
    for worker in running:
        worker.send_signal(signal.SIGSTOP)
    try:
        assert_consistent(fleet.redis)
    finally:
        for worker in running:
            worker.send_signal(signal.SIGCONT)


def test_work_of_a_dead_worker_goes_on_with_the_default_lease() -> None:
    """Law 2: what a worker held when it was killed is with a provider again once the default lease has ended."""
    token = f"{1:064x}"
    slow = {token: [{"status": 200, "delay_ms": 60_000}, {"status": 200}]}
    with start_fleet({}, workers=2, scripts=slow) as fleet:
        with fleet.notifier() as notifier:
            job_id = notifier.send(notification("ada", 1))
            await_that(lambda: len(fleet.arrivals()) == 1, "the first try")
            holder = fleet.redis.hget(f"rq:job:{job_id}", "worker_name").decode()
            victim = fleet.workers[int(holder.removeprefix("worker-")) - 1]
            victim.kill()
            victim.wait()
            await_that(lambda: len(fleet.arrivals()) == 2, "the second try", 45)
            fleet.await_ended(1)
            status = notifier.status(job_id)
        fleet.end_workers()
        assert_empty_of_work(fleet.redis)

    assert status is not None
    assert status.state == "delivered"


def test_a_notification_that_kills_its_workers_is_put_aside() -> None:
    """Law 2: after the third worker died on it a notification fails with that reason; the others are delivered."""
    with start_fleet(SHORT, workers=0, apns={"timeout": "500ms"}) as fleet, fleet.notifier() as notifier:
        deadly = Notification(user="mallory", devices=[Device("apns", KILLS)], title="hi", data={"n": "0"})
        poison = notifier.send(deadly)
        others = [notifier.send(notification(f"u{n}", n)) for n in range(1, 21)]
        deaths = 0
        while total(fleet.redis, "delivered", "failed") < 21:
            fleet.start_worker((WIRE_WORKER, "--wire-log", str(fleet.wire_log)))
            deaths += _dies(fleet)
        ended = notifier.status(poison)
        minutes = fleet.redis.keys("notifier:minute:*")
        assert sum(int(fleet.redis.hget(minute, "e|poison") or 0) for minute in minutes) == 1
        statuses = [notifier.status(job_id) for job_id in others]
        fleet.end_workers()
        assert_empty_of_work(fleet.redis)
        tries = sum(arrival.token == KILLS for arrival in fleet.arrivals())

    assert deaths == 3
    assert tries == 3
    assert ended is not None
    assert (ended.state, "3 workers died while sending it" in str(ended.reason)) == ("failed", True)
    assert {status.state for status in statuses if status} == {"delivered"}


def _dies(fleet: Fleet) -> bool:
    """Whether the newest worker dies before everything has ended."""
    worker = fleet.workers[-1]
    await_that(lambda: worker.poll() is not None or total(fleet.redis, "delivered", "failed") >= 21, "an end")
    return worker.poll() == 9
