"""Shows what there is: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import msgspec

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import COUNTED, Amount, Figures, Pauses, Tallies
from stowhand.protocols.operating import (
    HELD_SHOWN,
    MAX_OVERDUE_JOBS,
    MOST_AHEAD,
    OVERDUE_SECONDS,
    AppVersion,
    Explanation,
    Held,
    QueueRow,
    TaskRow,
    WorkerCard,
    WorkerRow,
    worker_row,
)
from stowhand.protocols.queue_store import FAILURES_MOST, NEWEST, Failures, JobFilter
from stowhand.protocols.searching import (
    ABOVE_ALL,
    ANY,
    FIRST_PIECE,
    HISTORY,
    LIVE,
    NOTHING,
    Found,
    Place,
    Search,
    micros_of,
    moment_of,
)
from stowhand.protocols.throughput import MOST_TASKS, Period
from stowhand.protocols.validation import validate_filter, validate_id, validate_search, validate_step
from stowhand.stores.database.link import Values
from stowhand.stores.explaining import Busy, ClaimScope, Facts, Holder, claim_scope, explain
from stowhand.stores.known_tasks import COUNTED_FOR, known_tasks
from stowhand.stores.periods import periods
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import Row, read_job
from stowhand.stores.postgres.shared.array_literals import text_array
from stowhand.stores.searching import Part, SearchProgress

_numbers = msgspec.json.Decoder(dict[str, int])
_NAMES = ("task", "queue", "key", "worker", "error", "since", "until", "limit")


class Inspector:
    """For people. Every call is a transaction of its own."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order, rising or falling."""
        wanted = validate_filter(wanted)
        found = await self._ask_with("newest" if wanted.newest_first else "list", _parameters(wanted))
        return [read_job(row) for row in found]

    async def search(self, wanted: Search = ANY) -> Found:
        """Search the live jobs, then the history."""
        valid = validate_search(wanted)
        if valid is None:
            return NOTHING
        progress = SearchProgress(valid)
        while (part := progress.next_part()) is not None:
            progress.add(*await self._search_part(valid, part))
        if progress.is_complete:
            return progress.found(Amount())
        ((number,),) = await self._ask("searchable", sorted(valid.wanted), COUNTED)
        return progress.found(Amount.up_to(COUNTED, number))

    async def _search_part(self, wanted: Search, part: Part) -> tuple[builtins.list[Job], int, Place | None]:
        at = part.place.at
        values = msgspec.structs.asdict(wanted) | {
            "states": [*part.states],
            "below": part.place.id,
            "at": None if at is None else "infinity" if at == ABOVE_ALL else moment_of(at),
            "limit": part.limit,
            "budget": part.budget,
            "rows": FIRST_PIECE,
        }
        rows = await self._ask_with("search", values)
        *_, examined, next_id, next_at = rows[0]
        jobs = [read_job(row[:-3]) for row in rows if row[0] is not None]
        jobs.sort(key=lambda job: job.id, reverse=True)
        if wanted.by_failure:
            jobs.sort(key=lambda job: job.finished_at or job.created_at, reverse=True)
        if next_id is None:
            return jobs, examined, None
        at = None if next_at is None else micros_of(next_at)
        return jobs, examined, Place(in_history=part.place.in_history, id=next_id, at=at)

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

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return [_worker(row) for row in await self._ask("workers", self._context.now())]

    async def held(self, each: int = HELD_SHOWN) -> Sequence[Held]:
        """By worker."""
        found: dict[str, tuple[Amount, builtins.list[Job]]] = {}
        for *columns, number, every in await self._ask_with("held", {"each": each, "most": COUNTED}):
            job, least = read_job(tuple(columns)), every == COUNTED
            found.setdefault(job.worker or "", (Amount(number, least), []))[1].append(job)
        return [Held(worker=worker, jobs=number, longest=jobs) for worker, (number, jobs) in found.items()]

    async def app_versions(self) -> Sequence[AppVersion]:
        """By time."""
        return [AppVersion(*row) for row in await self._ask("app_versions")]

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

    async def _ask(self, name: str, *values: object) -> builtins.list[Row]:
        return await self._ask_with(name, values)

    async def _ask_with(self, name: str, values: Values) -> builtins.list[Row]:
        with self._context.translated():
            return await self._context.ask("inspect", name, values, row="the queue")


def _parameters(wanted: JobFilter) -> dict[str, object]:
    """Of each of the two tables: whether it is read at all, and for which states; NULL for all that it keeps."""
    parameters: dict[str, object] = {name: getattr(wanted, name) for name in _NAMES}
    parameters["after"] = wanted.after or (ABOVE_ALL if wanted.newest_first else 0)
    states = set(wanted.states or LIVE)
    for table, kept in (("live", LIVE), ("history", HISTORY)):
        here = [state.value for state in kept if state in states]
        parameters[table] = bool(here)
        parameters[f"{table}_states"] = None if len(here) == len(kept) else here
    return parameters


def _worker(row: Row) -> WorkerRow:
    name, host, pid, version, tasks, concurrency, stopping, flags, *more, started_at, seen_at, now = row
    card = WorkerCard(name, host, pid, version, _tuple(tasks), concurrency, stopping, _tuple(flags), *more)
    return worker_row(card, started_at, seen_at, now)


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
