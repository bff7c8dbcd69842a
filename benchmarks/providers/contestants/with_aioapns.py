"""aioapns, as it comes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from aioapns import APNs, NotificationRequest, PushType
from aioapns.connection import APNsProductionClientProtocol

from benchmarks.providers.task import BODY, KEY_ID, TEAM_ID, TITLE, TOPIC, Task, device_token, keep_in_flight


async def main(task: Task) -> None:
    """Send until the time is over."""
    APNsProductionClientProtocol.APNS_SERVER = "127.0.0.1"
    APNsProductionClientProtocol.APNS_PORT = task.port
    tls = ssl.create_default_context(cafile=task.ca_file)
    tls.set_alpn_protocols(["h2"])
    key = (Path(task.folder) / f"AuthKey_{KEY_ID}.p8").read_text(encoding="utf-8")
    client = APNs(key=key, key_id=KEY_ID, team_id=TEAM_ID, topic=TOPIC, ssl_context=tls)
    message = {"aps": {"alert": {"title": TITLE, "body": BODY}}}

    async def send(number: int) -> str:
        request = NotificationRequest(device_token(number), message, push_type=PushType.ALERT)
        result = await client.send_notification(request)
        return "" if result.is_successful else str(result.description)

    await keep_in_flight(task, send)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(main(Task.read()))
