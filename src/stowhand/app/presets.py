"""What a preset says of workers: the values of the table of settings, for those inside a program too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stowhand.app.settings.definitions import PRESETS, SETTINGS
from stowhand.protocols.options import WorkerOptions
from stowhand.retry import named

GRACE = 25.0
"""Seconds."""
SERVICE = "service"
"""The preset with which a stop lets what runs end."""
_NAMED = {"concurrency": "jobs", "job_timeout": "timeout"}
"""Fields of WorkerOptions that are called otherwise as settings."""


def preset_options(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker inside a program has by its preset, by the fields of ``WorkerOptions``; what is given wins."""
    said = PRESETS[preset]
    settings = {field: _NAMED.get(field, field) for field in WorkerOptions.__struct_fields__}
    values: dict[str, Any] = {
        field: SETTINGS[name].parse(said[name]) for field, name in settings.items() if name in said
    }
    values |= given
    if "backoff" in values:
        values["backoff"] = named(values["backoff"])
    return {"grace": grace_of(preset, values.get("job_timeout"))} | values


def grace_of(preset: str, timeout: float | None) -> float:
    """Where nobody says, in seconds. ``timeout``: of attempts."""
    return (timeout if preset == SERVICE else None) or GRACE
