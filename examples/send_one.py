"""Enqueues one notification and tells what becomes of it: `python examples/send_one.py [user]`."""

from __future__ import annotations

import sys
import time

from notifier import Device, Notification, Notifier, NotifierError

TOKEN = "00" * 32  # nobody's; the configuration as shipped prints instead of sending
WAIT_S = 10


def main() -> int:
    """Send, then look until it has ended or ten seconds are over."""
    user = sys.argv[1] if len(sys.argv) > 1 else "42"
    try:
        with Notifier.from_config() as notifier:
            job_id = notifier.send(
                Notification(user=user, devices=[Device("apns", TOKEN)], title="Hello", body="World")
            )
            print(f"accepted as job {job_id}")
            deadline = time.monotonic() + WAIT_S
            while (status := notifier.status(job_id)) and status.state in ("queued", "waiting", "sending"):
                if time.monotonic() > deadline:
                    print(f"still {status.state}: is a worker running? Start one by: notifier worker")
                    return 1
                time.sleep(0.05)
            print(status.state if status else "no longer kept")
    except NotifierError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
