"""A task may be a plain function: it runs in a thread, and its helpers need no ``await``."""

from __future__ import annotations

import json
from typing import Any

from stowhand.runner import BlockingHelpers


def task_2(payload: dict[str, Any], helpers: BlockingHelpers) -> None:
    helpers.logger.debug(f"Received {json.dumps(payload)}")
