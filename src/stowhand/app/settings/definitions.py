"""The definitions of all settings: name, spelling, parser, default and one sentence each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stowhand.app.settings.parsers import (
    OneOf,
    duration,
    flag_names,
    http_address,
    kept_for,
    kept_until,
    listen_address,
    schema_name,
    whole,
    yes_or_no,
)
from stowhand.protocols.options import SHORTEST_LEASE
from stowhand.protocols.store import RESERVED_CONNECTIONS
from stowhand.retry import PRESETS as BACKOFFS

DEFAULT_STORE = "sqlite:///stowhand.db"
PREFIX = "STOWHAND_"
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
LOG_FORMATS = ("text", "timed", "traced", "json")

PRESETS: dict[str, dict[str, str]] = {
    "default": {},
    "service": {
        "jobs": "4",
        "poll_interval": "5s",
        "timeout": "300s",
        "max_attempts": "5",
        "backoff": "service",
        "fair": "true",
        "history": "14d",
        "failed_retention": "30d",
    },
}
"""Defaults under one name."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be set. Its option, variable and file key all follow from its name."""

    name: str
    doc: str
    parse: Callable[[str], object] = str
    """From text; raises ValueError with half a sentence that says what would be right."""
    default: str | None = None
    short: tuple[str, ...] = ()
    """Further spellings of the option."""
    metavar: str = "TEXT"
    switch: bool = False
    many: bool = False
    """The option may be repeated; elsewhere its values stand in one text, with commas between them."""
    everywhere: bool = False
    """An option of every command that opens a store; the others are the worker's."""
    lending: bool = False
    """An option of ``stowhand serve``, which lends a store."""
    enqueueing: bool = False
    """Matters when a job is added from the command line: a worker takes jobs as they are."""

    @property
    def option(self) -> str:
        """``--poll-interval``"""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """``STOWHAND_POLL_INTERVAL``"""
        return PREFIX + self.name.upper()

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and what else it is called in the environment and in a file: ``workers`` is ``jobs``."""
        others = (short.removeprefix("--").replace("-", "_") for short in self.short if short.startswith("--"))
        return (self.name, *others)


_DEFINITIONS = (
    Setting(
        name="connection",
        short=("-c",),
        metavar="STORE",
        everywhere=True,
        doc="The store: a URL (postgresql://…, sqlite:///file, https://… of a store that is lent), a libpq string, or"
        " the bare name of a PostgreSQL database. Without it that of --app, DATABASE_URL, PGDATABASE, and at last"
        " sqlite:///stowhand.db.",
    ),
    Setting(
        name="token",
        metavar="TOKEN",
        everywhere=True,
        doc="A lent store (https://…): the worker token that 'stowhand tokens make' showed. Better in the environment:"
        " other users of the machine see a command line.",
    ),
    Setting(
        name="ca_file",
        metavar="FILE",
        everywhere=True,
        doc="A lent store: certificates (PEM) to trust instead of the public ones.",
    ),
    Setting(
        name="insecure",
        switch=True,
        default="false",
        parse=yes_or_no,
        everywhere=True,
        doc="A lent store: send the token over http:// to another machine, readable to anyone on the way.",
    ),
    Setting(
        name="schema",
        short=("-s",),
        metavar="NAME",
        default="stowhand",
        parse=schema_name,
        everywhere=True,
        doc="PostgreSQL: the schema that holds the queue.",
    ),
    Setting(
        name="no_prepared_statements",
        switch=True,
        default="false",
        parse=yes_or_no,
        everywhere=True,
        doc="PostgreSQL: for poolers that do not know prepared statements.",
    ),
    Setting(
        name="log_level",
        metavar="LEVEL",
        default="info",
        parse=OneOf(*LOG_LEVELS),
        everywhere=True,
        doc=f"How much to log on stderr: {', '.join(LOG_LEVELS)}.",
    ),
    Setting(
        name="log_format",
        metavar="FORMAT",
        default="text",
        parse=OneOf(*LOG_FORMATS),
        everywhere=True,
        doc="How to log: text (without the time: a journal or a container's log adds it), timed (text that begins with"
        " the moment, UTC: for a plain file), traced (text with the ids of traces), or json (one object per line, with"
        " its time).",
    ),
    Setting(
        name="tasks", metavar="DIR", doc="The folder of tasks. Without it and --app: tasks/ in the current folder."
    ),
    Setting(
        name="app",
        metavar="MODULE:NAME",
        everywhere=True,
        doc="The App, e.g. shop.jobs:app: its tasks, and its store where neither -c nor STOWHAND_CONNECTION names one.",
    ),
    Setting(
        name="crontab",
        metavar="FILE",
        doc="Recurring tasks. Without it and --app: the file crontab beside the folder of tasks, if there is one.",
    ),
    Setting(
        name="jobs",
        short=("-j", "--workers"),
        metavar="N",
        default="4",
        parse=whole(1, 10_000),
        doc="How many jobs to run at once, in each process.",
    ),
    Setting(name="processes", metavar="N", default="1", parse=whole(1, 256), doc="How many worker processes."),
    Setting(
        name="max_pool_size",
        short=("-m",),
        metavar="N",
        parse=whole(1, 20_000),
        doc="PostgreSQL: connections of one process at most, opened as they are needed,"
        f" the {RESERVED_CONNECTIONS} that a worker keeps for itself included."
        f"  [default: --jobs + {RESERVED_CONNECTIONS}]",
    ),
    Setting(
        name="poll_interval",
        metavar="MS",
        parse=duration(0.001, unit="ms"),
        doc="How often to look for jobs without being woken, in milliseconds or as a phrase (2s)."
        "  [default: 2000, stretched to 10000 while wake-ups are heard]",
    ),
    Setting(
        name="lease",
        metavar="SECONDS",
        default="30s",
        parse=duration(SHORTEST_LEASE),
        doc="After how long without a heartbeat a worker counts as dead and its jobs come back.",
    ),
    Setting(
        name="grace",
        metavar="SECONDS",
        parse=duration(0),
        doc="How long running jobs may take to end when the worker is asked to stop."
        "  [default: 25s; with --preset service as long as --timeout]",
    ),
    Setting(
        name="timeout",
        metavar="SECONDS",
        parse=duration(0.001),
        doc="How long one attempt may take, where its task does not say.  [default: no limit]",
    ),
    Setting(
        name="max_attempts",
        enqueueing=True,
        metavar="N",
        parse=whole(1, 32_767),
        doc="How often a job is tried, where neither its enqueuer nor its task says."
        "  [default: the schema's own, or 25]",
    ),
    Setting(
        name="backoff",
        metavar="NAME",
        default="natural",
        parse=OneOf(*BACKOFFS),
        doc=f"How long to wait between attempts, where the task does not say: {', '.join(BACKOFFS)}.",
    ),
    Setting(
        name="forbidden_flags",
        short=("--forbidden-flag",),
        metavar="FLAG",
        many=True,
        parse=flag_names,
        doc="Leave jobs alone that have one of these flags. Several: repeated, or with commas between them.",
    ),
    Setting(
        name="history",
        metavar="DURATION",
        default="1d",
        parse=kept_for,
        doc="How long completed and canceled jobs are kept; none: not at all.",
    ),
    Setting(
        name="failed_retention",
        metavar="DURATION",
        default="handled",
        parse=kept_until,
        doc="How long failed jobs are kept; handled: until they are retried or removed.",
    ),
    Setting(
        name="listen_url",
        metavar="URL",
        parse=listen_address,
        doc="PostgreSQL: a direct connection for LISTEN, when the other goes through a transaction pooler.",
    ),
    Setting(
        name="synchronous",
        metavar="WORD",
        default="FULL",
        parse=OneOf("FULL", "NORMAL"),
        doc="SQLite: FULL, or NORMAL (a power failure may lose the last commits).",
    ),
    Setting(
        name="preset",
        metavar="NAME",
        default="default",
        parse=OneOf(*PRESETS),
        doc="Defaults under one name; service: poll 5 s, 300 s per attempt and as long to"
        " end at a stop, 5 attempts, backoff 30 s x 2 up to 1 h,"
        " tasks take turns, completed jobs are kept for 14 days, failed ones for 30.",
    ),
    Setting(
        name="fair",
        switch=True,
        default="false",
        parse=yes_or_no,
        doc="Let tasks take turns, so that none waits behind the flood of another; without it all jobs stand in one"
        " line by priority and run time.",
    ),
    Setting(
        name="watch",
        short=("-w",),
        switch=True,
        default="false",
        parse=yes_or_no,
        doc="Load the folder of tasks again whenever a file in it changes. For development; needs the extra 'watch'.",
    ),
    Setting(
        name="http",
        metavar="[HOST:]PORT",
        parse=http_address,
        doc="Show /metrics, /healthz and /readyz there, to anyone who asks; without a host on this machine alone.",
    ),
    Setting(
        name="metrics_labels",
        metavar="N",
        default="100",
        parse=whole(1, 10_000),
        doc="So many tasks, and so many queues, have series of their own in /metrics; the others are one, named"
        " 'other'. Of how long the queue is, at most 100 of each.",
    ),
    Setting(
        name="otel",
        switch=True,
        default="false",
        parse=yes_or_no,
        doc="Make OpenTelemetry spans of what is enqueued and run, as its own variables say; needs the extra 'otel'.",
    ),
    Setting(
        name="once",
        switch=True,
        default="false",
        parse=yes_or_no,
        doc="Run until nothing is due, then end.",
    ),
    Setting(
        name="tokens",
        metavar="FILE",
        lending=True,
        doc="The file of worker tokens of those who lend a store.  [default: .stowhand/tokens.json]",
    ),
    Setting(
        name="schema_only",
        switch=True,
        default="false",
        parse=yes_or_no,
        doc="Install the schema, then end.",
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _DEFINITIONS}
CALLED = {name: setting for setting in _DEFINITIONS for name in setting.names}
"""The same by every name that the settings file may use."""
