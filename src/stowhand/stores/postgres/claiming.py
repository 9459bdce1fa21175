"""Claims, on a connection of their own. They commit asynchronously (000003), so nothing else may share it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from stowhand.database.link import Link, Row
from stowhand.job import Job
from stowhand.store import Claim, ClaimRequest
from stowhand.stores.postgres.home import Home
from stowhand.stores.postgres.rows import read_claim

_UNFINISHED = 0
"""The id of the row that says: the walk over busy queues was cut short; ask again."""
_ROUNDS = 60
_ORDER = itemgetter(4, 5, 0)


class Claims:
    """Takes due jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = Link(home.dialer, lambda: home.role("claim"))

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Due jobs in the order (priority, run_at, id), now processing under the request's token."""
        self._home.worker = request.worker
        if request.limit < 1:
            return []
        for _ in range(_ROUNDS):
            found = await self._ask(request)
            if not found or found[0][0] != _UNFINISHED:
                break
        else:
            return []
        found.sort(key=_ORDER)
        return [read_claim(row, request.worker, request.token) for row in found]

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due."""
        with self._home.translated():
            ((due,),) = await self._link.rows(
                self._home.statements["next_due"], (None if tasks is None else list(tasks), self._home.now())
            )
        return None if due is None else float(due)

    async def close(self) -> None:
        """Let the connection go."""
        await self._link.close()

    async def _ask(self, request: ClaimRequest) -> list[Row]:
        values = (
            request.worker,
            request.token,
            request.limit,
            request.lease,
            None if request.tasks is None else list(request.tasks),
            list(request.forbidden_flags) or None,
            request.suspects,
            self._home.now(),
            None,
            None,
            None,
        )
        with self._home.translated():
            return await self._link.rows(self._home.statements["claim"], values)
