"""Steps and events of workflows over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, LeaseLost, StoreError
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.protocols.workflows import NewStep, RecordedStep
from stowhand.remote.client.claims import HeldProofs
from stowhand.remote.client.http_caller import MAX_ITEM_BYTES, CallRefused, HttpCaller, split_items
from stowhand.remote.wire import (
    EMIT_VERB,
    EMITTED_VERB,
    RECORD_VERB,
    STEPS_VERB,
    EmitRequest,
    EmittedRequest,
    ErrorKind,
    Proof,
    ProvedStep,
    StepsRequest,
    Verb,
)

Q = TypeVar("Q")
A = TypeVar("A")


class HttpWorkflows:
    """Steps of the jobs that this worker runs, and events."""

    def __init__(self, http: HttpCaller, proofs: HeldProofs) -> None:
        self._http = http
        self._proofs = proofs

    async def record(self, steps: Sequence[tuple[Lease, NewStep]]) -> Sequence[bool]:
        """Record steps, each request in one transaction. Return for each whether its lease holds the job.

        Raises InvalidJob for a step that the server refuses, or that is too large for a request.
        """
        texts = [self._encode(lease, step) for lease, step in steps]
        is_held: list[bool] = []
        for part in split_items(texts):
            # This is the encoding of a RecordRequest. Each step is already encoded, since its length was needed.
            body = b'{"steps":[' + b",".join(texts[part.start : part.stop]) + b"]}"
            reply = await self._post(RECORD_VERB, body)
            if len(reply.is_held) != len(part):
                raise StoreError(f"{self._http.base} answered {len(part)} steps with {len(reply.is_held)} verdicts")
            is_held += reply.is_held
        return is_held

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job that this worker runs. Raises LeaseLost for other jobs."""
        proof = self._proofs.of_job(job_id)
        if proof is None:
            raise LeaseLost(f"{self._http.base} shows the steps of job {job_id} only to the worker that runs it")
        steps: dict[tuple[str, int], RecordedStep] = {}
        offset = 0
        while True:
            reply = await self._post(STEPS_VERB, StepsRequest(proof=proof, offset=offset))
            steps |= {(step.name, step.place): step for step in reply.steps}
            offset += len(reply.steps)
            if offset >= reply.total:
                if len(steps) >= reply.total:
                    return list(steps.values())
                offset = 0  # between two replies a step has changed its place: an event or a child has ended it
            elif not reply.steps:
                raise StoreError(f"{self._http.base} answered with {offset} of {reply.total} steps")

    async def emit(self, event: str, payload: str, job_id: int | None = None) -> bool:
        """Emit an event. Return whether it is the first with this name. Raises InvalidJob."""
        body = msgspec.json.encode(EmitRequest(event=event, payload=payload, job_id=job_id))
        if len(body) > MAX_ITEM_BYTES:
            raise InvalidJob(f"payload: {_too_large(body)}")
        return (await self._post(EMIT_VERB, body)).is_first

    def emit_in(
        self, connection: object, event: str, payload: str, job_id: int | None = None
    ) -> bool | Awaitable[bool]:
        """Raise ConfigurationError: a transaction is not available over HTTP."""
        self._refuse("emitting an event inside a transaction of yours", "emit it after the commit: await app.emit(…)")

    def record_in(self, connection: object, lease: Lease, step: NewStep) -> bool | Awaitable[bool]:
        """Raise ConfigurationError: a transaction is not available over HTTP."""
        self._refuse("recording a step inside a transaction of yours", "leave out connection=…")

    async def is_emitted(self, event: str, job_id: int | None = None) -> bool:
        """Return whether an event with this name is kept, for all jobs or for this one."""
        return (await self._post(EMITTED_VERB, EmittedRequest(event=event, job_id=job_id))).is_emitted

    async def fork(self, job_id: int, step: str) -> Job | None:
        """Raise ConfigurationError: administration is not available over HTTP."""
        self._refuse("forking a job", "use a machine that reaches the store itself, with that store's own URL")

    def proof_of(self, lease: Lease) -> str:
        """Return the authorization of a held lease; empty if it is not held."""
        return self._proofs.of(lease).authorization

    def keep_proof(self, lease: Lease, proof: str) -> None:
        """Use this authorization for calls about the lease, which another process has claimed."""
        self._proofs.keep([Proof(lease=lease, authorization=proof)])

    def drop_proof(self, lease: Lease) -> None:
        """Note that the attempt with this lease has ended."""
        self._proofs.end([lease.pair])

    def _refuse(self, operation: str, fix: str) -> NoReturn:
        raise ConfigurationError(f"{operation}: not over HTTP, on which {self._http.base} lends its jobs; {fix}")

    def _encode(self, lease: Lease, step: NewStep) -> bytes:
        try:
            text = msgspec.json.encode(ProvedStep(proof=self._proofs.of(lease), step=step))
        except UnicodeError as error:
            raise InvalidJob(f"step {step.name!r}: {error}") from None
        if len(text) > MAX_ITEM_BYTES:
            raise InvalidJob(f"step {step.name!r}: {_too_large(text)}")
        return text

    async def _post(self, verb: Verb[Q, A], message: Q | bytes) -> A:
        try:
            return await self._http.post(verb, message)
        except CallRefused as refused:
            match refused.kind:
                case ErrorKind.INVALID_JOB:
                    raise InvalidJob(refused.server_message) from None
                case ErrorKind.LEASE_LOST:
                    raise LeaseLost(str(refused)) from None
                case ErrorKind.REFUSED | ErrorKind.UNKNOWN:
                    raise ConfigurationError(str(refused)) from None
            raise


def _too_large(text: bytes) -> str:
    return (
        f"{len(text)} bytes as a request, the limit of a lent store is {MAX_ITEM_BYTES};"
        " store large data elsewhere, and return its location"
    )
