"""What people ask of a store."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import Job
from stowhand.protocols.operating import HELD_SHOWN, AppVersion, Held, WorkerRow
from stowhand.protocols.queue_store import NEWEST, JobFilter
from stowhand.protocols.searching import ANY, NOTHING, Found, Search
from stowhand.protocols.validation import validate_filter, validate_search
from stowhand.stores.kernel.lists import list_jobs
from stowhand.stores.kernel.question import Engine
from stowhand.stores.kernel.search import search
from stowhand.stores.kernel.workers import list_app_versions, list_held, list_workers


class Inspector:
    """Looks at jobs, queues and workers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order, rising or falling."""
        valid = validate_filter(wanted)
        return await self._engine.answer(lambda: list_jobs(self._engine, valid))

    async def search(self, wanted: Search = ANY) -> Found:
        """Piece by piece, beside all other reads."""
        valid = validate_search(wanted)
        if valid is None:
            return NOTHING
        return await self._engine.answer(lambda: search(self._engine, valid), is_long=True)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._engine.answer(lambda: list_workers(self._engine))

    async def held(self, each: int = HELD_SHOWN) -> Sequence[Held]:
        """By worker."""
        return await self._engine.answer(lambda: list_held(self._engine, each))

    async def app_versions(self) -> Sequence[AppVersion]:
        """By time."""
        return await self._engine.answer(lambda: list_app_versions(self._engine))
