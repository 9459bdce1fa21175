"""Jobs of a lent queue: enqueueing them, one by its id, and how they ended.

The jobs of one request are committed together, or not at all.
A lost reply is OutcomeUnknown, and the request is not repeated here: repeating a keyed job makes one job, but where
payloads are arrays it would append twice. Only the caller knows which.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import TypeVar

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob, OutcomeUnknown, StoreError
from stowhand.jobs import limits
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, KeyMode, NewJob
from stowhand.protocols.producer import JobStanding
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.store import DOING, whole
from stowhand.protocols.validation import validate_id
from stowhand.remote.client.http_caller import ROOM, CallRefused, HttpCaller, NoReply, parts
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.wire import (
    BODY_LIMIT,
    ENDS,
    ENQUEUE,
    FAILURES,
    JOB,
    MOST_ITEMS,
    TRIES,
    Ends,
    EndsAsked,
    Enqueue,
    Enqueued,
    Kind,
    Verb,
)

A = TypeVar("A")


class HttpJobs:
    """Enqueues jobs on the lent store, and looks at one."""

    def __init__(self, http: HttpCaller, options: HttpOptions) -> None:
        self._http = http
        self._max_attempts = options.max_attempts

    async def get(self, job_id: int) -> Job | None:
        """Return the job, without payload and result unless the token has the scope payload."""
        return await self._find(JOB, job_id)

    async def tries(self, job_id: int) -> Sequence[FailedAttempt]:
        """Return the attempts that did not complete; none if there is no such job."""
        return await self._find(TRIES, job_id) or []

    async def _find(self, verb: Verb[None, A], job_id: int) -> A | None:
        try:
            return await self._http.get(verb, validate_id(job_id))
        except CallRefused as refused:
            if refused.kind == Kind.UNKNOWN:
                return None
            raise

    async def failures(self) -> Sequence[Failures]:
        """Return failures of the token's tasks. Raises ConfigurationError if a table is lent, which has no jobs."""
        try:
            return await self._http.get(FAILURES)
        except CallRefused as refused:
            if refused.kind != Kind.UNKNOWN:
                raise
            raise ConfigurationError(str(refused)) from None

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job. Raises InvalidJob, OutcomeUnknown, StoreUnreachable, and StoreError where out of scope."""
        (written,) = await self.add_jobs([job])
        return written

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue all jobs or none, so they must fit into one request."""
        checked, texts = _checked(jobs, self._max_attempts)
        if not checked:
            return []
        if len(list(parts(texts))) > 1:
            raise InvalidJob(
                f"add_jobs: {len(checked)} jobs of {sum(map(len, texts))} bytes do not fit into one request of"
                f" {BODY_LIMIT} bytes; give fewer, or use enqueue_many, which sends several"
            )
        return (await self._send(checked, bare=False, before=0)).jobs

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number of jobs, in requests of at most 1000; all are checked before the first is sent.

        Each request is all or none. When one fails, those before it are committed; the error says how many jobs.
        """
        gathered = [job async for job in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        checked, texts = _checked(gathered, self._max_attempts)
        ids: list[int] = []
        for part in parts(texts):
            ids += (await self._send(checked[part.start : part.stop], bare=True, before=len(ids))).ids
        return ids

    async def _send(self, jobs: Sequence[NewJob], *, bare: bool, before: int) -> Enqueued:
        already = f"; the first {before} jobs of this call are enqueued" if before else ""
        try:
            return await self._http.post(ENQUEUE, Enqueue(jobs=tuple(jobs), bare=bare))
        except NoReply as error:
            raise OutcomeUnknown(
                f"{error}: the reply was lost, so the enqueue may have happened or not{already}."
                " Repeat it with the same key: with a key a repeat yields one job"
            ) from None
        except CallRefused as refused:
            if refused.kind in (Kind.INVALID_JOB, Kind.TOO_LARGE):
                raise InvalidJob(refused.server_message + already) from None
            raise StoreError(f"{refused}{already}") from None
        except StoreError as error:
            if before:
                raise type(error)(f"{error}{already}") from None
            raise


class HttpResults:
    """Results of jobs on the lent store."""

    min_pause = 0.1
    hear = None

    def __init__(self, http: HttpCaller) -> None:
        self._http = http
        self._last: Ends | None = None

    async def retention(self) -> float | None:
        """Return the retention of the last answer. Raises ConfigurationError if the server cannot be asked."""
        last = self._last or await self._ends(())
        return last.retention

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStanding]:
        """Return how jobs ended: one request for 1000 jobs, more if their results are large."""
        standings: list[JobStanding] = []
        left = list(job_ids)
        while left:
            ends = await self._ends(left[:MOST_ITEMS])
            standings += ends.ended
            left[:MOST_ITEMS] = ends.left_out
        return standings

    async def _ends(self, job_ids: Sequence[int]) -> Ends:
        try:
            self._last = await self._http.post(ENDS, EndsAsked(job_ids=tuple(job_ids)))
        except CallRefused as refused:
            if refused.kind != Kind.REFUSED:
                raise
            why = f"{DOING['results']}: {self._http.base}: {refused.server_message}"
            raise ConfigurationError(why) from None
        return self._last


def _checked(jobs: Iterable[NewJob], max_attempts: int | None) -> tuple[list[NewJob], list[bytes]]:
    """Return the jobs, and each as it will be sent. Raises InvalidJob before anything is sent."""
    checked = [whole(limits.check(job), max_attempts) for job in jobs]
    keys: dict[str, KeyMode] = {}
    for job in checked:
        limits.refuse_repeated_key(job, keys)
    texts = [msgspec.json.encode(job) for job in checked]
    for text in texts:
        if len(text) > ROOM:
            raise InvalidJob(
                f"payload: the job is {len(text)} bytes as a request, a lent store takes at most {ROOM}; keep what is"
                " large elsewhere, and enqueue where it is"
            )
    return checked, texts
