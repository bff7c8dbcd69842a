"""Enqueues one notification and prints what becomes of it: `python examples/send_one.py [user]`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from notifier import Device, Notification, Notifier, NotifierError

TOKEN = "00" * 32  # an invented device; the configuration as shipped prints instead of sending
WAIT_S = 10
HINTS = {
    "queued": "no worker has taken it yet. Start one: notifier worker",
    "waiting": "its user's rate does not allow it yet; it goes at {at:%H:%M:%S}. See: notifier explain --user {user}",
    "sending": "the provider has not answered yet. See: notifier status {job_id}",
}


def main() -> int:
    """Send, then wait until it has ended, for ten seconds at most."""
    user = sys.argv[1] if len(sys.argv) > 1 else "42"
    try:
        with Notifier.from_config() as notifier:
            job_id = notifier.send(
                Notification(user=user, devices=[Device("apns", TOKEN)], title="Hello", body="World")
            )
            print(f"accepted as job {job_id}")
            deadline = time.monotonic() + WAIT_S
            while (status := notifier.status(job_id)) and status.state in HINTS:
                if time.monotonic() > deadline:
                    at = (status.expected_at or datetime.now(UTC)).astimezone()
                    hint = HINTS[status.state].format(at=at, user=user, job_id=job_id)
                    print(f"still {status.state}: {hint}")
                    return 1
                time.sleep(0.05)
            print(status.state if status else "no longer kept")
    except NotifierError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
