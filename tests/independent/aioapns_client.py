"""aioapns, served by the simulators whose announcement stands in the file named first; it prints what it was told.

Runs in an environment of its own. The second argument: to which devices to send, and how many at once to the first.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aioapns import APNs, NotificationRequest, PushType
from aioapns.connection import APNsProductionClientProtocol


async def main(apns: dict[str, str], key: str, asked: dict[str, Any]) -> None:
    """Send, and print status and description of each answer."""
    endpoint = urlsplit(apns["endpoint"])
    APNsProductionClientProtocol.APNS_SERVER = endpoint.hostname
    APNsProductionClientProtocol.APNS_PORT = endpoint.port
    client = APNs(
        key=key,
        key_id=apns["key_id"],
        team_id=apns["team_id"],
        topic=apns["topic"],
        max_connections=1,
        ssl_context=ssl.create_default_context(cafile=apns["ca_file"]),
    )

    def request(device: str, title: str) -> NotificationRequest:
        message = {"aps": {"alert": {"title": title}}}
        return NotificationRequest(device, message, push_type=PushType.ALERT, collapse_key="c", time_to_live=60)

    answers = [await client.send_notification(request(device, "one")) for device in asked["devices"]]
    many = [request(asked["devices"][0], "many") for _ in range(asked["at_once"])]
    answers += await asyncio.gather(*map(client.send_notification, many))
    client.pool.close()
    sys.stdout.write(json.dumps([[answer.status, answer.description] for answer in answers]))


announced = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["apns"]
asyncio.run(main(announced, Path(announced["key_file"]).read_text(encoding="utf-8"), json.loads(sys.argv[2])))
