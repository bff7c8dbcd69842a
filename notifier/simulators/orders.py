"""The orders that a simulator takes, and their checks."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from notifier.simulators.faults import FAULTS

LARGEST: Final = 2**31 - 1

Number = Annotated[float, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Do = Annotated[bool, AfterValidator(lambda value: value or _give_true())]
Share = Annotated[float, Field(ge=0, le=1)]


def _give_true() -> bool:
    raise ValueError("give true")


class Strict(BaseModel):
    """A model that converts no value to another type, and refuses unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Acts(Strict):
    """Acts that are done once."""

    listening: bool = True
    cut: Do = True
    expire_tokens: Do = True


class GoAway(Strict):
    """keep: the share of the open streams that are still answered."""

    reason: str = "Shutdown"
    keep: Share = 1


class Orders(Acts):
    """The settings of every simulator, which has attributes of the same names; see `Simulator`."""

    latency_ms: Number = 0
    rate: Number = 0
    fail: dict[str, Share] = {}
    silent: bool = False
    idle_s: Number = 0
    wrong_name: bool = False

    @field_validator("fail")
    @classmethod
    def _check_shares(cls, fail: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        for name in fail:
            if name not in FAULTS or info.context not in FAULTS[name].replies:
                raise ValueError(f"{name!r} is no fault of this platform; --faults lists them")
        if sum(fail.values()) > 1:
            raise ValueError("the shares are more than 1 in all")
        return fail


class ApnsOrders(Orders):
    """The settings of APNs."""

    max_streams: Count = 1
    window_bytes: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    window_updates: bool = True
    token_update_s: Number = 0
    go_away: Annotated[GoAway, BeforeValidator(lambda value: {} if value is True else value)] = GoAway()


class OauthOrders(Orders):
    """The settings of a service with a token endpoint."""

    token_lifetime_s: Count = 1


class ExpoOrders(Orders):
    """The settings of Expo."""

    rate_limit: Number = 0


def settings_of(orders: type[Orders]) -> list[str]:
    """Return the names of the settings that keep their values: all but the acts."""
    return [name for name in orders.model_fields if name not in {*Acts.model_fields, "go_away"}]
