"""ntfy (https://ntfy.sh) as a platform of push-throttle: a device's token is the topic that its phone listens to."""

import json
import re
from typing import Any, Literal

from notifier import Device
from notifier.providers import (
    Answer,
    Build,
    Dispatch,
    File,
    HttpsEndpoint,
    Outcome,
    Platform,
    PlatformLimits,
    PlatformSettings,
    Pool,
    Provider,
    Rate,
    Section,
    Table,
    Turns,
    http1_lives,
    tls_context,
)

MAX_BYTES = 4096
MINUTE_US = 60_000_000

ANSWERS = Table(
    by_status={
        200: Outcome.DELIVERED,
        401: Outcome.FAULT,
        403: Outcome.FAULT,
        410: Outcome.DEAD_TOKEN,
        429: Outcome.BUSY,
    },
    by_class={3: Outcome.FAULT, 4: Outcome.REJECTED, 5: Outcome.UNKNOWN},
    wait_us={Outcome.BUSY: MINUTE_US, Outcome.FAULT: MINUTE_US, Outcome.UNKNOWN: MINUTE_US},
)


class NtfyApp(Section):
    """What tells one of ntfy's servers from another."""

    access_token: str = ""  # sent with each message; the variable NTFY_TOKEN goes before it
    endpoint: HttpsEndpoint = "https://ntfy.sh"
    ca_file: File | None = None  # the certificates to trust in place of the system's


class NtfySettings(PlatformSettings[NtfyApp], NtfyApp):
    """ntfy. `client: console` prints and needs no other key."""

    platform = "ntfy"
    identity = "endpoint"

    client: Literal["http", "console"] = "http"
    rate: Rate | None = None  # what the server admits of all messages together

    @property
    def in_force(self) -> PlatformLimits:
        return PlatformLimits(project=self.rate)


class Ntfy(Platform):
    """What is asked before anything is sent."""

    name = "ntfy"

    def token_problem(self, token: str) -> str:
        return "" if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", token) else "is not a topic: 1 to 64 letters, digits, _ and -"

    def settings(self) -> type[NtfySettings]:
        return NtfySettings

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        mine = settings.app(app)
        token = build.environ.get("NTFY_TOKEN") or mine.access_token
        return NtfyProvider(mine.endpoint, token, mine.ca_file, mine.timeout_us / 1e6)

    def check(self, notification: Any) -> None:
        self.check_size(len(message(notification, "t" * 64)), MAX_BYTES)  # the longest topic


def message(notification: Any, topic: str) -> bytes:
    """What ntfy takes: https://docs.ntfy.sh/publish/#publish-as-json."""
    content = {
        **notification.data,  # first, so that it never names another topic
        "topic": topic,
        "title": notification.title or "",
        "message": notification.body or "",
    }
    return json.dumps(content, ensure_ascii=False).encode()


class NtfyProvider:
    """Sends, one try for each message; `Pool` turns all trouble of networks into answers."""

    platform = "ntfy"

    def __init__(self, endpoint: str, token: str, ca_file: Any, timeout_s: float) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._headers = lambda: headers  # so that no print of this object shows the token
        self._origin, self._timeout_s = endpoint, timeout_s
        self._pool = Pool(
            "ntfy", tls=tls_context(ca_file, "providers.ntfy.ca_file"), timeout_s=timeout_s, max_connections=50
        )
        self._turns = Turns()

    async def send(self, dispatch: Dispatch) -> Answer:
        topic = dispatch.device.token
        try:
            body = message(dispatch.notification, topic)
        except ValueError:  # half of a surrogate pair: no request can carry it
            return Answer(Outcome.REJECTED, reason="NotUnicode")
        async with self._turns.turn(topic, dispatch.send_by) as mine:  # one device's messages arrive in order
            if not mine:
                return Answer(Outcome.UNSENT, reason="TooLate")
            response = await self._pool.post(
                self._origin, body, self._headers(), origin=self._origin, send_by=dispatch.send_by
            )
        if isinstance(response, Answer):
            return response
        return ANSWERS.read(response.status, "", lambda name: response.headers.get(name, ""))

    def service(self, device: Device) -> str:  # noqa: ARG002
        return self._origin

    async def probe(self, device: Device) -> bool:  # noqa: ARG002
        return await http1_lives(self._origin, self._pool.tls, self._timeout_s)

    async def close(self) -> None:
        await self._pool.close()
