"""Presets for workers inside a program: the values of the settings of that name, as fields of ``WorkerOptions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stowhand.app.settings.definitions import PRESETS, SETTINGS
from stowhand.protocols.options import WorkerOptions
from stowhand.retry import named

GRACE = 25.0
"""Seconds."""
SERVICE = "service"
"""The preset whose grace is as long as the timeout, so that a stop lets running jobs end."""
_NAMED = {"concurrency": "jobs", "job_timeout": "timeout"}
"""Fields of WorkerOptions that are called otherwise as settings."""


def preset_options(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a worker inside a program: its preset's, unless given."""
    values_of_preset = PRESETS[preset]
    settings = {field: _NAMED.get(field, field) for field in WorkerOptions.__struct_fields__}
    values: dict[str, Any] = {
        field: SETTINGS[name].parse(values_of_preset[name])
        for field, name in settings.items()
        if name in values_of_preset
    }
    values |= given
    if "backoff" in values:
        values["backoff"] = named(values["backoff"])
    return {"grace": grace_of(preset, values.get("job_timeout"))} | values


def grace_of(preset: str, timeout: float | None) -> float:
    """The default grace, in seconds. ``timeout``: of attempts."""
    return (timeout if preset == SERVICE else None) or GRACE
