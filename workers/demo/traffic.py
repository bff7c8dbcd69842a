"""The notifications of the demo: invented people, invented tokens, the same ones at every run."""

from __future__ import annotations

import random
from typing import Any

USERS = 240
OVER_LIMIT = {"ada": 70, "grace": 70, "linus": 55, "barbara": 45}  # far over what one person may receive
QUIET_DEAD = 12  # users whose only token is dead
SECONDS = 12.0  # over which the traffic arrives
EXPIRING = 0.4  # the share of the chat of users in OVER_LIMIT that has an expiry
OLD_PHONE = 0.05  # the share of people who also have a dead device
SPACING = 0.5  # between two security messages of one user

TEXTS = {
    "chat": ("New message", "Are you coming tonight?"),
    "default": ("Your order", "It has left the warehouse."),
    "marketing": ("Only today", "Ten percent off all seeds."),
    "security": ("New sign-in", "Was it you, in Lyon?"),
}


def notifications() -> list[dict[str, Any]]:
    """Return the fields of each notification, and `at`: the seconds after the start at which it is enqueued."""
    dice = random.Random(20260101)  # noqa: S311 - nothing is secret
    people = [f"user-{n:03}" for n in range(USERS)] + list(OVER_LIMIT)
    devices = {name: _devices(dice, dead=index < QUIET_DEAD) for index, name in enumerate(people)}
    rows = list[dict[str, Any]]()
    for name in people:
        count = OVER_LIMIT.get(name) or dice.randint(6, 10)
        for _ in range(count):
            category = dice.choices(list(TEXTS), weights=[5, 6, 3, 1])[0]
            title, body = TEXTS[category]
            at = dice.uniform(0, 2.0) if name in OVER_LIMIT else dice.uniform(0, SECONDS)
            row: dict[str, Any] = {"at": round(at, 3), "user": name, "category": category, "title": title, "body": body}
            if category == "chat" and name in OVER_LIMIT and dice.random() < EXPIRING:
                row["expires_in"] = 2.0
            rows.append(row | {"devices": devices[name]})
    # Only sends with a gap between them keep their order at the wire. Security messages bypass all limits: space them.
    last: dict[str, float] = {}
    rows.sort(key=lambda row: row["at"])
    return [row for row in rows if row["category"] != "security" or _apart(last, row["user"], row["at"])]


def _apart(last: dict[str, float], user: str, at: float) -> bool:
    apart = at - last.get(user, -1.0) >= SPACING
    if apart:
        last[user] = at
    return apart


def _devices(dice: random.Random, *, dead: bool) -> list[dict[str, str]]:
    def apns(prefix: str = "") -> dict[str, str]:
        return {"platform": "apns", "token": prefix + dice.randbytes(32).hex()[len(prefix) :]}

    def fcm(prefix: str = "") -> dict[str, str]:
        return {"platform": "fcm", "token": f"{prefix}{dice.randbytes(11).hex()}:APA91b{dice.randbytes(40).hex()}"}

    if dead:
        return [dice.choice([apns, fcm])("dead")]
    found = [dice.choice([apns, fcm])() for _ in range(dice.choices([1, 2, 3], weights=[6, 3, 1])[0])]
    # An old phone that the person no longer has.
    return [*found, apns("dead")] if dice.random() < OLD_PHONE else found
