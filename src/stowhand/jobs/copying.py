"""A job as the text that enqueues it once more: for a shell, for SQL, for Python, for pytest."""

from __future__ import annotations

import shlex

import msgspec

from stowhand.jobs.job import Job, State

SCHEMA = "stowhand"


def copies(job: Job, payload: str, flags: tuple[str, ...], schema: str | None) -> dict[str, str]:
    """Every way that there is, by name. ``schema``: where PostgreSQL has ``add_job``; ``None``: nowhere."""
    if job.state not in (State.COMPLETED, State.CANCELED):  # by its key it would change this job, and add none
        job = msgspec.structs.replace(job, key=None)
    return {
        "command": command(job, payload, flags),
        **({} if schema is None else {"sql": sql(job, payload, flags, schema)}),
        "python": python(job, payload, flags),
        "test": pytest_file(job, payload, flags),
    }


def command(job: Job, payload: str, flags: tuple[str, ...] = ()) -> str:
    """``stowhand add --queue=mail send '{"to": "ada"}'``, quoted for a POSIX shell."""
    # In one word with its option a value may begin with a dash.
    options = [
        *([] if job.queue is None else [f"--queue={job.queue}"]),
        *([] if job.key is None else [f"--key={job.key}"]),
        *([] if job.priority == 0 else [f"--priority={job.priority}"]),
        f"--max-attempts={job.max_attempts}",
        *(f"--flag={flag}" for flag in flags),
    ]
    end = ["--"] if job.task.startswith("-") or payload.startswith("-") else []
    return shlex.join(["stowhand", "add", *options, *end, job.task, payload])


def sql(job: Job, payload: str, flags: tuple[str, ...] = (), schema: str = SCHEMA) -> str:
    """A call of ``add_job``, for a server with ``standard_conforming_strings``, which is the default."""
    given = [
        _literal(job.task),
        f"{_literal(payload)}::json",
        *([] if job.queue is None else [f"queue_name := {_literal(job.queue)}"]),
        *([] if job.key is None else [f"job_key := {_literal(job.key)}"]),
        *([] if job.priority == 0 else [f"priority := {job.priority}"]),
        f"max_attempts := {job.max_attempts}",
        *([f"flags := array[{', '.join(map(_literal, flags))}]"] if flags else []),
    ]
    return f"select id from {_name(schema)}.add_job({', '.join(given)});"


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
    given = [
        f"task={job.task!r}",
        f"payload={payload!r}",
        *([] if job.queue is None else [f"queue={job.queue!r}"]),
        *([] if job.key is None else [f"key={job.key!r}"]),
        *([] if job.priority == 0 else [f"priority={job.priority}"]),
        f"max_attempts={job.max_attempts}",
        *([f"flags={flags!r}"] if flags else []),
    ]
    return f"NewJob({', '.join(given)})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(schema: str) -> str:
    return SCHEMA if schema == SCHEMA else '"' + schema.replace('"', '""') + '"'  # "user" is a word of SQL's, too
