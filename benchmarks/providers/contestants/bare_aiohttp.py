"""The ceiling of a client on aiohttp: one session, a connection for each send in flight, and nothing else."""

from __future__ import annotations

import asyncio
import json
import ssl

import aiohttp

from benchmarks.providers.task import BODY, TITLE, Task, device_token, keep_in_flight

MESSAGE = {"message": {"token": device_token(0), "notification": {"title": TITLE, "body": BODY}}}


async def main(task: Task) -> None:
    """Send until the time is over."""
    url = f"https://127.0.0.1:{task.port}/v1/projects/benchmark/messages:send"
    headers = {"Authorization": "Bearer " + "x" * 40, "Content-Type": "application/json"}
    data = json.dumps(MESSAGE, separators=(",", ":")).encode()
    connector = aiohttp.TCPConnector(limit=task.in_flight, ssl=ssl.create_default_context(cafile=task.ca_file))
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def send(_: int) -> str:
            async with session.post(url, data=data, headers=headers) as response:
                await response.read()
                return "" if response.ok else str(response.status)

        await keep_in_flight(task, send)


if __name__ == "__main__":
    asyncio.run(main(Task.read()))
