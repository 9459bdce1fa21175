"""The calls of a remote worker, executed on the lent store: each call checked against a grant, each lease by its proof.

Independent of HTTP, whose side checks the scopes of a call (``wire.VERBS``). Every method raises Refused, or what the
store raises.
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
from stowhand.protocols.attempt import ProgressKeeper, read_progress
from stowhand.protocols.operator import WorkerList
from stowhand.protocols.store import CancellationFinder, Heartbeats, RecordedSettlement, RefusedSettlement, Verdict
from stowhand.remote.server.claims import Claims, LentRecord
from stowhand.remote.server.job_reader import JobReader
from stowhand.remote.server.lent_throughput import LentThroughput
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import Refused
from stowhand.remote.server.settlements import check_settlement
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.tokens import Grant
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
    QueuesReply,
    QueuesRequest,
    ReleaseReply,
    ReleaseRequest,
    RemoteClaimRequest,
    ResetReply,
    ResetRequest,
    SettleRequest,
    TermsReply,
)
from stowhand.worker.heartbeat_thread import HeartbeatThread

PROGRESS_TIMEOUT_SECONDS = 1.0
"""How long the beats of all workers may wait for a write of progress."""
Declared = Callable[[NewJob], NewJob]
"""Returns a job completed with what its task declares, where the job does not set it. Raises InvalidJob."""


def as_it_is(job: NewJob) -> NewJob:
    """Return the job unchanged: the default if no tasks are known."""
    return job


class _Proved(NamedTuple):
    """The leases in a request."""

    leases: Sequence[Lease]
    """The store's leases with a valid proof."""
    unproved: tuple[Pair, ...]
    sent_pairs: Mapping[Pair, Pair]
    """By the store's pair, the client's pair."""

    def sent(self, pairs: Iterable[Pair]) -> tuple[Pair, ...]:
        """Return the client's pairs for these pairs of the store."""
        return tuple(self.sent_pairs[pair] for pair in pairs)


