"""A file that the operating system can run, in whatever language, as a task.

stdin        ``{"payload": …}``, one line of JSON
environment  facts about the job: ``STOWHAND_JOB_ID`` and so on, and the same as ``GRAPHILE_WORKER_JOB_ID``
stdout       a line at a time to the job's logger, level info
stderr       level error; the last lines stand in the error of the attempt
exit code    0 is success; anything else, or a signal, a failure that is tried again
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe.propagation import IN_ENVIRONMENT, handed_on
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.tasks.context import JobLogger
from stowhand.tasks.program import Conversation, Lines, how_it_ended, run_program, why_not_started
from stowhand.tasks.registry import TaskDefinition
from stowhand.tasks.shape import shape_of

KILL_AFTER = 3.0
"""Seconds between TERM and KILL; a stopping worker waits a little longer."""
KILL_AFTER_LOST = 0.5
"""The same when the job's lease is gone, and another worker may have begun."""
LAST_LINES = 20
"""Lines of stderr in the error of a failed attempt."""
_ONE_LINE = str.maketrans("\r\n", "  ")
OURS, THEIRS = "STOWHAND_", "GRAPHILE_WORKER_"


class Executable:
    """One executable file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def run(self, attempt: Attempt[Job], logger: JobLogger) -> Retry | None:
        """Run it once. ``None``: it succeeded."""
        job = attempt.record
        last: deque[str] = deque(maxlen=LAST_LINES)

        def complain(line: str) -> None:
            last.append(line)
            logger.error(line)

        talk = Conversation(Lines(logger.info), Lines(complain))
        # In JSON a line break stands between values only: as a space it means the same, and the payload is one line.
        given = f'{{"payload":{job.payload_text.translate(_ONE_LINE)}}}\n'.encode()
        try:
            self._check()
            code = await run_program(
                [str(self.file)],
                given,
                environment_of(job, attempt.lease, os.environ),
                talk,
                lambda: KILL_AFTER_LOST if control_of(attempt).lost else KILL_AFTER,
            )
        except (OSError, ValueError) as error:
            return Retry(f"{self.file.name} could not be started: {why_not_started(str(self.file), error)}")
        return None if code == 0 else Retry("\n".join([f"{self.file.name} {how_it_ended(code)}", *last]))

    def _check(self) -> None:
        """Check the mode again: the file may have changed since its folder was read."""
        if self.file.stat().st_mode & stat.S_IWOTH:
            raise PermissionError(errno.EPERM, "every user of this machine may write to it; chmod o-w")


def define_executable(file: Path, name: str) -> TaskDefinition:
    """Return the task of an executable file. Raises InvalidJob for a name that no task may have."""
    limits.check_new_task("task", name)
    return TaskDefinition(
        name=name,
        function=Executable(file).run,
        shape=shape_of(_any_payload, name, positional=True),
        template=NewJob(task=name, queue=DEFAULT_QUEUE),
        executor="loop",
        is_async=True,
        executable=True,
        file=str(file),
    )


def environment_of(job: Job, lease: Lease, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's own environment with the facts of this attempt."""
    run_at = job.run_at.astimezone(UTC)
    facts = {
        "PAYLOAD_FORMAT": "json",
        "TASK_IDENTIFIER": job.task,
        "JOB_ID": str(job.id),
        "JOB_KEY": job.key,
        "JOB_ATTEMPTS": str(job.attempts),
        "JOB_MAX_ATTEMPTS": str(job.max_attempts),
        "JOB_PRIORITY": str(job.priority),
        "JOB_RUN_AT": run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    only_ours = {"JOB_SERIAL": job.serial, "JOB_TOKEN": lease.token, "JOB_EPOCH": str(lease.epoch)}
    variables = {THEIRS + name: value for name, value in facts.items()}
    variables |= {OURS + name: value for name, value in (facts | only_ours).items()}
    if (context := handed_on()) is not None:
        variables[IN_ENVIRONMENT] = context
    # A worker may itself have been started by a task: nothing of that task's job is passed on.
    kept = {name: value for name, value in inherited.items() if name not in variables}
    return kept | {name: value for name, value in variables.items() if value is not None}


def _any_payload(payload: Any = None) -> None:
    """Signature of every program."""
