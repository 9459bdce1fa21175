"""The settings of a process, of its store and of its workers, and a table of all settings."""

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
    """Settings of the store, the same for every command."""

    connection: Annotated[
        ResolvedStore,
        Text(
            "The store: a URL (postgresql://…, sqlite:///file, https://… of a lent store), a libpq string, or the name"
            " of a PostgreSQL database. By default that of --app, DATABASE_URL or PGDATABASE, or else"
            " sqlite:///stowhand.db.",
            short=("-c",),
            metavar="STORE",
            on="store",
        ),
    ]
    options: StoreOptions = StoreOptions()

    @property
    def url(self) -> str:
        """The URL, which may contain a password."""
        return self.connection.url


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a worker process."""

    store: StoreSettings
    worker: WorkerOptions = WorkerOptions()
    """Options of each of its workers, without tasks and name."""
    log_level: Annotated[
        str,
        Text(f"Minimum level of log lines: {', '.join(LOG_LEVELS)}.", metavar="LEVEL", words=LOG_LEVELS, on="store"),
    ] = "info"
    log_format: Annotated[
        str,
        Text(
            "Format of log lines: text (with the time on a terminal only, because a journal or a container adds its"
            " own), timed (text with the time in UTC, for a file), traced (text with trace ids), or json (one object"
            " per line, with its time).",
            metavar="FORMAT",
            words=LOG_FORMATS,
            on="store",
        ),
    ] = "text"
    tasks: Annotated[
        str | None,
        Text("The folder of tasks. By default, without --app: tasks/ in the current folder.", metavar="DIR"),
    ] = None
    app: Annotated[
        str | None,
        Text(
            "The App, such as shop.jobs:app: its tasks, and its store unless -c or STOWHAND_CONNECTION names one.",
            short=("-A",),
            metavar="MODULE:NAME",
            on="store",
        ),
    ] = None
    """At most one of ``tasks`` and ``app`` is set."""
    task: Annotated[
        tuple[str, ...] | None,
        Names(
            "Claim only jobs of these tasks. May be repeated, or be a list with commas.",
            unset="all tasks",
            metavar="NAME",
        ),
    ] = None
    exclude_tasks: Annotated[
        tuple[str, ...],
        Names("Do not claim jobs of these tasks. As above.", short=("--exclude-task",), metavar="NAME"),
    ] = ()
    crontab: Annotated[
        str | None,
        Text(
            "File of recurring jobs. By default, without --app: the file crontab beside the folder of tasks, if any.",
            metavar="FILE",
        ),
    ] = None
    processes: Annotated[int, IntegerOption("Number of worker processes.", maximum=256)] = 1
    preset: Annotated[
        str,
        Text(
            "A set of defaults. service: poll every 5 s, 300 s per attempt and for running jobs at a stop, 5 attempts,"
            " backoff 30 s x 2 up to 1 h, tasks take turns, completed jobs are kept for 14 days, failed ones for 30.",
            metavar="NAME",
            words=tuple(PRESETS),
        ),
    ] = "default"
    watch: Annotated[
        bool,
        Switch(
            "Reload the folder of tasks when a file in it changes. For development.",
            short=("-w",),
        ),
    ] = False
    http: Annotated[
        str | None,
        Text(
            "Serve /metrics, /healthz and /readyz on this address, without authentication. Without a host, only this"
            " machine can connect.",
            metavar="[HOST:]PORT",
            check=http_address,
        ),
    ] = None
    web: Annotated[
        str | None,
        Text(
            "Serve the dashboard on this address, from a separate process. Without a host, only this machine can"
            " connect. Needs the extra 'web'. 'stowhand web' serves it without a worker.",
            metavar="[HOST:]PORT",
            check=http_address,
        ),
    ] = None
    metrics_labels: Annotated[
        int,
        IntegerOption(
            "Maximum number of tasks, and of serial keys, with their own series in /metrics. All others share one,"
            " named 'other'. Queue lengths have at most 100 of each."
        ),
    ] = 100
    otel: Annotated[
        bool,
        Switch(
            "Make OpenTelemetry spans of enqueue calls and attempts, configured by OTEL_… variables. Needs the extra"
            " 'otel'."
        ),
    ] = False
    tokens: Annotated[
        str | None,
        Text(
            "The file of worker tokens of a lent store.",
            unset=".stowhand/tokens.json",
            metavar="FILE",
            on="serve",
        ),
    ] = None
    schema_only: Annotated[bool, Switch("Install the schema, and exit.")] = False
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
        values: dict[str, Any] = msgspec.json.decode(text)
        store, worker, timings = values.pop("store"), values.pop("worker"), Timings(**values.pop("timings"))
        connection = msgspec.convert(store["connection"], ResolvedStore)
        settings = StoreSettings(connection=connection, options=StoreOptions(**store["options"]))
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(store=settings, worker=WorkerOptions(**worker), timings=timings, **values)


SETTINGS: dict[str, Option] = {
    option.name: option
    for declaring in (StoreSettings, StoreOptions, WorkerOptions, WorkerSettings)
    for option in options_of(declaring).values()
    if option.on != "python"
}
SETTINGS_BY_NAME = {name: option for option in SETTINGS.values() for name in option.names}
"""The same by every name that the settings file may use."""
