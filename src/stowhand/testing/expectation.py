"""The job that a test expects, and a message about the nearest job if there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from operator import eq
from typing import Any

from stowhand.errors import InvalidJob, hint, suggest
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job
from stowhand.observe.safe_text import shorten
from stowhand.tasks.registry import Registry
from stowhand.tasks.shape import ABSENT

MAX_JOBS_LISTED = 10
"""Maximum number of jobs in a message."""
MAX_VALUE_CHARACTERS = 200
"""Maximum length of one value in a message."""
CHARACTERS_BEFORE_DIFFERENCE = 40
"""Characters shown before the first difference of long values."""


class ExpectedJob:
    """A job of a task with these arguments; others may have any value.

    ``tasks``: the tasks of the App, which may lack this one. Raises InvalidJob for unknown arguments.
    """

    def __init__(self, name: str, tasks: Registry, arguments: Mapping[str, object]) -> None:
        __tracebackhide__ = True
        task, suggestion = tasks.find(name), hint(name, tasks.names)
        self.unknown = ""
        if task is None:
            self.unknown = f"the App has no task {name!r}{suggestion or suggest(name, tasks.names)}"
        self.is_mistyped = task is None and bool(suggestion)
        self.task = name
        self._shape = None if task is None else task.shape
        self._whole = None if self._shape is None else self._shape.whole
        self._defaults: dict[str, Any] = {}
        if self._shape is not None:
            for argument in arguments:
                if argument not in self._shape.names:
                    hint_text = suggest(argument, self._shape.names)
                    raise InvalidJob(f"task {name!r} has no parameter {argument!r}{hint_text}")
            parameters = [one for one in self._shape.parameters if one.name in arguments and one.default is not ABSENT]
            self._defaults = {parameter.name: _as_json(parameter.default) for parameter in parameters}
        self._arguments = {argument: _as_json(value) for argument, value in arguments.items()}

    def __str__(self) -> str:
        return _call(self.task, self._arguments)

    def differences(self, job: Job) -> list[str]:
        """Return a line for each different argument; empty if the job matches."""
        arguments = self._arguments_of(job)
        lines = []
        for name, expected in self._arguments.items():
            actual = arguments.get(name, self._defaults.get(name, ABSENT))
            if actual is ABSENT:
                lines.append(f"{name}: expected {_format_value(expected)}, is absent")
            elif actual != expected:
                default = "" if name in arguments else " (the default)"
                expected_text, actual_text = _shorten_pair(repr(expected), repr(actual))
                lines.append(f"{name}: expected {expected_text}, is {actual_text}{default}")
        return lines

    def absence(self, waiting: Sequence[Job], finished: Sequence[Job]) -> str:
        """Explain why no waiting job matches. ``finished``: jobs that are no longer waiting."""
        lines = [f"no waiting job matches {self}"]
        if self.unknown:
            lines.append(self.unknown)
        same_task = [job for job in waiting if job.task == self.task]
        if same_task:
            nearest = min(same_task, key=lambda job: len(self.differences(job)))
            lines += [f"the nearest is job {nearest.id}:", *(f"    {line}" for line in self.differences(nearest))]
        matching = [job for job in finished if job.task == self.task and not self.differences(job)]
        if matching:
            lines.append(f"job {matching[-1].id} matches, but is no longer waiting: it is {matching[-1].state}")
        lines.append(self.listed("waiting:", same_task if len(same_task) > 1 else [] if same_task else waiting))
        return "\n".join(line for line in lines if line)

    def listed(self, title: str, jobs: Sequence[Job]) -> str:
        """Return a title and a line for each of the first jobs."""
        if not jobs:
            return ""
        more = [f"    … and {len(jobs) - MAX_JOBS_LISTED} more"] if len(jobs) > MAX_JOBS_LISTED else []
        return "\n".join([title, *(f"    {describe_job(job, self._whole)}" for job in jobs[:MAX_JOBS_LISTED]), *more])

    def _arguments_of(self, job: Job) -> Mapping[str, Any]:
        if self._whole is not None:
            return {self._whole: job.payload}
        return job.payload if isinstance(job.payload, dict) else {}


def describe_job(job: Job, whole: str | None = None) -> str:
    """Return ``job 3: send(to='x'), errored, due 2030-01-01 00:00:02``."""
    return f"{format_job(job, whole)}, {job.state}, due {job.run_at:%Y-%m-%d %H:%M:%S}"


def format_job(job: Job, whole: str | None = None) -> str:
    """Return ``job 3: send(to='x')``."""
    payload = job.payload if whole is None else {whole: job.payload}
    return f"job {job.id}: {_call(job.task, payload if isinstance(payload, dict) else {'payload': payload})}"


def format_jobs(jobs: Iterable[Job]) -> str:
    """Return a line for each job."""
    return "\n".join(f"    {describe_job(job)}" for job in jobs)


def _call(task: str, arguments: Mapping[str, Any]) -> str:
    return f"{task}({', '.join(f'{name}={_format_value(value)}' for name, value in arguments.items())})"


def _shorten_pair(expected: str, actual: str) -> tuple[str, str]:
    """Shorten two values for a message. Long ones start shortly before their first difference."""
    is_long = max(len(expected), len(actual)) > MAX_VALUE_CHARACTERS
    common = sum(takewhile(bool, map(eq, expected, actual)))
    start = max(common - CHARACTERS_BEFORE_DIFFERENCE, 0) if is_long else 0
    prefix = "…" if start else ""
    return shorten(prefix + expected[start:], MAX_VALUE_CHARACTERS), shorten(
        prefix + actual[start:], MAX_VALUE_CHARACTERS
    )


def _format_value(value: object) -> str:
    return shorten(repr(value), MAX_VALUE_CHARACTERS)


def _as_json(value: object) -> Any:
    """Return the value as a store returns it."""
    return strict_json.decode(strict_json.encode(value))
