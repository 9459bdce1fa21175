"""The statements of one question see one moment, whatever workers write between them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from stowhand.jobs.job import NewJob
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.kernel.inspector import Inspector
from stowhand.stores.kernel.question import Question, count_some
from stowhand.stores.url import open_store
from tests.conftest import Run


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_job_that_is_claimed_between_two_statements_is_counted(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, run: Run
) -> None:
    url = str(request.getfixturevalue("postgres_url")) if kind == "postgres" else f"sqlite:///{tmp_path}/jobs.db"

    async def claim() -> None:
        store = open_store(url)
        await store.open()
        request = ClaimRequest(worker="w", token=str(uuid4()), limit=1, lease=60.0, tasks=("t",))
        try:
            (_claim,) = await store.claim(request)
        finally:
            await store.close()

    def count() -> Question[int]:
        running = yield from count_some("{running}", 10)
        claimer = threading.Thread(target=asyncio.run, args=(claim(),))
        claimer.start()
        claimer.join()
        ready = yield from count_some("{ready}", 10)
        return running + ready

    async def scenario() -> None:
        store = open_store(url)
        await store.schema.install()
        await store.open()
        try:
            await store.jobs.enqueue(NewJob(task="t"))
            assert isinstance(store.inspect, Inspector)
            assert await store.inspect._engine.answer(count) == 1
        finally:
            await store.close()

    run(scenario())
