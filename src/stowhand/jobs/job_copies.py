"""A job as the text that enqueues it once more: for a shell, for SQL, for Python, for pytest."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from stowhand.jobs.fields import OPTIONS, Field, Kind, flag_of
from stowhand.jobs.job import Job, State

DEFAULT_SCHEMA = "stowhand"
_SQL_ARGUMENTS = {"serial": "queue_name", "queue": "work_queue", "key": "job_key"}
"""Arguments of ``add_job`` that have other names."""


def copies(job: Job, payload: str, flags: tuple[str, ...], schema: str | None) -> dict[str, str]:
    """Return all copies, by name. ``schema``: where PostgreSQL has ``add_job``; ``None``: nowhere."""
    if job.state not in (State.COMPLETED, State.CANCELED):  # by its key it would change this job, and add none
        job = msgspec.structs.replace(job, key=None)
    return {
        "command": command(job, payload, flags),
        **({} if schema is None else {"sql": sql(job, payload, flags, schema)}),
        "python": python(job, payload, flags),
        "test": pytest_file(job, payload, flags),
    }


def command(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """``stowhand enqueue --queue=default send '{"to": "ada"}'``, quoted for a POSIX shell."""
    options = []
    for field, value in _options(job, flags):
        # In one word with its option a value may begin with a dash.
        options += [f"{flag_of(field)}={one}" for one in (value if field.kind is Kind.NAMES else [value])]
    end = ["--"] if job.task.startswith("-") or payload.startswith("-") else []
    return shlex.join(["stowhand", "enqueue", *options, *end, job.task, payload])


def sql(job: Job, payload: str, flags: tuple[str, ...] = (), schema: str = DEFAULT_SCHEMA) -> str:
    """A call of ``add_job``, for a server with ``standard_conforming_strings``, which is the default."""
    arguments = [_literal(job.task), f"{_literal(payload)}::json"]
    arguments += [
        f"{_SQL_ARGUMENTS.get(field.name, field.name)} := {_value(value)}" for field, value in _options(job, flags)
    ]
    return f"select id from {_name(schema)}.add_job({', '.join(arguments)});"


def python(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """``await app.enqueue(NewJob(…))``"""
    return f"from stowhand import NewJob\n\nawait app.enqueue({_new_job(job, payload, flags)})"


def pytest_file(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """A file for pytest, whose ini file names the App. It fails with what the task raises."""
    return f'''"""Job {job.id} once more: pytest runs it where stowhand_app = "module:app" stands in its ini file."""

from stowhand import NewJob


def test_job_{job.id}(jobs, stowhand_app):
    stowhand_app.sync.add_jobs([{_new_job(job, payload, flags)}])
    assert jobs.drain(), "none of the App's tasks took it"
'''


def _new_job(job: Job, payload: str, flags: tuple[str, ...]) -> str:
    arguments = [f"task={job.task!r}", f"payload={payload!r}"]
    arguments += [f"{field.name}={value!r}" for field, value in _options(job, flags)]
    return f"NewJob({', '.join(arguments)})"


def _options(job: Job, flags: tuple[str, ...]) -> list[tuple[Field, Any]]:
    """Return the options that differ from their defaults, and always the queue: its default is the task's."""
    job = msgspec.structs.replace(job, flags=flags)
    values = [(field, getattr(job, field.name)) for field in OPTIONS if field.flag]
    return [(field, value) for field, value in values if value not in (None, 0, ())]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"array[{', '.join(map(_literal, value))}]"
    return _literal(value) if isinstance(value, str) else str(value)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(schema: str) -> str:
    return (
        DEFAULT_SCHEMA if schema == DEFAULT_SCHEMA else '"' + schema.replace('"', '""') + '"'
    )  # "user" is a word of SQL's, too
