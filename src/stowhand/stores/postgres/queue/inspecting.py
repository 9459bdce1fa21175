"""Shows what there is: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import COUNTED, Amount, Figures, Pauses, Tallies
from stowhand.protocols.operating import (
    MAX_OVERDUE_JOBS,
    MOST_AHEAD,
    OVERDUE_SECONDS,
    Explanation,
    QueueRow,
    TaskRow,
)
from stowhand.protocols.queue_store import FAILURES_MOST, Failures
from stowhand.protocols.throughput import MOST_TASKS, Period
from stowhand.protocols.validation import validate_id, validate_step
from stowhand.stores.database.link import Values
from stowhand.stores.explaining import Busy, ClaimScope, Facts, Holder, claim_scope, explain
from stowhand.stores.kernel.inspector import Inspector as KernelInspector
from stowhand.stores.known_tasks import COUNTED_FOR, known_tasks
from stowhand.stores.periods import periods
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.reader import Reader
from stowhand.stores.postgres.queue.rows import Row, read_job
from stowhand.stores.postgres.shared.array_literals import text_array

_numbers = msgspec.json.Decoder(dict[str, int])


class Inspector(KernelInspector):
    """For people. Every call is a transaction of its own."""

    def __init__(self, context: PostgresContext) -> None:
        super().__init__(Reader(context))
        self._context = context

    async def failures(self) -> Sequence[Failures]:
        """By the last entry of each."""
        return [Failures(*row) for row in await self._ask_with("failures", {"most": FAILURES_MOST})]

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state."""
        counts = dict.fromkeys(State, 0)
        for state, number in await self._ask("counts"):
            counts[State(state)] += number
        return counts

    async def amounts(self) -> dict[State, Amount]:
        """Exact up to 10,000 of a state."""
        return await self._amounts(COUNTED)

    async def _amounts(self, most: int) -> dict[State, Amount]:
        counted = await self._ask("count_states", most)
        return {State(state): Amount.up_to(most, number) for state, number in counted}

    async def oldest_due(self) -> float:
        """Seconds since the job that is due longest became due."""
        ((seconds,),) = await self._ask("oldest_due", self._context.now())
        return float(seconds)

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        """Ids, the oldest first."""
        wanted = None if tasks is None else text_array(tasks)
        found = await self._ask("overdue", wanted, seconds, MAX_OVERDUE_JOBS, self._context.now())
        return [job_id for (job_id,) in found]

    async def queues(self, *, paused: bool = False) -> Sequence[QueueRow]:
        """By name."""
        asked = {"now": self._context.now(), "most": FAILURES_MOST}
        return [QueueRow(*row) for row in await self._ask_with("queues_paused" if paused else "queues", asked)]

    async def figures(self, most: int = COUNTED) -> Figures:
        """By indexes."""
        standing = await self._standing(most)
        return Figures(
            states=await self._amounts(most),
            tasks=standing["task"].live(),
            queues=standing["queue"].live(),
            workers=standing["worker"].live(),
            paused=dict(await self._ask("paused_queues")),
            pauses=await self.pauses(),
        )

    async def _standing(self, most: int) -> dict[str, Tallies]:
        standing: defaultdict[str, Tallies] = defaultdict(Tallies)
        for what, name, part, number, more in await self._ask("live_counts", most, self._context.now()):
            standing[what].add(name, part, Amount(number, more))
        return standing

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """What ended in that time, by time and task."""
        length = validate_step(since, until, step)
        asked = "throughput" if by_task or task is not None else "total_throughput"
        found = await self._ask_with(asked, {"since": since, "until": until, "task": task})
        rows = [(seconds, begins, name, _numbers.decode(tally)) for seconds, begins, name, tally in found]
        return periods(rows, length, by_task=by_task)

    async def pauses(self) -> Pauses:
        """By name."""
        return Pauses(tasks=dict(await self._ask("pauses")))

    async def tasks(self) -> Sequence[TaskRow]:
        """By name."""
        now = self._context.now()
        standing = (await self._standing(COUNTED))["task"].live(MOST_TASKS)
        counted = [task for (task,) in await self._ask("counted_tasks", now, COUNTED_FOR)]
        return known_tasks(standing, counted, await self.workers(), await self.pauses())

    async def explain(self, job_id: int) -> Explanation | None:
        """From several statements, a moment apart: for people, who need no snapshot."""
        found = await self._ask("get", validate_id(job_id))
        if not found:
            return None
        job: Job = read_job(found[0])
        around = await self._ask("circumstances", self._context.now(), job.id)
        if not around:  # it is over
            return explain(Facts(job=job, now=job.run_at))
        ((at, lease_until, paused, holder, worker, since, until, expires_at, on_failure),) = around
        held = None if holder is None else Holder(holder, worker, since, until)
        workers, pauses = await self.workers(), await self.pauses()
        return explain(
            Facts(
                job=job,
                now=at,
                lease_until=lease_until,
                paused_since=paused,
                pauses=pauses,
                holder=held,
                ahead=await self._ahead(job, claim_scope(job, workers, pauses), at),
                workers=workers,
                busy={name: Busy(*held) for name, *held in await self._ask("busy")},
                expires_at=expires_at,
                on_failure=on_failure,
            )
        )

    async def _ahead(self, job: Job, scope: ClaimScope | None, at: datetime) -> int:
        if scope is None:
            return 0
        given = {
            "queue": job.queue,
            "priority": job.priority,
            "run_at": job.run_at,
            "id": job.id,
            "at": at,
            "tasks": None if scope.tasks is None else text_array(scope.tasks),
            "forbidden": text_array(scope.forbidden),
            "most": MOST_AHEAD + 1,
        }
        ((ahead,),) = await self._ask_with("ahead", given)
        return int(ahead)

    async def _ask(self, name: str, *values: object) -> list[Row]:
        return await self._ask_with(name, values)

    async def _ask_with(self, name: str, values: Values) -> list[Row]:
        with self._context.translated():
            return await self._context.ask("inspect", name, values, row="the queue")
