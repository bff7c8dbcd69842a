"""The base of the sections of `notifier.yaml`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the file: no key but its own, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """The keys as they are written in the file, with the type of each."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}
