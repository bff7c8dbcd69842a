"""A chat in FastAPI: a message is accepted without blocking the program, even while Redis hangs.

uvicorn app:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from notifier import AsyncNotifier, Device, InvalidNotificationError, Notification, OverloadedError, RedisUnusableError

CONFIG = Path(__file__).with_name("notifier.yaml")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One AsyncNotifier for as long as the program runs: it belongs to its event loop."""
    async with AsyncNotifier.from_config(CONFIG) as notifier:
        app.state.notifier = notifier
        yield


def get_notifier(request: Request) -> AsyncNotifier:
    """The dependency of the routes."""
    notifier: AsyncNotifier = request.app.state.notifier
    return notifier


app = FastAPI(lifespan=lifespan)
Push = Annotated[AsyncNotifier, Depends(get_notifier)]


class Message(BaseModel):
    """What one user writes to another."""

    to: str
    token: str
    text: str


@app.post("/messages", status_code=202)
async def send(message: Message, notifier: Push) -> dict[str, str]:
    """Accept a message. It goes when its receiver's limits allow."""
    try:
        device = Device("fcm", message.token)
        notification = Notification(user=message.to, devices=[device], title="New message", body=message.text)
        return {"job_id": await notifier.send(notification, timeout=2)}
    except InvalidNotificationError as error:
        raise HTTPException(422, str(error)) from error
    except (OverloadedError, RedisUnusableError) as error:
        raise HTTPException(503, "try again later") from error


@app.get("/messages/{job_id}")
async def show(job_id: str, notifier: Push) -> dict[str, str]:
    """What became of a message."""
    try:
        status = await notifier.status(job_id, timeout=2)
    except RedisUnusableError as error:
        raise HTTPException(503, "try again later") from error
    if status is None:
        raise HTTPException(404, "unknown, or no longer kept")
    return {"state": status.state}
