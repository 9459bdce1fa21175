"""Reader of jobs of a lent queue. A token sees the jobs of its tasks, queues and serial keys."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job
from stowhand.protocols.producer import JobStatus
from stowhand.protocols.queue_store import Failures, require_part
from stowhand.remote.server.claims import fitting_count
from stowhand.remote.server.refusals import Refused, forbidden
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.tokens import Grant
from stowhand.remote.wire import ErrorKind, ResultsReply, ResultsRequest

MAX_SEEN_JOBS = 100_000
"""Maximum number of remembered pairs of a token and a job that it sees. They are not checked before a query."""


class JobReader:
    """Reader of one lent store, on the server's loop. Every method raises Refused, and the errors of the store."""

    def __init__(self, shared_store: SharedStore) -> None:
        self._shared_store = shared_store
        self._seen: set[tuple[Grant, int]] = set()

    async def job(self, grant: Grant, job_id: str) -> Job:
        """Return one job; payload and result only with the scope payload."""
        return grant.shown(await self._find(grant, job_id))

    async def tries(self, grant: Grant, job_id: str) -> Sequence[FailedAttempt]:
        """Return the last ten failed attempts of a job, in the order of their ends."""
        job = await self._find(grant, job_id)
        return await self._shared_store.queue("reading jobs").jobs.tries(job.id)

    async def failures(self, grant: Grant) -> Sequence[Failures]:
        """Return failed jobs of the token's tasks, grouped by class of error.

        A group contains all queues and serial keys, so a token that is limited to some of them is refused.
        """
        if grant.serials is not None or grant.queues is not None:
            raise forbidden(
                "this token is limited to some queues or serial keys, but failed jobs are grouped over all of them",
                "use a token without --queue and --serial",
            )
        groups = await self._shared_store.queue("grouping failures").inspect.failures()
        return [group for group in groups if grant.tasks is None or group.task in grant.tasks]

    async def ends(self, grant: Grant, request: ResultsRequest) -> ResultsReply:
        """Return how jobs ended. Jobs that the token does not see are reported as unknown.

        Ids of jobs that do not fit into the reply are in ``left_out``. Raises ConfigurationError if the store keeps no
        results.
        """
        store = self._shared_store.store
        results = require_part(store, "results", store.results)
        hidden = await self._hidden(grant, [job_id for job_id in request.job_ids if (grant, job_id) not in self._seen])
        job_ids = [job_id for job_id in request.job_ids if job_id not in hidden]
        ended = await results.ask(job_ids) if job_ids else ()
        # Check again: after a check, an enqueue with the job's key may have changed its task, queue or serial key.
        hidden |= await self._hidden(grant, [status.job_id for status in ended])
        statuses = [JobStatus(job_id, is_known=False) for job_id in hidden]
        statuses += [status for status in ended if status.job_id not in hidden]
        count_that_fits = fitting_count(
            len(status.result_text or "") + len(status.last_error or "") for status in statuses
        )
        left_out = tuple(status.job_id for status in statuses[count_that_fits:])
        return ResultsReply(
            ended=tuple(statuses[:count_that_fits]), left_out=left_out, retention=await results.retention()
        )

    async def _hidden(self, grant: Grant, job_ids: Sequence[int]) -> set[int]:
        """Return the ids of existing jobs that the token does not see. Remember the jobs that it sees."""
        if grant.sees_all:
            return set()
        hidden = set()
        producer = self._shared_store.queue("waiting for results").jobs
        for job_id in job_ids:
            job = await producer.get(job_id)
            if job is not None and not grant.sees(job):
                hidden.add(job_id)
            elif job is not None and len(self._seen) < MAX_SEEN_JOBS:
                self._seen.add((grant, job_id))
        return hidden

    async def _find(self, grant: Grant, job_id: str) -> Job:
        queue = self._shared_store.queue("reading jobs")
        unknown = Refused(
            ErrorKind.UNKNOWN, f"there is no job {job_id[:40]}", "it may have been removed from the history"
        )
        if not (job_id.isascii() and job_id.isdecimal() and len(job_id) < 20 and 0 < int(job_id) < 2**63):
            raise unknown
        job = await queue.jobs.get(int(job_id))
        if job is None or not grant.sees(job):
            raise unknown
        return job
