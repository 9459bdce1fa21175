"""Server of the calls of remote workers, on the lent store. It checks each call's grant, and each lease's proof.

It does not depend on HTTP: HttpApp checks the scopes of a call (``wire.VERBS``). Every method raises Refused, and the
errors of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, NoReturn

import msgspec

from stowhand.clock import wall_clock
from stowhand.errors import LeaseLost, StoreError
from stowhand.jobs import limits
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.task_limits import TaskDeclarations, TaskLimits, check_values
from stowhand.protocols.attempt import ProgressKeeper, read_progress
from stowhand.protocols.operator import WorkerList
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import CancellationFinder, Heartbeats, RecordedSettlement, RefusedSettlement, Verdict
from stowhand.remote.server.claims import Claims, EncodedClaim
from stowhand.remote.server.job_reader import JobReader
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import Refused, forbidden, malformed
from stowhand.remote.server.remote_throughput import RemoteThroughput
from stowhand.remote.server.settlements import check_settlement
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.workflow_server import WorkflowServer
from stowhand.remote.wire import (
    EnqueueReply,
    EnqueueRequest,
    ErrorKind,
    HeartbeatReply,
    HeartbeatRequest,
    LogReply,
    LogRequest,
    ProgressReply,
    ProgressRequest,
    Proof,
    ReleaseReply,
    ReleaseRequest,
    RemoteClaimRequest,
    ResetReply,
    ResetRequest,
    SettleRequest,
    TasksReply,
    TasksRequest,
    TermsReply,
)
from stowhand.worker.heartbeat_thread import HeartbeatThread

PROGRESS_TIMEOUT_SECONDS = 1.0
"""Time for which a write of progress may delay the heartbeats of all workers."""
CompleteJob = Callable[[NewJob], NewJob]
"""Returns a job completed with the options that its task declares and the job does not set. Raises InvalidJob."""


def unchanged(job: NewJob) -> NewJob:
    """Return the job unchanged: the default if no tasks are known."""
    return job


class _CheckedLeases(NamedTuple):
    """Leases of a request, after the check of their proofs."""

    leases: Sequence[Lease]
    """Leases with a valid proof, with their store tokens."""
    unproved: tuple[Pair, ...]
    """The client's pairs without a valid proof."""
    client_pairs_by_pair: Mapping[Pair, Pair]
    """The client's pair, by the store's pair."""

    def client_pairs(self, pairs: Iterable[Pair]) -> tuple[Pair, ...]:
        """Return the client's pairs for these pairs of the store."""
        return tuple(self.client_pairs_by_pair[pair] for pair in pairs)


