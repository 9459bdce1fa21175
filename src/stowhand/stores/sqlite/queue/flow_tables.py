"""The tables of flows in the file. Each call is one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs import limits
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_tables import (
    CHILD_ID_PREFIX_FIELD,
    FLOW_KEY_PREFIX,
    IDLE_LIMITER_SECONDS,
    WAITER_TIMEOUT_SECONDS,
    NewFlow,
    ParentWakeup,
    RateLimitReply,
    RateLimitRequest,
    spend,
)
from stowhand.stores.kernel.steps import FlowSteps
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.administrator import remove_key
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.reader import Reader
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_ROWS_PER_PRUNE = 2000


class ParentPayload(msgspec.Struct):
    """The part of a parent's payload that its wake-up needs."""

    waits_for: list[str] | None = msgspec.field(default=None, name=CHILD_ID_PREFIX_FIELD)


_parent_payload = msgspec.json.Decoder(ParentPayload)


class SqliteFlowTables(FlowSteps):
    """Tables of flows on the store's connections."""

    def __init__(self, connections: Connections, *, keeps_history: bool) -> None:
        super().__init__(Reader(connections))
        self._connections = connections
        self.keeps_history = keeps_history

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> Sequence[str]:
        """Create all jobs or none."""
        checked = [msgspec.structs.replace(job, step=limits.check(job.step)) for job in jobs]
        return await self._connections.write(lambda tx: _create(tx, flow, checked), wakes=True)

    async def store_lists(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """Store lists for as long as the job is known."""
        await self._connections.write(lambda tx: _keep(tx, job_id, lists))

    async def read_list(self, list_id: str) -> str | None:
        """Return the content of a stored list; ``None`` if it is absent."""
        matches = await self._connections.column("kept", id=list_id)
        return matches[0] if matches else None

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """Return the ids of the jobs with this attribute, in id order."""
        return await self._connections.column("ids", flow=flow, attribute=attribute, value=value)

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that exist."""
        return set(await self._connections.column("exists", ids=as_json(ids)))

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """Return the newest job of each key, in the order of the keys."""
        return await self._connections.read(lambda tx: [_latest(tx, key) for key in keys])

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """Delete the job and its steps."""

        def delete(tx: Transaction) -> bool:
            deleted_count = tx.run("delete_flow", id=job_id, flow=flow).rowcount
            for key in keys:
                remove_key(tx, key)
                tx.run("delete_past_steps", key=key)
            return deleted_count > 0

        return await self._connections.write(delete)

    async def wake(self, key: str) -> ParentWakeup:
        """Make the parked parent due if its children have ended."""
        woken = await self._connections.write(lambda tx: _wake(tx, key))
        if woken is ParentWakeup.WOKEN:
            self._connections.wake.ring()
        return woken

    async def spend(self, request: RateLimitRequest) -> float:
        """Use the rate limiter. Return the seconds to wait, by this machine's clock."""
        return await self._connections.write(lambda tx: _spend(tx, request))


def prune(tx: Transaction, *, age: float) -> bool:
    """Delete a page of the entries of jobs without steps. Return True if there may be more.

    Each job is checked once in ``age`` seconds, so long-lived jobs (such as failed ones) do not delay others.
    """
    page = tx.rows("jobs_to_check", before=tx.now.wall - micros(age), limit=MAX_ROWS_PER_PRUNE)
    for job_id, key in page:
        tx.run("prune" if _latest(tx, key) is None else "set_checked", id=job_id)
    for statement in ("prune_waits", "prune_limits"):
        tx.run(statement, before=tx.now.wall - micros(IDLE_LIMITER_SECONDS))
    return len(page) == MAX_ROWS_PER_PRUNE


def _create(tx: Transaction, flow: str, jobs: Sequence[NewFlow]) -> list[str]:
    ids: list[str] = []
    with error_translation.refusing():
        for job in jobs:
            holder = None if job.key is None else tx.row("key_holder", flow=flow, key=job.key)
            ids.append(job.id if holder is None else holder[0])
            if holder is not None or not tx.run("create", id=job.id, flow=flow).rowcount:
                continue
            for attribute, value in job.lookups:
                tx.run("add_lookup", flow=flow, attribute=attribute, value=value, id=job.id)
            _keep(tx, job.id, job.lists)
            enqueue.add(tx, job.step)
    return ids


def _keep(tx: Transaction, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
    for list_id, content in lists:
        tx.run("keep", id=list_id, job=job_id, content=content)


def _latest(tx: Transaction, key: str) -> Job | None:
    row = tx.row("live_step", key=key) or tx.row("past_step", key=key)
    return None if row is None else to_job(row)


def _wake(tx: Transaction, key: str) -> ParentWakeup:
    row = tx.row("parked", key=key)
    names = None if row is None else _parent_payload.decode(row[3]).waits_for
    if row is None or names is None or row[1] == State.FAILED:
        return ParentWakeup.GONE
    # The key of each child continues with hexadecimal digits, which sort before "g".
    if any(tx.row("is_open", min_key=FLOW_KEY_PREFIX + name, max_key=f"{FLOW_KEY_PREFIX}{name}g") for name in names):
        return ParentWakeup.OPEN
    if row[1] == State.PROCESSING:
        return ParentWakeup.RUNNING
    tx.run("make_due", id=row[0])
    return ParentWakeup.WOKEN


def _spend(tx: Transaction, request: RateLimitRequest) -> float:
    key = {"limiter": request.limiter, "part": request.part}
    before = RateLimitReply(*(tx.row("limit", **key) or (0, 0, 0)))
    forgiven = tx.now.wall - micros(request.interval + WAITER_TIMEOUT_SECONDS)
    came_back = request.holder in tx.column("forgive", holder=request.holder, forgiven=forgiven, **key)
    spent = spend(tx.now.wall / 1_000_000, before, request, came_back=came_back)
    if spent.wait > 0:
        tx.run("note_wait", holder=request.holder, ready_at=tx.now.after(spent.wait), **key)
    tx.run("note_limit", slot=spent.slot, calls=spent.calls, waiting=spent.following, **key)
    return spent.wait
