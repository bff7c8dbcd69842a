"""The base of the sections of `notifier.yaml`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A mapping of the file. It refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_not_empty(cls, value: object, info: ValidationInfo) -> object:
        """Refuse an empty key: the author may have forgotten its value. Null passes if it may remove a default."""
        field = cls.model_fields[info.field_name or ""]
        if value is None and not field.is_required() and field.get_default(call_default_factory=True) is None:
            raise ValueError("is empty; give a value, or delete the key")
        return value

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return the keys as they are written in the file, with the type of each."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}
