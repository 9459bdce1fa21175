"""A process that begins an attempt in a transaction, says so, and waits to be killed: ``URL idle|busy``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import uuid4

from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import ClaimRequest
from stowhand.table import TableStore
from tests.stores.table.postgres.attempts import WRITE, options

STALLED = {"idle": 60.0, "busy": 3.0}
"""Seconds that its transaction may be idle. In a third of them the server notices who dies while a statement runs."""


async def main(url: str, how: str) -> None:
    async with TableStore(url, options(stalled_max_age=STALLED[how])) as store:
        (claim,) = await store.claim(ClaimRequest(worker="w-9", token=str(uuid4()), limit=1, lease=30.0))
        attempt: Attempt[Any] = Attempt(claim, 0.0)
        around = store.around(attempt)
        assert around is not None
        async with around:
            await attempt.connection.execute(WRITE, (1, "half"))
            print("holding", flush=True)  # noqa: T201 - its parent reads it
            if how == "busy":
                await attempt.connection.execute("select pg_sleep(300)")
            await asyncio.sleep(300)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
