"""Which jobs have the arguments that a test expects, and, where none has, what is different about the nearest."""

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

SHOWN = 10
"""Jobs that a message lists, at most."""
LONGEST = 200
"""Characters of one value."""
BEFORE = 40
"""Of these, what comes before the first character that differs."""


class Expected:
    """Jobs of a task with these arguments, whatever the others. ``tasks``: of the App; another may declare this one.

    Raises InvalidJob for arguments that its jobs cannot have.
    """

    def __init__(self, name: str, tasks: Registry, arguments: Mapping[str, object]) -> None:
        __tracebackhide__ = True
        task, near = tasks.find(name), hint(name, tasks.names)
        self.unknown = "" if task is not None else f"the App has no task {name!r}{near or suggest(name, tasks.names)}"
        self.is_mistyped = task is None and bool(near)
        self.task = name
        self._shape = None if task is None else task.shape
        self._whole = None if self._shape is None else self._shape.whole
        self._defaults: dict[str, Any] = {}
        if self._shape is not None:
            for one in arguments:
                if one not in self._shape.names:
                    raise InvalidJob(f"task {name!r} has no parameter {one!r}{suggest(one, self._shape.names)}")
            given = {one.name: one.default for one in self._shape.parameters if one.default is not ABSENT}
            self._defaults = {one: _as_json(value) for one, value in given.items() if one in arguments}
        self._arguments = {one: _as_json(value) for one, value in arguments.items()}

    def __str__(self) -> str:
        return _call(self.task, self._arguments)

    def differences(self, job: Job) -> list[str]:
        """A line for each argument that is another; empty: the job is one of those."""
        given = self._of(job)
        lines = []
        for name, expected in self._arguments.items():
            found = given.get(name, self._defaults.get(name, ABSENT))
            if found is ABSENT:
                lines.append(f"{name}: expected {_shown(expected)}, and it is not given")
            elif found != expected:
                default = "" if name in given else " (the default)"
                one, other = _beside(repr(expected), repr(found))
                lines.append(f"{name}: expected {one}, is {other}{default}")
        return lines

    def absence(self, waiting: Sequence[Job], over: Sequence[Job]) -> str:
        """Why none of those that wait is one of them. ``over``: those that do not wait any more."""
        lines = [f"no job waits that was enqueued as {self}"]
        if self.unknown:
            lines.append(self.unknown)
        mine = [job for job in waiting if job.task == self.task]
        if mine:
            nearest = min(mine, key=lambda job: len(self.differences(job)))
            lines += [f"the nearest is job {nearest.id}:", *(f"    {line}" for line in self.differences(nearest))]
        ran = [job for job in over if job.task == self.task and not self.differences(job)]
        if ran:
            lines.append(f"job {ran[-1].id} was one, and does not wait any more: it is {ran[-1].state}")
        lines.append(self.listed("waiting:", mine if len(mine) > 1 else [] if mine else waiting))
        return "\n".join(line for line in lines if line)

    def listed(self, title: str, jobs: Sequence[Job]) -> str:
        """Some of the jobs, a line each."""
        if not jobs:
            return ""
        more = [f"    … and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
        return "\n".join([title, *(f"    {described(job, self._whole)}" for job in jobs[:SHOWN]), *more])

    def _of(self, job: Job) -> Mapping[str, Any]:
        if self._whole is not None:
            return {self._whole: job.payload}
        return job.payload if isinstance(job.payload, dict) else {}


def described(job: Job, whole: str | None = None) -> str:
    """``job 3: send(to='x'), errored, due 2030-01-01 00:00:02``"""
    return f"{called(job, whole)}, {job.state}, due {job.run_at:%Y-%m-%d %H:%M:%S}"


def called(job: Job, whole: str | None = None) -> str:
    """``job 3: send(to='x')``"""
    payload = job.payload if whole is None else {whole: job.payload}
    return f"job {job.id}: {_call(job.task, payload if isinstance(payload, dict) else {'payload': payload})}"


def each(jobs: Iterable[Job]) -> str:
    """A line for each."""
    return "\n".join(f"    {described(job)}" for job in jobs)


def _call(task: str, arguments: Mapping[str, Any]) -> str:
    return f"{task}({', '.join(f'{name}={_shown(value)}' for name, value in arguments.items())})"


def _beside(expected: str, found: str) -> tuple[str, str]:
    """As they are shown: where one is too long, from what differs on."""
    is_long = max(len(expected), len(found)) > LONGEST
    alike = sum(takewhile(bool, map(eq, expected, found)))
    start = max(alike - BEFORE, 0) if is_long else 0
    before = "…" if start else ""
    return shorten(before + expected[start:], LONGEST), shorten(before + found[start:], LONGEST)


def _shown(value: object) -> str:
    return shorten(repr(value), LONGEST)


def _as_json(value: object) -> Any:
    """As it comes back from a store."""
    return strict_json.decode(strict_json.encode(value))
