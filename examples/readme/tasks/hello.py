"""The task ``hello``: the name of the file."""

from __future__ import annotations

from typing import Any

from stowhand.runner import Helpers


async def hello(payload: dict[str, Any], helpers: Helpers) -> None:
    helpers.logger.info(f"Hello, {payload['name']}")
