"""One job from a script; the connection is made for it, and let go.

DATABASE_URL=postgresql:///my_db python examples/readme/quick_add_job.py
"""

from __future__ import annotations

import asyncio
import os

from stowhand.runner import quick_add_job

URL = os.environ.get("DATABASE_URL", "postgresql:///my_db")


async def main() -> None:
    job = await quick_add_job({"connection_string": URL}, "calculate-life-meaning", {"value": 42})
    print("added", job.id)


asyncio.run(main())
