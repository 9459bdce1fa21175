"""Heartbeats of a lent store, with a connection of their own for the loop of the heartbeat thread.

The server finds dead workers and resets their jobs. A process that has seen a worker die (the supervisor of a child)
reports it, so that its jobs need not wait until their leases expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from stowhand.clock import SystemClock
from stowhand.errors import StoreUnreachable
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.jobs.task_limits import TaskDeclarations
from stowhand.protocols.attempt import Progress
from stowhand.protocols.operator import WorkerDescription
from stowhand.protocols.store import Foreign, Pulse, RefusedChange
from stowhand.remote.client.claims import HeldProofs
from stowhand.remote.client.http_caller import HttpCaller
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.wire import (
    HEARTBEAT_VERB,
    MAX_ITEMS,
    PROGRESS_VERB,
    RELEASE_VERB,
    RESET_VERB,
    TASKS_VERB,
    HeartbeatRequest,
    ProgressNote,
    ProgressRequest,
    Proof,
    ReleaseRequest,
    ResetRequest,
    TasksRequest,
)

MAX_NOTES_PER_CALL = 500
"""Maximum number of notes with texts of 200 characters that fits into a body."""


class HttpHeartbeats:
    """Heartbeats of a remote store. Bound to one event loop, and not safe for concurrent calls.

    Methods that call the server raise StoreUnreachable, and may be repeated.
    """

    def __init__(self, base: str, options: HttpOptions, proofs: HeldProofs) -> None:
        self._http = HttpCaller(base, options, SystemClock())
        self._proofs = proofs

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew the leases. The proofs of lost ones are dropped."""
        lost: set[Pair] = set()
        canceled: set[Pair] = set()
        busy: set[Pair] = set()
        for proofs in self._pages(leases):
            answer = await self._http.post(HEARTBEAT_VERB, HeartbeatRequest(leases=proofs, lease=lease))
            lost.update(answer.lost)
            canceled.update(answer.canceled)
            busy.update(answer.busy)
        self._proofs.end(lost)
        return Pulse(lost=frozenset(lost), canceled=frozenset(canceled), busy=frozenset(busy))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return jobs to the queue without using an attempt. Return the leases that are busy."""
        busy_leases: list[Lease] = []
        for proofs in self._pages(leases):
            busy = frozenset((await self._http.post(RELEASE_VERB, ReleaseRequest(leases=proofs))).busy)
            busy_leases += [proof.lease for proof in proofs if proof.lease.pair in busy]
            self._proofs.end(proof.lease.pair for proof in proofs if proof.lease.pair not in busy)
        return busy_leases

    async def abandon(self, token: str) -> bool:
        """Release the records of a claim without a reply. Only the worker token of the claim may do this."""
        abandoned = (await self._http.post(RELEASE_VERB, ReleaseRequest(token=token))).abandoned
        if abandoned:
            self._proofs.end_token(token)
        return abandoned

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Return an empty ``Foreign``: the server finds the expired leases of other workers."""
        return Foreign()

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Do nothing: the server resets jobs."""
        return ()

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Reset the jobs that this worker has claimed with the same worker token."""
        return (await self._http.post(RESET_VERB, ResetRequest(worker=worker))).jobs

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Reset the job of this lease."""
        done = await self._http.post(RESET_VERB, ResetRequest(leases=(self._proofs.of(lease),)))
        self._proofs.end([lease.pair])
        return done.jobs

    def refused(self) -> Sequence[RefusedChange]:
        """Return nothing: the server reports refusals."""
        return ()

    async def check(self) -> None:
        """Do nothing: the server checks the schema of the store that it lends."""

    async def check_writable(self) -> None:
        """Do nothing: the reply to a claim contains the server's error."""

    async def maintain(self) -> None:
        """Do nothing: the server maintains the store."""

    async def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        await self._http.close()

    def _pages(self, leases: Sequence[Lease]) -> Iterator[tuple[Proof, ...]]:
        for start in range(0, len(leases), MAX_ITEMS):
            yield tuple(self._proofs.of(lease) for lease in leases[start : start + MAX_ITEMS])


class QueueHeartbeats(HttpHeartbeats):
    """Heartbeats of a lent queue, which records progress and what tasks declare. It does not list remote workers."""

    _has_declared = False

    async def worker_seen(self, description: WorkerDescription, declarations: TaskDeclarations) -> None:
        """Declare the queues and limits of the worker's tasks, once."""
        if not self._has_declared:
            await self.declare_tasks(declarations)
            self._has_declared = True

    async def declare_tasks(self, declarations: TaskDeclarations) -> None:
        """Send the queues and limits of tasks. The server ignores those that the token does not allow."""
        items = list(declarations.queues.items())
        for start in range(0, len(items), MAX_ITEMS):
            queues = dict(items[start : start + MAX_ITEMS])
            tasks = {task: own for task, own in declarations.tasks.items() if task in queues}
            names = {name for own in tasks.values() for name in own.names}
            limits = {name: values for name, values in declarations.limits.items() if name in names}
            await self._http.post(TASKS_VERB, TasksRequest(queues=queues, tasks=tasks, limits=limits))

    async def worker_gone(self, name: str) -> None:
        """Do nothing: the server does not list remote workers."""

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Return the leases with a cancellation request. Renew nothing."""
        canceled: set[Pair] = set()
        for proofs in self._pages(leases):
            canceled.update((await self._http.post(HEARTBEAT_VERB, HeartbeatRequest(leases=proofs))).canceled)
        return frozenset(canceled)

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        """Send progress. The server drops it if its store does not answer at once."""
        try:
            async with asyncio.timeout(timeout):
                for start in range(0, len(notes), MAX_NOTES_PER_CALL):
                    page = notes[start : start + MAX_NOTES_PER_CALL]
                    page_notes = [
                        ProgressNote(proof=self._proofs.of(note.lease), done=note.done, text=note.text) for note in page
                    ]
                    await self._http.post(PROGRESS_VERB, ProgressRequest(notes=tuple(page_notes)))
        except TimeoutError:
            raise StoreUnreachable(f"{self._http.base}: no answer within {timeout:g} s") from None
