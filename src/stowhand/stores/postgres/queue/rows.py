"""The columns of a job, and the conversion of rows to jobs and of leases to array literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stowhand.jobs.failed_attempts import AttemptEnd, FailedAttempt
from stowhand.jobs.fields import ATTRIBUTE_NAMES, FIELDS, Kind
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.task_limits import own_serial
from stowhand.protocols.store import Claim
from stowhand.stores.database.statements import quote_text
from stowhand.stores.database.timestamps import TimestampCache
from stowhand.stores.kernel.columns import COLUMN_NAMES, DETAILS, KEPT_COLUMN_NAMES, named, select

Row = tuple[Any, ...]

_ATTRIBUTES = tuple(ATTRIBUTE_NAMES[name] for name in COLUMN_NAMES)
CLAIMED_COLUMN_NAMES = (
    *("id", "task", "payload", "serial", "priority", "run_at", "attempts", "max_attempts", "resets", "max_resets"),
    *("key", "flags", "last_error", "revision", "created_at", "updated_at", "started_at"),
    *("queue", "parent_id"),
)
"""The columns of a claim besides ``epoch``, in the order of ``read_claims``."""
_GRAPHILE_COLUMN_NAMES = (
    *("id", "serial", "task", "payload", "priority", "run_at", "attempts", "max_attempts", "last_error", "created_at"),
    *("updated_at", "key", "worker", "revision", "flags"),
)
_SHOWN_COLUMN_NAMES = [name for name in COLUMN_NAMES if name not in (*_GRAPHILE_COLUMN_NAMES, "result")]
"""The columns of the view ``jobs`` that graphile-worker does not have."""
_TYPES_BY_KIND = {
    Kind.TEXT: "text",
    Kind.JSON: "text",
    Kind.STATE: "text",
    Kind.WHOLE: "int",
    Kind.REAL: "double precision",
    Kind.TRUTH: "boolean",
    Kind.MOMENT: "timestamptz",
    Kind.NAMES: "text[]",
}
_TYPES_BY_NAME = {field.name: _TYPES_BY_KIND[field.kind] for field in FIELDS} | {"parent_id": "bigint"}

_QUEUE_EXPRESSION = {"queue": "coalesce(queue, 'default')"}
"""The displayed queue: the table has NULL for ``default``."""
_PROCESSING = State.PROCESSING
_STATES_BY_VALUE = {state.value: state for state in State}


def column_fillings() -> dict[str, str]:
    """Return the fillings of the {braces} in statements.sql that stand for columns of a job."""
    payload = {"payload": "payload::text"} | _QUEUE_EXPRESSION
    # Reading a time costs more than any other value, so a time equal to another is not sent.
    times = {"created_at": "nullif(created_at, run_at)", "updated_at": "nullif(updated_at, created_at)"}
    live = {"result": "null::text", "last_worker": "coalesce(worker, last_worker)"}
    other_details = [name for name in DETAILS if name not in ("max_attempts", "queue")]
    return {
        "live_job": _select_list(payload | live),
        "any_job": _select_list(payload | {"result": "result::text"}),
        "claimed_job": f"{_select_list(times, CLAIMED_COLUMN_NAMES)}, epoch",
        "details": named(DETAILS),
        "detail_values": ", ".join(f"%s::{_TYPES_BY_NAME[name]}" for name in DETAILS),
        "detail_arguments": ", ".join(f"_{name} => %s::{_TYPES_BY_NAME[name]}" for name in DETAILS),
        "other_details": named(other_details),
        "other_values": named(other_details, "v"),
    }


def function_fillings() -> dict[str, str]:
    """Return the lists of columns in the texts of functions and views."""
    text = {"payload": "payload::text"}
    live = {"result": "null::json", "last_worker": "coalesce(worker, last_worker)"} | _QUEUE_EXPRESSION
    past = {"worker": "null::text", "last_worker": "worker"} | _QUEUE_EXPRESSION
    past |= {"progress": "null::float8", "progress_text": "null::text", "waits_for": "null::text"}
    types = _TYPES_BY_NAME | {"id": "bigint"}
    arguments = {"payload": "_payload => _new.payload::json", "key_mode": "_mode => _new.key_mode"}
    new = NewJob.__struct_fields__
    last_worker = {"last_worker": "coalesce(worker, last_worker) as last_worker"}
    shown = last_worker | {"queue": "coalesce(queue, 'default') as work_queue"}
    unended = last_worker | {"payload": "payload::text as payload", "queue": "coalesce(queue, 'default') as queue"}
    job_shown = {"last_worker": "coalesce(_job.worker, _job.last_worker)", "queue": "coalesce(_job.queue, 'default')"}
    claimed = {"payload": "j.payload::text", "queue": "coalesce(j.queue, 'default')"}
    return {
        "live_row": select(live),
        "past_row": select(past),
        "live_job": select(live | text | {"result": "null::text"}),
        "unended_job": _select_list(unended, [name for name in COLUMN_NAMES if name != "result"]),
        "past_job": select(past | text | {"result": "result::text"}),
        "shown": ", ".join(shown.get(name, name) for name in _SHOWN_COLUMN_NAMES),
        "job_shown": ", ".join(job_shown.get(name, f"_job.{name}") for name in _SHOWN_COLUMN_NAMES),
        "claimed": ", ".join(claimed.get(name, f"j.{name}") for name in CLAIMED_COLUMN_NAMES),
        "claimed_types": ", ".join(f"{name} {types[name]}" for name in CLAIMED_COLUMN_NAMES),
        "kept": named(KEPT_COLUMN_NAMES),
        "gone_kept": named(KEPT_COLUMN_NAMES, "g"),
        "details": named(DETAILS),
        "details_of_job": named(DETAILS, "j"),
        "details_of_past": named(DETAILS, "h"),
        "old_details": named(DETAILS, "_old"),
        "job_details": named(DETAILS, "_job"),
        "new_details": named(DETAILS, "_new"),
        "given_details": ", ".join(f"_{name}" for name in DETAILS),
        "set_details": ", ".join(f"{name} = _{name}" for name in DETAILS),
        "detail_parameters": ", ".join(f"_{name} {_TYPES_BY_NAME[name]} default null" for name in DETAILS),
        "new_names": ", ".join(map(quote_text, new)),
        "new_arguments": ", ".join(arguments.get(name, f"_{name} => _new.{name}") for name in new),
    }


def _select_list(replacements: Mapping[str, str], names: Sequence[str] = COLUMN_NAMES) -> str:
    return ", ".join(replacements.get(name, name) for name in names)


def read_claims(rows: Sequence[Row], worker: str, token: str) -> list[Claim[Job]]:
    """Convert rows of the statement ``claim``.

    Every claimed job passes here. Arguments by name would take three times as long. Each time is converted once, as
    the jobs of a batch share most times.
    """
    timestamps = TimestampCache()
    claims = []
    for (id_, task, payload, serial, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
         last_error, revision, created_at, updated_at, started_at, queue, parent_id, epoch) in rows:  # fmt: skip
        due = timestamps[run_at]
        serial = own_serial(serial)
        created = due if created_at is None else timestamps[created_at]
        job = Job(
            id_, task, payload, _PROCESSING, serial, priority, due, attempts, max_attempts, created, resets, max_resets,
            key, tuple(flags) if flags else (), last_error, revision,
            created if updated_at is None else timestamps[updated_at], timestamps[started_at], None, worker, False,
            None, worker, None, None, queue, parent_id,
        )  # fmt: skip
        claims.append(Claim(Lease(id_, token, epoch), job, task, attempts, max_attempts, serial, resets))
    return claims


def read_job(row: Row) -> Job:
    """Convert a row of any statement that returns jobs."""
    fields = dict(zip(_ATTRIBUTES, row, strict=True))
    fields["state"] = _STATES_BY_VALUE[fields["state"]]
    fields["flags"] = tuple(fields["flags"] or ())
    fields["serial"] = own_serial(fields["serial"])
    return Job(**fields)


def read_failed_attempt(row: Row) -> FailedAttempt:
    """Convert a row of the statement ``tries``."""
    number, round_, worker, started_at, ended_at, outcome, error_class, error = row
    return FailedAttempt(
        number=number,
        round=round_,
        worker=worker,
        started_at=started_at,
        ended_at=ended_at,
        outcome=AttemptEnd(outcome),
        error_class=error_class,
        error=error,
    )


def pairs(leases: Sequence[Lease]) -> tuple[str, str]:
    """Return leases as two array literals, for a join on pairs. Sort them by id first, the order of locking."""
    return (
        "{" + ",".join([str(lease.job_id) for lease in leases]) + "}",
        "{" + ",".join([lease.token for lease in leases]) + "}",
    )
