"""An executable file, in any language, as a task.

stdin        ``{"payload": …}``, one line of JSON
environment  fields of the job: ``STOWHAND_JOB_ID`` etc.; those that graphile-worker knows also as ``GRAPHILE_WORKER_…``
stdout       each line is logged by the job's logger at level info
stderr       each line is logged at level error; the last lines become part of the error of the attempt
exit code    0 is success; any other code, or a signal, is a failure, which is retried
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
from stowhand.observe.propagation import TRACE_PARENT_VARIABLE, current_traceparent
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.tasks.context import JobLogger
from stowhand.tasks.program import LineSplitter, ProgramProtocol, describe_exit, describe_start_error, run_program
from stowhand.tasks.registry import TaskDefinition
from stowhand.tasks.shape import shape_of

KILL_DELAY_SECONDS = 3.0
"""Delay between TERM and KILL. A stopping worker waits a little longer."""
KILL_DELAY_AFTER_LOSS_SECONDS = 0.5
"""The same delay if the lease is lost: another worker may have started the job."""
MAX_ERROR_LINES = 20
"""Maximum number of lines of stderr in the error of a failed attempt."""
_LINE_BREAKS_TO_SPACES = str.maketrans("\r\n", "  ")
OWN_PREFIX, GRAPHILE_PREFIX = "STOWHAND_", "GRAPHILE_WORKER_"


class Executable:
    """One executable file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def run(self, attempt: Attempt[Job], logger: JobLogger) -> Retry | None:
        """Run the file once. Return ``None`` if it succeeded."""
        job = attempt.record
        last_lines: deque[str] = deque(maxlen=MAX_ERROR_LINES)

        def on_error_line(line: str) -> None:
            last_lines.append(line)
            logger.error(line)

        protocol = ProgramProtocol(LineSplitter(logger.info), LineSplitter(on_error_line))
        # JSON has line breaks between values only. A space means the same, and keeps the payload on one line.
        input_line = f'{{"payload":{job.payload_text.translate(_LINE_BREAKS_TO_SPACES)}}}\n'.encode()
        try:
            self._check()
            code = await run_program(
                [str(self.file)],
                input_line,
                environment_of(job, attempt.lease, os.environ),
                protocol,
                lambda: KILL_DELAY_AFTER_LOSS_SECONDS if control_of(attempt).lost else KILL_DELAY_SECONDS,
            )
        except (OSError, ValueError) as error:
            return Retry(f"{self.file.name} could not be started: {describe_start_error(str(self.file), error)}")
        return None if code == 0 else Retry("\n".join([f"{self.file.name} {describe_exit(code)}", *last_lines]))

    def _check(self) -> None:
        """Check the mode again: the file may have changed since its folder was read."""
        if self.file.stat().st_mode & stat.S_IWOTH:
            raise PermissionError(errno.EPERM, "every user of this machine may write to it; chmod o-w")


def define_executable(file: Path, name: str) -> TaskDefinition:
    """Return the task of an executable file. Raises InvalidJob for an invalid name."""
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
    """Return the worker's own environment with the fields of this attempt."""
    run_at = job.run_at.astimezone(UTC)
    fields = {
        "PAYLOAD_FORMAT": "json",
        "TASK_IDENTIFIER": job.task,
        "JOB_ID": str(job.id),
        "JOB_KEY": job.key,
        "JOB_ATTEMPTS": str(job.attempts),
        "JOB_MAX_ATTEMPTS": str(job.max_attempts),
        "JOB_PRIORITY": str(job.priority),
        "JOB_RUN_AT": run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    own_fields = {"JOB_SERIAL": job.serial, "JOB_TOKEN": lease.token, "JOB_EPOCH": str(lease.epoch)}
    variables = {GRAPHILE_PREFIX + name: value for name, value in fields.items()}
    variables |= {OWN_PREFIX + name: value for name, value in (fields | own_fields).items()}
    if (context := current_traceparent()) is not None:
        variables[TRACE_PARENT_VARIABLE] = context
    # A worker may itself have been started by a task. Variables of that task's job are not passed on.
    kept = {name: value for name, value in inherited.items() if name not in variables}
    return kept | {name: value for name, value in variables.items() if value is not None}


def _any_payload(payload: Any = None) -> None:
    """Signature of every program."""
