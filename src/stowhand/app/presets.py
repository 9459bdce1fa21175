"""Presets: defaults under one name, by the fields of ``WorkerOptions`` and ``StoreOptions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stowhand.protocols.options import WorkerOptions

SERVICE_PRESET = "service"
"""The preset whose grace equals the timeout, so that a stop lets running jobs finish."""
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    SERVICE_PRESET: {
        "concurrency": 4,
        "poll_interval": "5s",
        "timeout": "300s",
        "max_attempts": 5,
        "backoff": "service",
        "fair": True,
        "history": "14d",
        "failed_retention": "30d",
    },
}


def preset_worker(preset: str, keywords: Mapping[str, Any]) -> WorkerOptions:
    """Return the options of a worker: the keywords, then the preset's, then the defaults. Raises ConfigurationError."""
    preset_values = {name: value for name, value in PRESETS[preset].items() if name in WorkerOptions.__struct_fields__}
    options = WorkerOptions(**{**preset_values, **keywords})
    if preset == SERVICE_PRESET and options.timeout is not None and "grace" not in keywords:
        options = msgspec.structs.replace(options, grace=options.timeout)
    return options
