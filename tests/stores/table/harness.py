"""What tests of the table's store do again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stowhand.clock import stopwatch
from stowhand.events import Events
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.table import AttemptStore, ExecutionLogEntry, TableOptions, TableStore
from stowhand.worker.worker import Worker
from tests.stores.table.conftest import Place

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
TOKEN = "11111111-1111-4111-8111-111111111111"


@dataclass
class Upload:
    id: int
    path: str
    size: int
    execution_logs: list[ExecutionLogEntry]


def options(**given: Any) -> TableOptions[Any]:
    usual: dict[str, Any] = {"name": "uploads", "table_name": "uploads u", "record": Upload}
    return TableOptions(**(usual | given))


@asynccontextmanager
async def opened(place: Place, events: Events | None = None, **given: Any) -> AsyncIterator[TableStore[Any]]:
    async with TableStore(place.url, options(**given), events=events) as store:
        yield store


def asking(token: str = TOKEN, limit: int = 10, **given: Any) -> ClaimRequest:
    return ClaimRequest(worker="host/1/boot", token=token, limit=limit, lease=30.0, **given)


async def claimed(store: TableStore[Any], **given: Any) -> Sequence[Claim[Any]]:
    return await store.claim(asking(**given))


async def attempt(store: TableStore[Any]) -> tuple[Attempt[Any], AttemptStore[Any]]:
    (claim,) = await claimed(store, limit=1)
    instance = Attempt(claim, 0.0)
    assert store.around(instance) is None
    return instance, instance.store


async def until(reached: Callable[[], object], seconds: float = 20.0) -> None:
    """Look again and again; fails when it does not come to that."""
    end = stopwatch() + seconds
    while not reached():
        assert stopwatch() < end, "it did not come to that"
        await asyncio.sleep(0.01)


async def worked_off(store: TableStore[Any], handle: Any) -> None:
    await Worker(store, handle, WorkerOptions(once=True, poll_interval=0.05)).run()
