"""A task that has no use for helpers leaves them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def task_1(payload: dict[str, Any]) -> None:
    Path("task_1.txt").write_text(f"{payload}\n")  # noqa: ASYNC240 - so little that nobody waits
