"""What one worker token may do. Pure: a check raises Refused where something is not allowed."""

from __future__ import annotations

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job, NewJob
from stowhand.remote.server.refusals import lacking, outside
from stowhand.remote.wire import Scope

NAME_LIMIT = 255
"""Characters of a worker's name."""
OF_DASHBOARD = frozenset({Scope.ACT, Scope.ADD})


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A worker token and what it allows. ``None``: no limit."""

    id: str
    """The token's id, for the audit; empty where the server has no tokens."""
    name: str = ""
    scopes: frozenset[str] = frozenset()
    tasks: tuple[str, ...] | None = None
    serials: tuple[str, ...] | None = None
    """Serial keys whose jobs may be enqueued and read. A claim cannot be limited by serial key: see
    ``check_limits``."""
    conditions: tuple[str, ...] | None = ()
    """Columns that a claim's conditions may compare."""

    def need(self, scope: Scope) -> None:
        """Raises Refused unless the token has it."""
        if scope not in self.scopes:
            raise lacking(scope, self.name)

    def worker_in_store(self, worker: str) -> str:
        """The store's name for a worker of this token: the row of a job then tells under which token it was lent.

        Raises InvalidJob.
        """
        limits.check_name("worker", worker, NAME_LIMIT)
        return f"{worker}@{self.id}" if self.id else worker

    def tasks_of_claim(self, asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The tasks whose jobs a claim for these tasks (``None``: any) may return. Raises InvalidJob, Refused."""
        if asked is not None:
            asked = limits.read_names("tasks", asked)
        if self.tasks is None:
            return asked
        if asked is None:
            return self.tasks
        allowed = tuple(task for task in asked if task in self.tasks)
        if asked and not allowed:
            raise outside("task", asked[0], "--task")
        return allowed

    def check_conditions(self, conditions: tuple[Where, ...]) -> None:
        """Comparing a column reveals its values, so columns are allowed one by one."""
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
        if self.serials is not None and job.serial not in self.serials:
            raise outside("serial", job.serial or "", "--serial")
        if job.on_failure is not None:
            self.check_enqueue(job.on_failure)

    def shown(self, job: Job) -> Job:
        """The job as this token may see it: payload and result only with that scope."""
        if Scope.PAYLOAD in self.scopes:
            return job
        return msgspec.structs.replace(job, payload_text="", result_text=None)

    def sees(self, job: Job) -> bool:
        """Is the job within the token's tasks and serial keys?"""
        return (self.tasks is None or job.task in self.tasks) and (self.serials is None or job.serial in self.serials)


EVERYTHING = Grant(id="", name="", scopes=frozenset(Scope), conditions=None)
"""The grant of every request to a server without tokens, which listens on the loopback only."""


def check_limits(
    scopes: frozenset[str], tasks: tuple[str, ...] | None = None, serials: tuple[str, ...] | None = None
) -> None:
    """Raises ConfigurationError for limits that nothing enforces."""
    if OF_DASHBOARD & scopes and (tasks is not None or serials is not None):
        raise ConfigurationError(
            "act and add are for the dashboard, which shows every task and serial key: leave out --task and"
            " --serial, or make two tokens"
        )
    if serials is not None and Scope.CLAIM in scopes:
        raise ConfigurationError(
            "a claim cannot be limited by serial key, only by task: leave out --serial, or make two tokens:"
            " one with --scope claim --task …, one with --scope enqueue --serial …"
        )