class StoreServer:
    """Server of the calls of remote workers on one store, on the server's event loop."""

    def __init__(
        self,
        shared_store: SharedStore,
        heartbeats: HeartbeatThread,
        proofs: Proofs,
        claims: Claims,
        throughput: RemoteThroughput,
        complete_job: CompleteJob,
        on_lease: Callable[[float], None],
    ) -> None:
        """``on_lease`` is called with the seconds of each lease that begins or is renewed."""
        self._shared_store = shared_store
        self._store = shared_store.store
        self._heartbeats = heartbeats
        self._proofs = proofs
        self._claims = claims
        self._throughput = throughput
        self._complete_job = complete_job
        self._on_lease = on_lease
        self.due = claims.due
        self.jobs = JobReader(shared_store)
        self.workflows = WorkflowServer(shared_store, proofs)

    async def claim(self, grant: Grant, request: RemoteClaimRequest) -> list[EncodedClaim]:
        """Claim records. Raises Refused for a claim token that was already used."""
        claims = await self._claims.claim(grant, request)
        if claims:
            self._on_lease(self._shared_store.lease(request.lease))
        return claims

    async def heartbeat(self, grant: Grant, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew leases; those without a valid proof are lost. Without ``lease``, only find cancellation requests."""
        checked = self._check_leases(grant, request.leases)
        if request.lease is None:
            return await self._find_canceled(checked)
        if not checked.leases:
            return HeartbeatReply(lost=checked.unproved)
        lease = self._shared_store.lease(request.lease)
        until = wall_clock() + timedelta(seconds=lease)
        pulse = await self._heartbeats.call(lambda heartbeats: heartbeats.beat(checked.leases, lease))
        self._on_lease(lease)
        return HeartbeatReply(
            # A lease that the database refuses to renew will expire soon. If it is reported as lost, the client stops
            # its attempt before that.
            lost=(*checked.unproved, *checked.client_pairs(pulse.lost | pulse.refused)),
            canceled=checked.client_pairs(pulse.canceled),
            busy=checked.client_pairs(pulse.busy),
            lease_until=until,
        )

    async def _find_canceled(self, checked: _CheckedLeases) -> HeartbeatReply:
        async def find(heartbeats: Heartbeats) -> frozenset[Pair]:
            if not checked.leases or not isinstance(heartbeats, CancellationFinder):
                return frozenset()
            return await heartbeats.find_canceled(checked.leases)

        return HeartbeatReply(canceled=checked.client_pairs(await self._heartbeats.call(find)))

    async def progress(self, grant: Grant, request: ProgressRequest) -> ProgressReply:
        """Record the progress of running jobs under their leases. Drop it if the store does not answer at once."""
        notes_with_leases = [(note, self._proofs.verified_lease(grant, note.proof)) for note in request.notes]
        notes = [read_progress(lease, note.done, note.text) for note, lease in notes_with_leases if lease is not None]

        async def keep(heartbeats: Heartbeats) -> None:
            if not isinstance(heartbeats, ProgressKeeper):
                raise Refused(ErrorKind.UNKNOWN, "this store keeps no progress", "use the attempt's log instead")
            await heartbeats.keep_progress(notes, PROGRESS_TIMEOUT_SECONDS)

        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(PROGRESS_TIMEOUT_SECONDS):
                await self._heartbeats.call(keep)
        return ProgressReply(lost=tuple(note.proof.lease.pair for note, lease in notes_with_leases if lease is None))

    async def settle(self, grant: Grant, request: SettleRequest) -> list[RecordedSettlement]:
        """Settle a batch. Return the recorded settlements in its order; one without a valid proof is lost."""
        results = [RecordedSettlement(Verdict.LOST) for _ in request.batch]
        batch: dict[int, tuple[Lease, Settlement]] = {}
        for place, proved in enumerate(request.batch):
            checked = check_settlement(grant, place, proved.settlement)
            if proved.settlement.wait is not None and self._store.workflows is None:
                checked = RefusedSettlement("the lent store keeps no workflows, so its jobs cannot wait")
            if (lease := self._proofs.verified_lease(grant, proved.proof)) is None:
                continue
            if not isinstance(checked, RefusedSettlement) and checked.then:
                checked = await self._check_following_keys(grant, checked)
            if isinstance(checked, RefusedSettlement):
                results[place] = RecordedSettlement.of(proved.settlement, checked)
            else:
                batch[place] = (lease, checked)
        if batch:
            replies = await self._store.settle(list(batch.values()), repeat=request.repeat)
            for (place, (_, settlement)), reply in zip(batch.items(), replies, strict=True):
                results[place] = RecordedSettlement.of(settlement, reply)
        leases = {place: lease for place, (lease, _) in batch.items()}
        self._throughput.count_settlements(leases.values(), [results[place] for place in leases])
        return results

    async def release(self, grant: Grant, request: ReleaseRequest) -> ReleaseReply:
        """Release leases. A released claim token can never claim again."""
        checked = self._check_leases(grant, request.leases)
        busy_leases: Sequence[Lease] = ()
        if checked.leases:
            busy_leases = await self._heartbeats.call(lambda heartbeats: heartbeats.release(checked.leases))
        return ReleaseReply(
            busy=checked.client_pairs(lease.pair for lease in busy_leases),
            lost=checked.unproved,
            abandoned=request.token is None or await self._claims.abandon(grant, request.token),
        )

    async def reset(self, grant: Grant, request: ResetRequest) -> ResetReply:
        """Reset the jobs of dead workers: those of proved leases, and those of a worker with the same worker token."""
        checked = self._check_leases(grant, request.leases)
        worker = None if request.worker is None else grant.worker_in_store(request.worker)

        async def reset_all(heartbeats: Heartbeats) -> list[ResetJob]:
            jobs = [job for lease in checked.leases for job in await heartbeats.reset_lease(lease)]
            if worker is not None:
                jobs += await heartbeats.reset_worker(worker)
            return jobs

        jobs = await self._heartbeats.call(reset_all)
        self._throughput.count_resets(jobs)
        return ResetReply(jobs=tuple(jobs))

    async def declare_tasks(self, grant: Grant, request: TasksRequest) -> TasksReply:
        """Record what a starting worker's tasks declare, as far as the token allows. Raises InvalidJob.

        A token for some tasks changes only limits that no other task shares: those with the name of the task. Other
        limits must be in the store already. Otherwise nothing would limit the jobs of these tasks: Refused.
        """
        store = self._shared_store.queue("queues of tasks")
        queues = {
            limits.check_name("task", task, limits.MAX_TASK_CHARACTERS): limits.check_queue("queue", queue)
            for task, queue in request.queues.items()
            if grant.covers(task, queue)
        }
        if grant.tasks is not None:
            shared = {task: own for task, own in request.tasks.items() if task in queues and not own.names <= {task}}
            if shared:
                await _refuse_new_limits(store, shared)
            queues = {task: queue for task, queue in queues.items() if task not in shared}
        tasks = {task: own for task, own in request.tasks.items() if task in queues}
        names = {name for own in tasks.values() for name in own.names}
        if absent := names - request.limits.keys():
            raise malformed(f"limits: no values of {sorted(absent)[0]!r}")
        if any(own.key_limit is None and (own.fair or own.key is not None) for own in tasks.values()):
            raise malformed("tasks: a key, or fair, without key_limit")
        values = {name: check_values(name, request.limits[name]) for name in sorted(names)}

        async def declare(heartbeats: Heartbeats) -> None:
            if isinstance(heartbeats, WorkerList):
                await heartbeats.declare_tasks(TaskDeclarations(queues, tasks, values))

        await self._heartbeats.call(declare)
        return TasksReply(left_out=tuple(task for task in request.queues if task not in queues))

    async def log(self, grant: Grant, request: LogRequest) -> LogReply:
        """Append entries, then replace others. Raises LogRefused, LeaseLost."""
        lease = self._proofs.verified_lease(grant, request.proof)
        if lease is None:
            raise LeaseLost("this token does not hold the lease; nothing was changed")
        log = self._shared_store.log_of(lease)
        numbers = [await log.add_execution_log_entry(entry) for entry in request.add]
        for number, entry in request.update:
            await log.update_execution_log_entry(number, entry)
        return LogReply(numbers=tuple(numbers))

    async def enqueue(self, grant: Grant, request: EnqueueRequest) -> EnqueueReply:
        """Enqueue all of the jobs, or none. Raises InvalidJob, OutcomeUnknown."""
        producer = self._shared_store.queue("enqueueing").jobs
        checked_jobs = [limits.check(job) for job in request.jobs]
        completed_jobs = [self._complete_job(job) for job in checked_jobs]
        for original, job in zip(checked_jobs, completed_jobs, strict=True):
            grant.check_enqueue(job if job.on_failure is None else self._without_declared_failure_job(original, job))
        await self._check_keys(grant, completed_jobs)
        if len(completed_jobs) == 1:
            jobs = [await producer.enqueue(completed_jobs[0])]
        else:
            jobs = list(await producer.add_jobs(completed_jobs)) if completed_jobs else []
        # An ended job may still hold its key for a period: then the store returns that job.
        for enqueued in jobs:
            if not grant.sees(enqueued):
                _refuse_key(enqueued.key)
        visible = () if request.bare else tuple(grant.shown(job) for job in jobs)
        return EnqueueReply(ids=tuple(job.id for job in jobs), jobs=visible)

    def _without_declared_failure_job(self, original: NewJob, completed: NewJob) -> NewJob:
        """Return the job without the failure job that the server's own app declares, which needs no right."""
        declared = self._complete_job(msgspec.structs.replace(original, on_failure=None)).on_failure
        failure_job = completed.on_failure
        if declared is not None and failure_job is not None and failure_job.queue is None:
            failure_job = msgspec.structs.replace(failure_job, queue=declared.queue)
        return msgspec.structs.replace(completed, on_failure=None) if failure_job == declared else completed

    async def _check_following_keys(self, grant: Grant, settlement: Settlement) -> Settlement | RefusedSettlement:
        """Return the settlement, or ``RefusedSettlement`` if a following job may not use its key."""
        try:
            await self._check_keys(grant, settlement.then)
        except Refused as refusal:
            return RefusedSettlement(f"{refusal.message}; {refusal.fix}")
        return settlement

    async def _check_keys(self, grant: Grant, jobs: Sequence[NewJob]) -> None:
        """Raise Refused if a job outside the grant has one of the keys.

        Keys are unique in the whole store, and an enqueue replaces the job with its key. A token for some tasks must
        not replace jobs of other tasks.
        """
        if grant.sees_all:
            return
        for job in jobs:
            holder = await self._shared_store.holder(job.key) if job.key is not None else None
            if holder is not None and not grant.sees(holder):
                _refuse_key(job.key)

    async def terms(self, _: Grant) -> TermsReply:
        """Return the lent store's terms."""
        return self._shared_store.terms()

    def _check_leases(self, grant: Grant, proofs: Sequence[Proof]) -> _CheckedLeases:
        leases: list[Lease] = []
        client_pairs: dict[Pair, Pair] = {}
        unproved: list[Pair] = []
        for proof in proofs:
            lease = self._proofs.verified_lease(grant, proof)
            if lease is None:
                unproved.append(proof.lease.pair)
            else:
                leases.append(lease)
                client_pairs[lease.pair] = (lease.job_id, proof.lease.token)
        return _CheckedLeases(leases, tuple(unproved), client_pairs)


async def _refuse_new_limits(store: QueueStore, tasks: Mapping[str, TaskLimits]) -> None:
    """Raise Refused if the store does not have these limits of the tasks yet."""
    known = {(task, row.name) for row in await store.inspect.limits() for task in row.tasks}
    for task, own in tasks.items():
        for name in sorted(own.names):
            if (task, name) not in known:
                raise forbidden(
                    f"this token may not declare the limit {name!r} of the task {task!r}, which other tasks may share",
                    "first start a worker of the store itself that declares it, or use a token for all tasks",
                )


def _refuse_key(key: str | None) -> NoReturn:
    raise Refused(
        ErrorKind.OUT_OF_SCOPE,
        f"the key {key!r} belongs to a job outside this token's tasks, queues and serial keys",
        "use another key: a key is unique in the whole store",
    )
