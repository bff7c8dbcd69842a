"""A preview against what it foretells: real workers on the same traffic, measured where the simulator received it."""

import json
import random
import time
from collections import Counter
from pathlib import Path

from notifier import Notifier
from notifier.forecast.replay import Replay
from notifier.forecast.trace import Event, read_event, read_trace
from notifier.notification.job import TERMINAL
from notifier.operations.preview.recording import Recorder
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that
from tests.harness.support import stood_still_us

RATES = {
    "user": {"windows": ["5/1s", "14/4s"], "gap": "40ms"},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent", "windows": ["2/1s"]},
        "marketing": {"lane": "bulk", "windows": ["1/1s"]},
        "security": {"lane": "urgent", "bypass": True},
    },
}
KINDS = ("default", "default", "chat", "chat", "marketing", "security")
SENT = 360
USERS = 16
OVER_S = 3.0
PROBE_EVERY_S = 0.05


def test_the_preview_agrees_with_the_workers(tmp_path: Path) -> None:
    """The lateness of all that waits, and of each user, is near what the preview says: a wrong rule would double it.

    The preview is told how long a send takes: as long as what no rule holds is measured to take. By as much it may err
    for each send, and once more: on a busy machine some take longer than others. And by as long as all stood still.
    """
    trace_file = tmp_path / "trace.jsonl"
    with start_fleet(RATES, workers=2) as fleet:
        with fleet.notifier() as notifier:
            warm = [notification(f"warm{n}", SENT + n) for n in range(20)]  # connections are open at other times
            notifier.send_many(warm)
            fleet.await_ended(len(warm))
            with Recorder(fleet.redis) as recorder, trace_file.open("w", encoding="utf-8") as file:
                who = produce(notifier)
                file.writelines(recorder.read())
                began_us = recorder.began_us
            probed_us = probe(fleet, notifier, len(warm) + SENT)
        policies = fleet.settings.policies()
        arrived_us = {int(arrival.data["n"]): arrival.at_us - began_us for arrival in fleet.arrivals()}
    lines = [json.loads(line) for line in trace_file.read_text(encoding="utf-8").splitlines()]
    assert [(line["user"], line["category"]) for line in lines] == who, "all were recorded, in order"
    accepted_us = [event.at_us for event in map(event_of, lines)]
    late_us: Counter[str] = Counter()
    send_us = []
    for n, (user, category) in enumerate(who):
        if category == "security":
            send_us.append(arrived_us[n] - accepted_us[n])
        else:
            late_us[user] += arrived_us[n] - accepted_us[n]

    foretold_us: Counter[str] = Counter()
    one_us = sum(send_us) // len(send_us)
    spans = [(accepted_us[n], arrived_us[n]) for n, (_, category) in enumerate(who) if category == "security"]
    spans += [(at_us - began_us, arrived_us[n]) for n, at_us in probed_us.items()]
    allowed_us = 2 * one_us + stood_still_us(spans)
    of_machine_us = {user: allowed_us * sum(each == user for each, _ in who) for user in late_us}
    for user, events in read_trace(trace_file).items():
        replay = Replay(policies, user, events, one_us)
        replay.run()
        waits = zip(events, replay.sent, strict=True)
        foretold_us[user] = sum(sent - event.at_us for event, sent in waits if event.category != "security")
    assert foretold_us.total() > SENT * 100_000, "they wait a tenth of a second each and more, also on a busy machine"
    err_us = {user: abs(late_us[user] - foretold_us[user]) for user in late_us}
    assert abs(late_us.total() - foretold_us.total()) <= 0.15 * foretold_us.total() + sum(of_machine_us.values())
    assert [user for user in err_us if err_us[user] > 0.4 * foretold_us[user] + of_machine_us[user]] == []


def produce(notifier: Notifier) -> list[tuple[str, str]]:
    """Send evenly over OVER_S; returns each one's user and category."""
    dice = random.Random(7)
    begun, who = time.monotonic(), []
    for n in range(SENT):
        time.sleep(max(0.0, begun + OVER_S * n / SENT - time.monotonic()))  # the traffic's own pace
        who.append((f"u{dice.randrange(USERS)}", dice.choice(KINDS)))
        priority = "high" if dice.random() < 0.1 else "normal"
        notifier.send(notification(who[n][0], n, who[n][1], priority=priority))
    return who


def probe(fleet: Fleet, notifier: Notifier, others: int) -> dict[int, int]:
    """Go on sending what no rule holds until the others have ended; returns when, µs, by number."""
    sent_us: dict[int, int] = {}

    def have_ended() -> bool:
        number = 2 * SENT + len(sent_us)
        sent_us[number] = time.time_ns() // 1000
        notifier.send(notification("probe", number, "security"))
        return fleet.total(*TERMINAL) - len(notifier.history("probe")) >= others

    await_that(have_ended, f"{others} to end", poll_s=PROBE_EVERY_S)
    fleet.await_ended(others + len(sent_us))
    return sent_us


def event_of(line: dict[str, object]) -> Event:
    return read_event(json.dumps(line).encode())[1]
