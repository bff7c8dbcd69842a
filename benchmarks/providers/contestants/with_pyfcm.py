"""pyfcm, as it comes: one FCMNotification; one send at a time, or as many threads as sends in flight."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path

from google.oauth2 import service_account
from pyfcm import FCMNotification

from benchmarks.providers.task import BODY, TITLE, Meter, Task, device_token

SCOPES = ["https://www.googleapis.com/auth/firebase.messaging"]


def main(task: Task) -> None:
    """Send until the time is over."""
    os.environ["REQUESTS_CA_BUNDLE"] = task.ca_file
    endpoint = f"https://127.0.0.1:{task.port}"
    account = json.loads((Path(task.folder) / "service-account.json").read_text(encoding="utf-8"))
    credentials = service_account.Credentials.from_service_account_info(
        account | {"token_uri": f"{endpoint}/token"}, scopes=SCOPES
    )
    FCMNotification.FCM_END_POINT_BASE = f"{endpoint}/v1/projects"
    fcm = FCMNotification(credentials=credentials, project_id=account["project_id"])
    meter = Meter()
    counting = threading.Lock()
    numbers = itertools.count()
    ends_at = time.perf_counter() + task.warm_up_s + task.seconds

    def go_on() -> None:
        while time.perf_counter() < ends_at:
            fcm.notify(fcm_token=device_token(next(numbers)), notification_title=TITLE, notification_body=BODY)
            with counting:
                meter.done += 1

    threads = [threading.Thread(target=go_on) for _ in range(task.in_flight)]
    for thread in threads:
        thread.start()
    time.sleep(task.warm_up_s)
    meter.begin()
    time.sleep(task.seconds)
    meter.end()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Task.read())
