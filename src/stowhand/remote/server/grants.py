"""What one worker token may do. Pure: a grant is asked, and says no by raising Refused."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job, NewJob
from stowhand.remote.server.refusals import lacking, outside


class Scope(StrEnum):
    """What a token may be good for."""

    CLAIM = "claim"
    """Claim, keep, log and settle: what a worker does."""
    ENQUEUE = "enqueue"
    """Enqueue jobs, also as what follows from a settlement."""
    READ = "read"
    """Look at a job; the metrics."""
    PAYLOAD = "payload"
    """See payload and result of jobs that it did not claim."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what for. ``None``: no limit."""

    id: str
    """The token's, for the audit; empty where the server has no tokens."""
    name: str = ""
    scopes: frozenset[str] = frozenset()
    tasks: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    """What may be enqueued and looked at. A claim cannot be limited by queue: see ``check_limits``."""
    conditions: tuple[str, ...] | None = ()
    """Columns that a claim may compare."""

    def need(self, scope: Scope) -> None:
        """Raises Refused unless the token has it."""
        if scope not in self.scopes:
            raise lacking(scope, self.name)

    def tasks_of_claim(self, asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """What a claim that asks for these tasks (``None``: any) may bring."""
        if self.tasks is None:
            return asked
        if asked is None:
            return self.tasks
        allowed = tuple(task for task in asked if task in self.tasks)
        if asked and not allowed:
            raise outside("task", asked[0], "--task")
        return allowed

    def check_conditions(self, conditions: tuple[Where, ...]) -> None:
        """Comparing a column tells something about it, so that columns are granted one by one."""
        if self.conditions is None:
            return
        for condition in conditions:
            if condition.column not in self.conditions:
                raise outside("condition column", condition.column, "--condition")

    def check_enqueue(self, job: NewJob) -> None:
        """Raises Refused unless it may enqueue this job."""
        self.need(Scope.ENQUEUE)
        if self.tasks is not None and job.task not in self.tasks:
            raise outside("task", job.task, "--task")
        if self.queues is not None and job.queue not in self.queues:
            raise outside("queue", job.queue or "", "--queue")

    def shown(self, job: Job) -> Job:
        """The job as this token may see it: payload and result only with that scope."""
        if Scope.PAYLOAD in self.scopes:
            return job
        return msgspec.structs.replace(job, payload_text="", result_text=None)

    def sees(self, job: Job) -> bool:
        """Is it among its tasks and queues?"""
        return (self.tasks is None or job.task in self.tasks) and (self.queues is None or job.queue in self.queues)


EVERYTHING = Grant(id="", name="", scopes=frozenset(Scope), conditions=None)
"""Whoever asks a server without tokens, which listens on the loopback only."""


def check_limits(scopes: frozenset[str], queues: tuple[str, ...] | None) -> None:
    """Raises ConfigurationError for a token that promises what no store can keep."""
    if queues is not None and Scope.CLAIM in scopes:
        raise ConfigurationError(
            "a claim cannot be limited by queue, only by task: leave out --queue, or make two tokens:"
            " one with --scope claim --task …, one with --scope enqueue --queue …"
        )
