"""Shows what there is: jobs, counts, serial keys, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stowhand.protocols.throughput import Period
from stowhand.protocols.validation import validate_step
from stowhand.stores.kernel.inspector import Inspector as KernelInspector
from stowhand.stores.periods import periods
from stowhand.stores.sqlite.queue import throughput
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.reader import Reader


class Inspector(KernelInspector):
    """What ended is added up here."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(Reader(connections))
        self._connections = connections

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """What ended in that time, by time and task."""
        length = validate_step(since, until, step)
        return await self._connections.read_all(
            lambda tx: periods(throughput.read(tx, since, until, task), length, by_task=by_task)
        )
