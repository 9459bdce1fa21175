"""Jobs of a lent queue: enqueueing, reading by id, and outcomes.

The jobs of one request are committed together, or not at all. A lost reply raises OutcomeUnknown. The request is not
repeated here: repeating a keyed job makes one job, but a payload that is an array would be appended twice. Only the
caller knows whether that is harmless.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import TypeVar

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, OutcomeUnknown, StoreError
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.protocols.producer import JobStatus
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.store import PART_OPERATIONS, with_max_attempts
from stowhand.protocols.validation import validate_id
from stowhand.remote.client.http_caller import MAX_ITEM_BYTES, CallRefused, HttpCaller, NoReply, split_items
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.wire import (
    ENDS_VERB,
    ENQUEUE_VERB,
    FAILURES_VERB,
    JOB_VERB,
    MAX_BODY_BYTES,
    MAX_ITEMS,
    TRIES_VERB,
    EnqueueReply,
    EnqueueRequest,
    ErrorKind,
    ResultsReply,
    ResultsRequest,
    Verb,
)

A = TypeVar("A")


class HttpJobs:
    """Producer of the lent store."""

    def __init__(self, http: HttpCaller, options: HttpOptions) -> None:
        self._http = http
        self._max_attempts = options.max_attempts

    async def get(self, job_id: int) -> Job | None:
        """Return the job; payload and result only if the token has the scope payload."""
        return await self._find(JOB_VERB, job_id)

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the attempts that did not complete; none if there is no such job."""
        return await self._find(TRIES_VERB, job_id) or []

    async def _find(self, verb: Verb[None, A], job_id: int) -> A | None:
        try:
            return await self._http.get(verb, validate_id(job_id))
        except CallRefused as refused:
            if refused.kind == ErrorKind.UNKNOWN:
                return None
            raise

    async def failures(self) -> Sequence[Failures]:
        """Return failures of the token's tasks. Raises ConfigurationError for a lent table, which has no jobs."""
        try:
            return await self._http.get(FAILURES_VERB)
        except CallRefused as refused:
            if refused.kind != ErrorKind.UNKNOWN:
                raise
            raise ConfigurationError(str(refused)) from None

    async def enqueue(self, job: NewJob) -> Job:
        """Enqueue and commit one job. Raises InvalidJob, OutcomeUnknown, StoreUnreachable; StoreError: out of scope."""
        (written,) = await self.add_jobs([job])
        return written

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue all jobs or none, so they must fit into one request."""
        checked, texts = _checked(jobs, self._max_attempts)
        if not checked:
            return []
        if len(list(split_items(texts))) > 1:
            raise InvalidJob(
                f"add_jobs: {len(checked)} jobs of {sum(map(len, texts))} bytes do not fit into one request of"
                f" {MAX_BODY_BYTES} bytes; pass fewer jobs, or use enqueue_many, which sends several requests"
            )
        return (await self._send(checked, bare=False, enqueued_before=0)).jobs

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number of jobs in requests of at most 1000 jobs. All are checked before the first request.

        Each request enqueues all of its jobs or none. If one fails, the jobs of earlier requests are committed; the
        error contains their number.
        """
        all_jobs = [job async for job in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        checked, texts = _checked(all_jobs, self._max_attempts)
        ids: list[int] = []
        for part in split_items(texts):
            ids += (await self._send(checked[part.start : part.stop], bare=True, enqueued_before=len(ids))).ids
        return ids

    async def _send(self, jobs: Sequence[NewJob], *, bare: bool, enqueued_before: int) -> EnqueueReply:
        suffix = f"; the first {enqueued_before} jobs of this call are enqueued" if enqueued_before else ""
        try:
            return await self._http.post(ENQUEUE_VERB, EnqueueRequest(jobs=tuple(jobs), bare=bare))
        except NoReply as error:
            raise OutcomeUnknown(
                f"{error}: the reply was lost, so the jobs may have been enqueued or not{suffix}."
                " Repeat the call with the same key: jobs with a key are not duplicated"
            ) from None
        except CallRefused as refused:
            if refused.kind in (ErrorKind.INVALID_JOB, ErrorKind.TOO_LARGE):
                raise InvalidJob(refused.server_message + suffix) from None
            raise StoreError(f"{refused}{suffix}") from None
        except StoreError as error:
            if enqueued_before:
                raise type(error)(f"{error}{suffix}") from None
            raise


class HttpResults:
    """Results of jobs of the lent store."""

    min_pause = 0.1
    wait_for_commit = None

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._last_reply: ResultsReply | None = None

    async def retention(self) -> float | None:
        """Return the retention from the last reply. Raises ConfigurationError if the store keeps no results."""
        last_reply = self._last_reply or await self._request_results(())
        return last_reply.retention

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        """Return the outcomes of jobs: one request for 1000 jobs, more if their results are large."""
        statuses: list[JobStatus] = []
        remaining = list(job_ids)
        while remaining:
            results_reply = await self._request_results(remaining[:MAX_ITEMS])
            statuses += results_reply.ended
            remaining[:MAX_ITEMS] = results_reply.left_out
        return statuses

    async def _request_results(self, job_ids: Sequence[int]) -> ResultsReply:
        try:
            self._last_reply = await self._http.post(ENDS_VERB, ResultsRequest(job_ids=tuple(job_ids)))
        except CallRefused as refused:
            if refused.kind != ErrorKind.REFUSED:
                raise
            reason = f"{PART_OPERATIONS['results']}: {self._http.base}: {refused.server_message}"
            raise ConfigurationError(reason) from None
        return self._last_reply


def _checked(jobs: Iterable[NewJob], max_attempts: int | None) -> tuple[list[NewJob], list[bytes]]:
    """Return the jobs, and the encoding of each. Raises InvalidJob before anything is sent."""
    checked = [with_max_attempts(limits.check(job), max_attempts) for job in jobs]
    keys: dict[str, KeyMode] = {}
    for job in checked:
        limits.refuse_repeated_key(job, keys)
    texts = [msgspec.json.encode(job) for job in checked]
    for text in texts:
        if len(text) > MAX_ITEM_BYTES:
            raise InvalidJob(
                f"payload: the job is {len(text)} bytes as a request, the limit of a lent store is {MAX_ITEM_BYTES};"
                " store large data elsewhere, and enqueue its location"
            )
    return checked, texts
