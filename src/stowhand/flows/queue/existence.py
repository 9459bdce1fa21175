"""Asking whether jobs still exist, many at a time: while one question is on its way, the next ones pile up."""

from __future__ import annotations

import asyncio

from stowhand.protocols.flow_tables import FlowTables

MOST = 1000


class Existence:
    """Answers one by one what it asks in one call."""

    def __init__(self, tables: FlowTables) -> None:
        self._tables = tables
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._calling: asyncio.Task[None] | None = None

    async def has(self, job_id: str) -> bool:
        """Has it been created, and not been deleted? Raises what the store raises."""
        answer = self._asked.get(job_id)
        if answer is None:
            answer = self._asked[job_id] = asyncio.get_running_loop().create_future()
            if self._calling is None or self._calling.done():
                self._calling = asyncio.create_task(self._call(), name="flow roll")
        return await asyncio.shield(answer)

    async def _call(self) -> None:
        while self._asked:
            asked = dict(list(self._asked.items())[:MOST])
            self._asked = dict(list(self._asked.items())[MOST:])
            try:
                found = await self._tables.exists(list(asked))
            except Exception as error:  # noqa: BLE001 - each who asked gets it
                for answer in asked.values():
                    answer.set_exception(error)
                    answer.exception()  # whoever asked may be gone
            else:
                for job_id, answer in asked.items():
                    answer.set_result(job_id in found)
