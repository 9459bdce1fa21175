"""The fields of a job, declared once. Stores, lists, pages and the command line derive from them.

Their types are in job.py: ``Job`` and ``NewJob`` have a field with each name. A new field needs a line there, a line
here and a column in each engine's tables. An option of calls also needs a line in ``EnqueueOptions`` (tasks) and in
``JobFields`` (tasks/job_handle.py). On PostgreSQL it is also a parameter of the functions that programs call, and
``new_jobs.py`` writes it. ``tests/contract/test_options.py`` fails if a store loses one. See docs/internals.md.
"""

from __future__ import annotations

from enum import StrEnum, auto

import msgspec

from stowhand.jobs.job import Job


class Kind(StrEnum):
    """The kind of a field's value."""

    TEXT = auto()
    WHOLE = auto()
    REAL = auto()
    TRUTH = auto()
    MOMENT = auto()
    SECONDS = auto()
    JSON = auto()
    NAMES = auto()
    STATE = auto()


class Field(msgspec.Struct, frozen=True):
    """One field of a job."""

    name: str
    kind: Kind = Kind.TEXT
    kept: bool = True
    """The history keeps the job's value. Otherwise the job's end sets or clears it."""
    settable: bool = False
    """Calls that enqueue can set it; it has a default."""
    limits: tuple[int, int] | None = None
    """Minimum and maximum length of a name, or minimum and maximum of a number, in a ``NewJob``."""
    flag: str = ""
    """The help text of its flag in ``stowhand enqueue``; empty if it has no flag."""
    heading: str = ""
    """The heading of its column in ``stowhand jobs list``; empty if it has no column of its own."""
    label: str = ""
    """Its label on the dashboard's page of a job; empty if it has no line of its own."""
    filter: str = ""
    """The filter of the dashboard's job list that finds jobs with the same value."""


MAX_INT32 = 2**31 - 1
_NAME_LENGTHS = (1, 128)

FIELDS = (
    Field("id", Kind.WHOLE),
    Field("task", limits=_NAME_LENGTHS, label="Task", filter="task"),
    Field("payload", Kind.JSON, kept=False),
    Field("state", Kind.STATE, kept=False),
    Field(
        "queue",
        settable=True,
        limits=_NAME_LENGTHS,
        flag="The class of work.  [default: its task's, or 'default']",
        heading="QUEUE",
        label="Queue",
        filter="queue",
    ),
    Field(
        "serial",
        settable=True,
        limits=_NAME_LENGTHS,
        flag="Jobs with the same serial key run one at a time.",
        heading="SERIAL",
        label="Serial key",
        filter="serial",
    ),
    Field(
        "key",
        settable=True,
        limits=(1, 512),
        flag="At most one live job has a key; see --key-mode.",
        heading="KEY",
        label="Key",
        filter="key",
    ),
    Field(
        "priority",
        Kind.WHOLE,
        settable=True,
        limits=(-MAX_INT32 - 1, MAX_INT32),
        flag="Smaller runs first.  [default: its task's, or 0]",
        heading="PRIORITY",
        label="Priority",
    ),
    Field("run_at", Kind.MOMENT, heading="RUN AT", label="Due"),
    Field("attempts", Kind.WHOLE, kept=False),
    Field(
        "max_attempts",
        Kind.WHOLE,
        settable=True,
        limits=(1, MAX_INT32),
        flag="Maximum number of attempts.  [default: its task's, or 25]",
    ),
    Field("resets", Kind.WHOLE, kept=False),
    Field("max_resets", Kind.WHOLE, settable=True, limits=(0, MAX_INT32)),
    Field("flags", Kind.NAMES, settable=True, flag="Label that a worker can exclude. May be repeated."),
    Field("last_error", kept=False),
    Field("revision", Kind.WHOLE),
    Field("created_at", Kind.MOMENT, label="Enqueued"),
    Field("updated_at", Kind.MOMENT),
    Field("started_at", Kind.MOMENT, label="Started"),
    Field("finished_at", Kind.MOMENT, kept=False, label="Ended"),
    Field("worker", kept=False),
    Field("last_worker", kept=False, label="Worker", filter="worker"),
    Field("cancel_requested", Kind.TRUTH),
    Field("result", Kind.JSON, kept=False),
    Field("progress", Kind.REAL, kept=False),
    Field("progress_text", kept=False),
    Field("parent_id", Kind.WHOLE, label="Parent"),
    Field("waits_for", kept=False, label="Waits for"),
)
"""The fields of ``Job``, in display order."""
NEW_JOB_FIELDS = (
    Field(
        "expires",
        Kind.SECONDS,
        settable=True,
        flag="Cancel the job if not claimed within DURATION of its due time.  [default: its task's, or never]",
    ),
)
"""Fields that only ``NewJob`` has: each store keeps them in its own way."""
OPTION_FIELDS = tuple(field for field in FIELDS if field.settable)
"""Options of enqueueing, besides task, payload and run time."""
ATTRIBUTE_NAMES = dict(zip(Job.__struct_encode_fields__, Job.__struct_fields__, strict=True))
"""Attributes of ``Job`` by field name: ``payload`` is in ``payload_text``."""


def flag_of(field: Field) -> str:
    """Return the flag of ``stowhand enqueue``: ``--max-attempts``, or ``--flag`` for one name at a time."""
    name = field.name.removesuffix("s") if field.kind is Kind.NAMES else field.name
    return "--" + name.replace("_", "-")
