"""Shows what there is: jobs, counts, serial keys, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from stowhand.protocols.throughput import Period
from stowhand.protocols.validation import validate_step
from stowhand.stores.kernel.inspector import Inspector as KernelInspector
from stowhand.stores.periods import periods
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.reader import Reader

_numbers = msgspec.json.Decoder(dict[str, int])


class Inspector(KernelInspector):
    """What ended is added up in the database."""

    def __init__(self, context: PostgresContext) -> None:
        super().__init__(Reader(context))
        self._context = context

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """What ended in that time, by time and task."""
        length = validate_step(since, until, step)
        asked = "throughput" if by_task or task is not None else "total_throughput"
        with self._context.translated():
            found = await self._context.ask("inspect", asked, {"since": since, "until": until, "task": task})
        rows = [(seconds, begins, name, _numbers.decode(tally)) for seconds, begins, name, tally in found]
        return periods(rows, length, by_task=by_task)
