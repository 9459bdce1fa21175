"""The fields of a job, declared once: stores, lists, pages and the command line are derived from these.

Types, for checkers, are in job.py: ``Job`` and ``NewJob`` have a field under each name. A new field is a line in these
and a line here, a column of each engine's tables, and, where a call sets it, a line in ``EnqueueOptions`` (tasks) and
in ``JobFields`` (tasks/job_handle.py). On PostgreSQL an option is also a parameter of the functions that programs call,
and it is written in ``new_jobs.py``; ``tests/contract/test_options.py`` fails where one loses it. The page
docs/internals.md has the whole list.
"""

from __future__ import annotations

from enum import StrEnum, auto

import msgspec

from stowhand.jobs.job import Job


class Kind(StrEnum):
    """Kind of a value."""

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
    """The history has the value that the job had; else its end sets it, or it ends with the job."""
    settable: bool = False
    """A call that enqueues sets it, with a default."""
    limits: tuple[int, int] | None = None
    """The shortest and the longest name, or the least and the greatest number, of a ``NewJob``."""
    flag: str = ""
    """The help of its flag in ``stowhand enqueue``; empty: it has none."""
    heading: str = ""
    """Of its column in ``stowhand jobs list``; empty: it has none of its own."""
    label: str = ""
    """On the dashboard's page of a job; empty: it has no line of its own."""
    filter: str = ""
    """The filter of the dashboard's list that finds jobs with the same value."""


INT32 = 2**31 - 1
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
        flag="Jobs of one serial key run one after another.",
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
        limits=(-INT32 - 1, INT32),
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
        limits=(1, INT32),
        flag="How often it is tried.  [default: its task's, or 25]",
    ),
    Field("resets", Kind.WHOLE, kept=False),
    Field("max_resets", Kind.WHOLE, settable=True, limits=(0, INT32)),
    Field("flags", Kind.NAMES, settable=True, flag="May be repeated."),
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
)
"""Of ``Job``, in the order in which people see them."""
NEW_JOB_FIELDS = (
    Field(
        "expires",
        Kind.SECONDS,
        settable=True,
        flag="Cancel the job if not claimed within DURATION of its due time.  [default: its task's, or never]",
    ),
)
"""Of ``NewJob`` alone: what a store has of them is its own affair."""
OPTIONS = tuple(field for field in FIELDS if field.settable)
"""What a job is enqueued with besides its task, its payload and its time."""
ATTRIBUTE_NAMES = dict(zip(Job.__struct_encode_fields__, Job.__struct_fields__, strict=True))
"""The attribute of ``Job`` by the name of the field: that of ``payload`` is ``payload_text``."""


def flag_of(field: Field) -> str:
    """Return the flag of ``stowhand enqueue``: ``--max-attempts``, or ``--flag`` for one name at a time."""
    name = field.name.removesuffix("s") if field.kind is Kind.NAMES else field.name
    return "--" + name.replace("_", "-")
