"""The task ``hello``.

Try ``stowhand worker --tasks examples/tasks`` and ``stowhand enqueue hello '{"name": "Ada"}'``.
"""

from __future__ import annotations

from typing import Any

from stowhand.runner import Helpers


async def hello(payload: dict[str, Any], helpers: Helpers) -> None:
    name = payload.get("name", "world")
    helpers.logger.info(f"Hello, {name}")
    await helpers.add_job("mail/send", {"to": name}, key=f"greeting {name}")
