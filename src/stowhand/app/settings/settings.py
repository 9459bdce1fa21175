"""The settings of a process: those of its store, those of its workers, and its own; and all of them in one table."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from stowhand.app.own_store import ResolvedStore
from stowhand.app.presets import PRESETS
from stowhand.app.settings.addresses import http_address
from stowhand.protocols.options import IntegerOption, Names, Option, Switch, Text, WorkerOptions, options_of
from stowhand.protocols.store import RESERVED_CONNECTIONS, StoreOptions, pool_shortage
from stowhand.retry import BACKOFFS_BY_NAME
from stowhand.worker.host import Timings

LOG_LEVELS = ("debug", "info", "warning", "error", "off")
LOG_FORMATS = ("text", "timed", "traced", "json")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the store: the same for every command."""

    connection: Annotated[
        ResolvedStore,
        Text(
            "The store: a URL (postgresql://…, sqlite:///file, https://… of a store that is lent), a libpq string, or"
            " the bare name of a PostgreSQL database. Without it that of --app, DATABASE_URL, PGDATABASE, and at last"
            " sqlite:///stowhand.db.",
            short=("-c",),
            metavar="STORE",
            on="store",
        ),
    ]
    options: StoreOptions = StoreOptions()

    @property
    def url(self) -> str:
        """May hold a password."""
        return self.connection.url


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a worker process needs to know."""

    store: StoreSettings
    worker: WorkerOptions = WorkerOptions()
    """Of each of its workers; without tasks and name."""
    log_level: Annotated[
        str,
        Text(f"How much to log on stderr: {', '.join(LOG_LEVELS)}.", metavar="LEVEL", words=LOG_LEVELS, on="store"),
    ] = "info"
    log_format: Annotated[
        str,
        Text(
            "How to log: text (with the time on a terminal only: a journal or a container's log adds its own), timed"
            " (text that begins with the moment, UTC: for a plain file), traced (text with the ids of traces), or json"
            " (one object per line, with its time).",
            metavar="FORMAT",
            words=LOG_FORMATS,
            on="store",
        ),
    ] = "text"
    tasks: Annotated[
        str | None,
        Text("The folder of tasks. Without it and --app: tasks/ in the current folder.", metavar="DIR"),
    ] = None
    app: Annotated[
        str | None,
        Text(
            "The App, e.g. shop.jobs:app: its tasks, and its store where neither -c nor STOWHAND_CONNECTION names one.",
            short=("-A",),
            metavar="MODULE:NAME",
            on="store",
        ),
    ] = None
    """At most one of ``tasks`` and ``app`` is set."""
    task: Annotated[
        tuple[str, ...] | None,
        Names(
            "Claim only jobs of these tasks. Several: repeated, or with commas between them.",
            unset="all tasks",
            metavar="NAME",
        ),
    ] = None
    exclude_tasks: Annotated[
        tuple[str, ...],
        Names("Leave jobs of these tasks alone. Several: as above.", short=("--exclude-task",), metavar="NAME"),
    ] = ()
    crontab: Annotated[
        str | None,
        Text(
            "Recurring tasks. Without it and --app: the file crontab beside the folder of tasks, if there is one.",
            metavar="FILE",
        ),
    ] = None
    processes: Annotated[int, IntegerOption("How many worker processes.", most=256)] = 1
    preset: Annotated[
        str,
        Text(
            "Defaults under one name; service: poll 5 s, 300 s per attempt and as long to"
            " end at a stop, 5 attempts, backoff 30 s x 2 up to 1 h,"
            " tasks take turns, completed jobs are kept for 14 days, failed ones for 30.",
            metavar="NAME",
            words=tuple(PRESETS),
        ),
    ] = "default"
    watch: Annotated[
        bool,
        Switch(
            "Load the folder of tasks again whenever a file in it changes. For development.",
            short=("-w",),
        ),
    ] = False
    http: Annotated[
        str | None,
        Text(
            "Show /metrics, /healthz and /readyz there, to anyone who asks; without a host on this machine alone.",
            metavar="[HOST:]PORT",
            check=http_address,
        ),
    ] = None
    web: Annotated[
        str | None,
        Text(
            "Show the dashboard there, from a process of its own; without a host on this machine alone. Needs the extra"
            " 'web'; 'stowhand web' shows it without a worker.",
            metavar="[HOST:]PORT",
            check=http_address,
        ),
    ] = None
    metrics_labels: Annotated[
        int,
        IntegerOption(
            "So many tasks, and so many serial keys, have series of their own in /metrics; the others are one, named"
            " 'other'. Of how long the queue is, at most 100 of each."
        ),
    ] = 100
    otel: Annotated[
        bool,
        Switch(
            "Make OpenTelemetry spans of what is enqueued and run, as its own variables say; needs the extra 'otel'."
        ),
    ] = False
    tokens: Annotated[
        str | None,
        Text(
            "The file of worker tokens of those who lend a store.",
            unset=".stowhand/tokens.json",
            metavar="FILE",
            on="serve",
        ),
    ] = None
    schema_only: Annotated[bool, Switch("Install the schema, then end.")] = False
    timings: Timings = Timings()

    @property
    def pool_shortage(self) -> str | None:
        """A warning if the pool has fewer connections than there are slots."""
        if self.store.connection.scheme != "postgresql":
            return None
        return pool_shortage(f"--max-pool-size {self.pool_size}", self.pool_size, self.worker.concurrency)

    def worker_options(self, tasks: tuple[str, ...], name: str) -> WorkerOptions:
        """Return the options of one worker of this process."""
        return msgspec.structs.replace(self.worker, tasks=tasks, name=name)

    @property
    def pool_size(self) -> int:
        """Maximum number of PostgreSQL connections of one process."""
        return self.store.options.pool_size or self.worker.concurrency + RESERVED_CONNECTIONS

    def to_json(self) -> msgspec.Raw:
        """Encode the settings for another process."""
        names = {policy: name for name, policy in BACKOFFS_BY_NAME.items()}
        return msgspec.Raw(msgspec.json.encode(self, enc_hook=names.__getitem__))

    @classmethod
    def from_json(cls, text: msgspec.Raw) -> WorkerSettings:
        """Decode the text of ``to_json``."""
        own: dict[str, Any] = msgspec.json.decode(text)
        store, worker, timings = own.pop("store"), own.pop("worker"), Timings(**own.pop("timings"))
        connection = msgspec.convert(store["connection"], ResolvedStore)
        settings = StoreSettings(connection=connection, options=StoreOptions(**store["options"]))
        own |= {name: tuple(given) for name, given in own.items() if isinstance(given, list)}
        return cls(store=settings, worker=WorkerOptions(**worker), timings=timings, **own)


SETTINGS: dict[str, Option] = {
    option.name: option
    for declaring in (StoreSettings, StoreOptions, WorkerOptions, WorkerSettings)
    for option in options_of(declaring).values()
    if option.on != "python"
}
CALLED = {name: option for option in SETTINGS.values() for name in option.names}
"""The same by every name that the settings file may use."""
