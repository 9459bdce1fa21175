"""Server of the steps and events of workflows on the lent store.

A worker records and reads steps of the jobs that it runs, and of no others: the values are as secret as payloads.
"""

from __future__ import annotations

import msgspec

from stowhand.errors import InvalidJob, LeaseLost
from stowhand.jobs.lease import Lease
from stowhand.jobs.text import clean
from stowhand.protocols.queue_store import require_part
from stowhand.protocols.workflows import MAX_EVENT_NAME_CHARACTERS, NewStep, RecordedStep, Workflows
from stowhand.remote.server.claims import fitting_count
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.refusals import forbidden
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.waits import MAX_WIRE_STEP_NAME_CHARACTERS, check_json, check_name
from stowhand.remote.wire import (
    EmitReply,
    EmitRequest,
    EmittedReply,
    EmittedRequest,
    RecordReply,
    RecordRequest,
    StepsReply,
    StepsRequest,
)

BYTES_PER_STEP = 300
"""Estimated size of a step in a reply, without its value and its error."""


class WorkflowServer:
    """Server on one lent store, on the server's loop. Every method raises Refused, and the errors of the store."""

    def __init__(self, shared_store: SharedStore, proofs: Proofs) -> None:
        self._shared_store = shared_store
        self._proofs = proofs

    async def record(self, grant: Grant, request: RecordRequest) -> RecordReply:
        """Record steps in one transaction. One without a valid proof is not recorded. Raises InvalidJob."""
        workflows = self._workflows()
        checked = [_check_step(place, proved.step) for place, proved in enumerate(request.steps)]
        is_held = [False] * len(checked)
        proved_steps: dict[int, tuple[Lease, NewStep]] = {}
        for place, proved in enumerate(request.steps):
            if (lease := self._proofs.verified_lease(grant, proved.proof)) is not None:
                proved_steps[place] = lease, checked[place]
        if proved_steps:
            recorded = await workflows.record(list(proved_steps.values()))
            for place, is_recorded in zip(proved_steps, recorded, strict=True):
                is_held[place] = is_recorded
        return RecordReply(is_held=tuple(is_held))

    async def read(self, grant: Grant, request: StepsRequest) -> StepsReply:
        """Return the steps of a job that a worker of this token runs. Raises LeaseLost."""
        workflows = self._workflows()
        lease = self._proofs.verified_lease(grant, request.proof)
        if lease is None or type(lease.job_id) is not int:
            raise LeaseLost("this token does not hold the lease; it reads no steps")
        steps = await workflows.read(lease.job_id)
        # A proof stays valid after its attempt, so look at the job. Look after reading: another worker records its
        # steps only once the job is its own.
        job = await self._shared_store.queue("workflows").jobs.get(lease.job_id)
        if job is None or not grant.runs(job):
            raise LeaseLost(f"no worker of this token runs job {lease.job_id} any more; it reads no steps")
        rest = steps[request.offset :]
        count_that_fits = fitting_count(map(_size, rest))
        return StepsReply(steps=tuple(rest[:count_that_fits]), total=len(steps))

    async def emit(self, grant: Grant, request: EmitRequest) -> EmitReply:
        """Emit an event, for all jobs or for one that the token sees. Raises InvalidJob."""
        workflows = self._workflows()
        check_name("event", request.event, MAX_EVENT_NAME_CHARACTERS)
        check_json("payload", request.payload)
        await self._check_job(grant, request.job_id)
        return EmitReply(is_first=await workflows.emit(request.event, request.payload, request.job_id))

    async def is_emitted(self, grant: Grant, request: EmittedRequest) -> EmittedReply:
        """Return whether an event was emitted, for all jobs or for one that the token sees. Raises InvalidJob."""
        workflows = self._workflows()
        check_name("event", request.event, MAX_EVENT_NAME_CHARACTERS)
        await self._check_job(grant, request.job_id)
        return EmittedReply(is_emitted=await workflows.is_emitted(request.event, request.job_id))

    async def _check_job(self, grant: Grant, job_id: int | None) -> None:
        if job_id is None or grant.sees_all:
            return
        job = await self._shared_store.queue("workflows").jobs.get(job_id)
        if job is None or not grant.sees(job):
            raise forbidden(
                f"job {job_id} is unknown, or outside this token's tasks, queues and serial keys",
                "use a token for its task, queue and serial key",
            )

    def _workflows(self) -> Workflows:
        store = self._shared_store.queue("workflows")
        return require_part(store, "workflows", store.workflows)


def _check_step(place: int, step: NewStep) -> NewStep:
    """Return the step with an error text that can be stored. Raises InvalidJob."""
    location = f"steps[{place}].step"
    check_name(f"{location}.name", step.name, MAX_WIRE_STEP_NAME_CHARACTERS)
    if (step.value is None) is (step.error is None):
        raise InvalidJob(f"{location}: a step has either a value or an error")
    if step.value is not None:
        check_json(f"{location}.value", step.value)
        return step
    return msgspec.structs.replace(step, error=clean(step.error or ""))


def _size(step: RecordedStep) -> int:
    return BYTES_PER_STEP + len(step.value or "") + len(step.error or "")