class StoreServer:
    """Executes the calls of remote workers on one store. Used on the server's event loop."""

    def __init__(
        self,
        shared_store: SharedStore,
        heartbeats: HeartbeatThread,
        proofs: Proofs,
        claims: Claims,
        throughput: LentThroughput,
        declared: Declared,
        on_lease: Callable[[float], None],
    ) -> None:
        """``on_lease`` is called with the seconds of each lease that begins or is renewed."""
        self._shared_store = shared_store
        self._store = shared_store.store
        self._heartbeats = heartbeats
        self._proofs = proofs
        self._claims = claims
        self._throughput = throughput
        self._declared = declared
        self._on_lease = on_lease
        self.due = claims.due
        self.jobs = JobReader(shared_store)

    async def claim(self, grant: Grant, asked: RemoteClaimRequest) -> list[LentRecord]:
        """Claim records. Raises Refused for a claim token that was used."""
        sent = await self._claims.claim(grant, asked)
        if sent:
            self._on_lease(self._shared_store.lease(asked.lease))
        return sent

    async def heartbeat(self, grant: Grant, held: HeartbeatRequest) -> HeartbeatReply:
        """Renew leases; those without a valid proof count as lost. Without ``lease``, only find what was canceled."""
        proved = self._prove(grant, held.leases)
        if held.lease is None:
            return await self._find_canceled(proved)
        if not proved.leases:
            return HeartbeatReply(lost=proved.unproved)
        lease = self._shared_store.lease(held.lease)
        until = wall_clock() + timedelta(seconds=lease)
        pulse = await self._heartbeats.call(lambda heartbeats: heartbeats.beat(proved.leases, lease))
        self._on_lease(lease)
        return HeartbeatReply(
            # A lease that the database refuses to renew will end soon: reported as lost, the client stops its attempt.
            lost=(*proved.unproved, *proved.sent(pulse.lost | pulse.refused)),
            canceled=proved.sent(pulse.canceled),
            busy=proved.sent(pulse.busy),
            lease_until=until,
        )

    async def _find_canceled(self, proved: _Proved) -> HeartbeatReply:
        async def find(heartbeats: Heartbeats) -> frozenset[Pair]:
            if not proved.leases or not isinstance(heartbeats, CancellationFinder):
                return frozenset()
            return await heartbeats.find_canceled(proved.leases)

        return HeartbeatReply(canceled=proved.sent(await self._heartbeats.call(find)))

    async def progress(self, grant: Grant, message: ProgressRequest) -> ProgressReply:
        """Keep the progress of running jobs under their leases; dropped if the store does not answer at once."""
        found = [(note, self._proofs.lease(grant, note.proof)) for note in message.notes]
        notes = [read_progress(lease, note.done, note.text) for note, lease in found if lease is not None]

        async def keep(heartbeats: Heartbeats) -> None:
            if not isinstance(heartbeats, ProgressKeeper):
                raise Refused(
                    ErrorKind.UNKNOWN, "this store keeps no progress", "write a line of the attempt's log instead"
                )
            await heartbeats.keep_progress(notes, PROGRESS_TIMEOUT_SECONDS)

        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(PROGRESS_TIMEOUT_SECONDS):
                await self._heartbeats.call(keep)
        return ProgressReply(lost=tuple(note.proof.lease.pair for note, lease in found if lease is None))

    async def settle(self, grant: Grant, sent: SettleRequest) -> list[RecordedSettlement]:
        """Settle a batch; return what was recorded for each, in order. One without a valid proof is lost."""
        found = [RecordedSettlement(Verdict.LOST)] * len(sent.batch)
        batch: dict[int, tuple[Lease, Settlement]] = {}
        for place, one in enumerate(sent.batch):
            checked = check_settlement(grant, place, one.settlement)
            if (lease := self._proofs.lease(grant, one.proof)) is None:
                continue
            if not isinstance(checked, RefusedSettlement) and checked.then:
                checked = await self._with_its_keys(grant, checked)
            if isinstance(checked, RefusedSettlement):
                found[place] = RecordedSettlement.of(one.settlement, checked)
            else:
                batch[place] = (lease, checked)
        if batch:
            replies = await self._store.settle(list(batch.values()), repeat=sent.repeat)
            for (place, (_, settlement)), reply in zip(batch.items(), replies, strict=True):
                found[place] = RecordedSettlement.of(settlement, reply)
        leases = {place: lease for place, (lease, _) in batch.items()}
        self._throughput.settled(leases.values(), [found[place] for place in leases])
        return found

    async def release(self, grant: Grant, release: ReleaseRequest) -> ReleaseReply:
        """Release leases. A released claim token can never claim again."""
        proved = self._prove(grant, release.leases)
        left: Sequence[Lease] = ()
        if proved.leases:
            left = await self._heartbeats.call(lambda heartbeats: heartbeats.release(proved.leases))
        done = True if release.token is None else await self._claims.abandon(grant, release.token)
        return ReleaseReply(busy=proved.sent(lease.pair for lease in left), lost=proved.unproved, abandoned=done)

    async def reset(self, grant: Grant, reset: ResetRequest) -> ResetReply:
        """Reset the jobs of dead workers: proved leases, and those of a worker under the same worker token."""
        proved = self._prove(grant, reset.leases)
        worker = None if reset.worker is None else grant.worker_in_store(reset.worker)

        async def reset_all(heartbeats: Heartbeats) -> list[ResetJob]:
            jobs = [job for lease in proved.leases for job in await heartbeats.reset_lease(lease)]
            if worker is not None:
                jobs += await heartbeats.reset_worker(worker)
            return jobs

        found = await self._heartbeats.call(reset_all)
        self._throughput.reset(found)
        return ResetReply(jobs=tuple(found))

    async def declare_queues(self, grant: Grant, sent: QueuesRequest) -> QueuesReply:
        """Keep the queues of a starting worker's tasks, as far as the token covers both. Raises InvalidJob."""
        self._shared_store.queue("divided into queues")
        declared = {
            limits.check_name("task", task, limits.TASK_LIMIT): limits.check_queue("queue", queue)
            for task, queue in sent.task_queues.items()
            if grant.covers(task, queue)
        }

        async def declare(heartbeats: Heartbeats) -> None:
            if isinstance(heartbeats, WorkerList):
                await heartbeats.declare_queues(declared)

        await self._heartbeats.call(declare)
        return QueuesReply(left_out=tuple(task for task in sent.task_queues if task not in declared))

    async def log(self, grant: Grant, change: LogRequest) -> LogReply:
        """Append entries, then replace others. Raises LogRefused, LeaseLost."""
        lease = self._proofs.lease(grant, change.proof)
        if lease is None:
            raise LeaseLost("this lease was not lent under this token; nothing was changed")
        log = self._shared_store.log_of(lease)
        numbers = [await log.add_execution_log_entry(entry) for entry in change.add]
        for number, entry in change.update:
            await log.update_execution_log_entry(number, entry)
        return LogReply(numbers=tuple(numbers))

    async def enqueue(self, grant: Grant, sent: EnqueueRequest) -> EnqueueReply:
        """Enqueue all of the jobs, or none. Raises InvalidJob, OutcomeUnknown."""
        producer = self._shared_store.queue("enqueued in").jobs
        check_settlement = [limits.check(job) for job in sent.jobs]
        completed_jobs = [self._declared(job) for job in check_settlement]
        for original, job in zip(check_settlement, completed_jobs, strict=True):
            grant.check_enqueue(job if job.on_failure is None else self._without_own(original, job))
        await self._check_keys(grant, completed_jobs)
        if len(completed_jobs) == 1:
            jobs = [await producer.enqueue(completed_jobs[0])]
        else:
            jobs = list(await producer.add_jobs(completed_jobs)) if completed_jobs else []
        # A key may have been taken for a period by a job that is not live any more.
        for found in jobs:
            if not grant.sees(found):
                _refuse_key(found.key)
        visible = () if sent.bare else tuple(grant.shown(job) for job in jobs)
        return EnqueueReply(ids=tuple(job.id for job in jobs), jobs=visible)

    def _without_own(self, original: NewJob, declared: NewJob) -> NewJob:
        """Return the job without the failure job that the server's own app declares, which needs no right."""
        own = self._declared(msgspec.structs.replace(original, on_failure=None)).on_failure
        failure_job = declared.on_failure
        if own is not None and failure_job is not None and failure_job.queue is None:
            failure_job = msgspec.structs.replace(failure_job, queue=own.queue)
        return msgspec.structs.replace(declared, on_failure=None) if failure_job == own else declared

    async def _with_its_keys(self, grant: Grant, settlement: Settlement) -> Settlement | RefusedSettlement:
        """Return the settlement, or ``RefusedSettlement`` if a following job may not use its key."""
        try:
            await self._check_keys(grant, settlement.then)
        except Refused as refusal:
            return RefusedSettlement(f"{refusal.message}; {refusal.fix}")
        return settlement

    async def _check_keys(self, grant: Grant, jobs: Sequence[NewJob]) -> None:
        """Keys are unique in the whole store, and an enqueue replaces the job with its key: a token for some tasks must
        not replace jobs of other tasks. Raises Refused."""
        if grant.sees_all:
            return
        for job in jobs:
            holder = await self._shared_store.holder(job.key) if job.key is not None else None
            if holder is not None and not grant.sees(holder):
                _refuse_key(job.key)

    async def terms(self, _: Grant) -> TermsReply:
        """Return the lent store's terms."""
        return self._shared_store.terms()

    def _prove(self, grant: Grant, proofs: Sequence[Proof]) -> _Proved:
        leases: list[Lease] = []
        sent_pairs: dict[Pair, Pair] = {}
        unproved: list[Pair] = []
        for proof in proofs:
            lease = self._proofs.lease(grant, proof)
            if lease is None:
                unproved.append(proof.lease.pair)
            else:
                leases.append(lease)
                sent_pairs[lease.pair] = (lease.job_id, proof.lease.token)
        return _Proved(leases, tuple(unproved), sent_pairs)


def _refuse_key(key: str | None) -> NoReturn:
    raise Refused(
        ErrorKind.OUT_OF_SCOPE,
        f"the key {key!r} is that of a job outside this token's tasks, queues and serial keys",
        "use another key: keys are of the whole store",
    )
