"""Texts that enqueue a copy of a job: a shell command, SQL, Python, and a test for pytest."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from stowhand.jobs.fields import OPTION_FIELDS, Field, Kind, flag_of
from stowhand.jobs.job import Job, State

DEFAULT_SCHEMA = "stowhand"
_SQL_ARGUMENTS = {"serial": "queue_name", "queue": "work_queue", "key": "job_key"}
"""Names of arguments of ``add_job`` by field, where they differ."""


def copies(job: Job, payload: str, flags: tuple[str, ...], schema: str | None) -> dict[str, str]:
    """Return all copies by name.

    ``schema`` contains ``add_job``; ``None`` leaves out the SQL copy.
    """
    if job.state not in (State.COMPLETED, State.CANCELED):  # with its key the copy would change this job
        job = msgspec.structs.replace(job, key=None)
    return {
        "command": command(job, payload, flags),
        **({} if schema is None else {"sql": sql(job, payload, flags, schema)}),
        "python": python(job, payload, flags),
        "test": pytest_file(job, payload, flags),
    }


def command(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """Return ``stowhand enqueue --queue=default send '{"to": "ada"}'``, quoted for a POSIX shell."""
    options = []
    for field, value in _options(job, flags):
        # With "=" a value may begin with a dash.
        values = value if field.kind is Kind.NAMES else [value]
        options += [f"{flag_of(field)}={item}" for item in values]
    separator = ["--"] if job.task.startswith("-") or payload.startswith("-") else []
    return shlex.join(["stowhand", "enqueue", *options, *separator, job.task, payload])


def sql(job: Job, payload: str, flags: tuple[str, ...] = (), schema: str = DEFAULT_SCHEMA) -> str:
    """Return a call of ``add_job``, for a server with ``standard_conforming_strings`` (the default)."""
    arguments = [_literal(job.task), f"{_literal(payload)}::json"]
    arguments += [
        f"{_SQL_ARGUMENTS.get(field.name, field.name)} := {_value(value)}" for field, value in _options(job, flags)
    ]
    return f"select id from {_name(schema)}.add_job({', '.join(arguments)});"


def python(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """Return ``await app.enqueue(NewJob(…))``."""
    return f"from stowhand import NewJob\n\nawait app.enqueue({_new_job(job, payload, flags)})"


def pytest_file(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """Return a test file for pytest, whose ini file names the App. The test fails with the error of the task."""
    return f'''"""A copy of job {job.id}. The ini file of pytest needs stowhand_app = "module:app"."""

from stowhand import NewJob


def test_job_{job.id}(jobs, stowhand_app):
    stowhand_app.sync.add_jobs([{_new_job(job, payload, flags)}])
    assert jobs.drain(), "the App has no such task"
'''


def _new_job(job: Job, payload: str, flags: tuple[str, ...]) -> str:
    arguments = [f"task={job.task!r}", f"payload={payload!r}"]
    arguments += [f"{field.name}={value!r}" for field, value in _options(job, flags)]
    return f"NewJob({', '.join(arguments)})"


def _options(job: Job, flags: tuple[str, ...]) -> list[tuple[Field, Any]]:
    """Return the options that differ from their defaults, and always the queue: its default is the task's."""
    job = msgspec.structs.replace(job, flags=flags)
    values = [(field, getattr(job, field.name)) for field in OPTION_FIELDS if field.flag]
    return [(field, value) for field, value in values if value not in (None, 0, ())]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"array[{', '.join(map(_literal, value))}]"
    return _literal(value) if isinstance(value, str) else str(value)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(schema: str) -> str:
    # Any other name is quoted, because it may be a reserved word, such as "user".
    return DEFAULT_SCHEMA if schema == DEFAULT_SCHEMA else '"' + schema.replace('"', '""') + '"'
