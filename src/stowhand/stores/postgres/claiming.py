"""Claims, on a connection of their own. They commit asynchronously (000003), so nothing else may share it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from stowhand.clock import stopwatch
from stowhand.database.address import DEADLINE
from stowhand.database.link import Link, Row
from stowhand.job import Job
from stowhand.store import Claim, ClaimRequest
from stowhand.stores.postgres.floor import Floor, Position
from stowhand.stores.postgres.home import Home
from stowhand.stores.postgres.rows import read_claim

_UNFINISHED = 0
"""The id of the row that says: the walk over busy queues was cut short; ask again."""
_ROUNDS = 60
_TASK_SETS = 16
_ORDER = itemgetter(4, 5, 0)
_QUEUE = 3


class Claims:
    """Takes due jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = Link(home.dialer, lambda: home.role("claim"))
        self._floors: dict[tuple[str, ...] | None, Floor] = {}

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Due jobs in the order (priority, run_at, id), now processing under the request's token."""
        self._home.worker = request.worker
        self._home.patience = min(max(request.lease / 4, 1.0), DEADLINE)
        if request.limit < 1:
            return []
        floor = self._floor(request)
        for _ in range(_ROUNDS):
            began = stopwatch()
            start = floor.start(began) if floor is not None else None
            found = await self._ask(request, start)
            if found and found[0][0] == _UNFINISHED:
                continue
            found.sort(key=_ORDER)
            ended = stopwatch()
            if floor is not None and floor.note(
                start, _last_free(found), jobs=len(found), took=ended - began, now=ended
            ):
                continue
            return [read_claim(row, request.worker, request.token) for row in found]
        return []

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

    def _floor(self, request: ClaimRequest) -> Floor | None:
        """One per set of tasks. None for a claim with conditions: it may pass over what the next one may take."""
        if request.suspects or request.forbidden_flags or self._home.now() is not None:
            return None
        if len(self._floors) >= _TASK_SETS and request.tasks not in self._floors:
            self._floors.clear()
        return self._floors.setdefault(request.tasks, Floor())

    async def _ask(self, request: ClaimRequest, start: Position | None) -> list[Row]:
        values = (
            request.worker,
            request.token,
            request.limit,
            request.lease,
            None if request.tasks is None else list(request.tasks),
            list(request.forbidden_flags) or None,
            request.suspects,
            self._home.now(),
            *(start or (None, None, None)),
        )
        with self._home.translated():
            return await self._link.rows(self._home.statements["claim"], values)


def _last_free(found: Sequence[Row]) -> Position | None:
    """The position of the last job without a queue: floors are about those."""
    for row in reversed(found):
        if row[_QUEUE] is None:
            priority, run_at, job_id = _ORDER(row)
            return priority, run_at, job_id
    return None
