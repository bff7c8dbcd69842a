"""firebase-admin, served by the simulators whose announcement stands in the file named first; prints what it was told.

Runs in an environment of its own. One constant of it is changed: the address of FCM.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import firebase_admin
from firebase_admin import credentials, messaging


def main(fcm: dict[str, str], asked: dict[str, Any]) -> dict[str, Any]:
    """Send; the answers."""
    os.environ["REQUESTS_CA_BUNDLE"] = fcm["ca_file"]
    messaging._MessagingService.FCM_URL = fcm["endpoint"] + "/v1/projects/{0}/messages:send"
    firebase_admin.initialize_app(credentials.Certificate(fcm["service_account"]))

    def message(title: str, device: str = asked["device"], **fields: Any) -> messaging.Message:
        return messaging.Message(notification=messaging.Notification(title=title), token=device, **fields)

    def android(priority: str) -> messaging.AndroidConfig:
        return messaging.AndroidConfig(priority=priority, ttl=timedelta(seconds=60), collapse_key="c")

    def refusal(wrong: messaging.Message) -> str:
        try:
            return str(messaging.send(wrong))
        except firebase_admin.exceptions.FirebaseError as error:
            return type(error).__name__

    good = [
        message("one"),
        message("urgent", data={"n": "1"}, android=android("high")),
        message("calm", android=android("normal")),
        messaging.Message(data={"n": "1"}, token=asked["device"]),
    ]
    wrong = [
        message("gone", asked["gone"]),
        message("bad", asked["bad"]),
        message("reserved", data={"google.x": "1"}),
    ]
    return {
        "taken": [messaging.send(each) for each in good],
        "dry_run": messaging.send(message("dry"), dry_run=True),
        "refused": [refusal(each) for each in wrong],
        "many": messaging.send_each([message("many") for _ in range(asked["at_once"])]).success_count,
    }


announced = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["fcm"]
sys.stdout.write(json.dumps(main(announced, json.loads(sys.argv[2]))))
