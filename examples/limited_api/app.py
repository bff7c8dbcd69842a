"""A program in FastAPI whose routes are limited; `notifier serve` shows who used them.

uvicorn app:app
"""

from __future__ import annotations

from pathlib import Path

from fastapi import Depends, FastAPI

from notifier.limiter import AsyncLimiter
from notifier.limiter.middleware import ASGILimits, WebLimit, api_key
from notifier.limiter.middleware.fastapi import rate_limit

CONFIG = Path(__file__).with_name("notifier.yaml")
limiter = AsyncLimiter.from_config(CONFIG, namespace="web", usage_keep="7d")

app = FastAPI()
app.add_middleware(ASGILimits, limiter, WebLimit("all", "all"))


@app.get("/")
async def home() -> dict[str, str]:
    """Anybody may ask, as often as `limits.all` says."""
    return {"hello": "world"}


@app.post("/login", dependencies=[Depends(rate_limit(limiter, WebLimit("login", "login")))])
async def login() -> dict[str, bool]:
    """`limits.login`, by the address of the client."""
    return {"ok": True}


@app.get("/export", dependencies=[Depends(rate_limit(limiter, WebLimit("export", "export", key=api_key("x-api-key"))))])
async def export() -> dict[str, int]:
    """`limits.export`, by the key in the header X-API-Key."""
    return {"rows": 1000}
