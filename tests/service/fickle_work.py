"""Tasks that cannot be loaded in a process for one job while the file named by ``UNLOADABLE`` is there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from stowhand.app.app import App

if Path(sys.argv[0]).stem == "quarantine_child" and Path(os.environ["UNLOADABLE"]).exists():
    raise SystemExit("not now")
app = App()


@app.task(name="innocent")
async def innocent() -> None:
    """Nothing."""


@app.task(name="leaver")
async def leaver() -> None:
    """Something that it started ends the process in the ordinary way."""

    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(leave(), asyncio.sleep(60))
