"""What a person can set, in one table. Options, environment variables and file keys are derived from it.

The first that says something wins: a flag, ``STOWHAND_<NAME>``, ``stowhand.toml`` (or ``[tool.stowhand]`` in
``pyproject.toml``) in the current folder, the preset, the default. Where no connection is set at all: ``DATABASE_URL``
if it names PostgreSQL, then ``PGDATABASE``, then the file ``stowhand.db``. Problems are reported all at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.options import WorkerOptions
from stowhand.retry import named
from stowhand.service.setting_table import DEFAULT_STORE, PRESETS, SETTINGS, Setting
from stowhand.service.settings_file import SettingsFile, read_settings_file
from stowhand.service.store_url import LENT, scheme_of, store_url
from stowhand.store import RESERVED_CONNECTIONS, StoreOptions, pool_refusal, pool_shortage

NOBODY = "the default; -c or DATABASE_URL names another"
"""The source of a store that nobody named."""
GRACE = 25.0
"""Seconds."""
_KEPT = ("schema", "history", "failed_retention", "synchronous")
NOT_REMOTE = (*_KEPT, "no_prepared_statements", "crontab", "max_pool_size", "listen_url")
"""What is settled where a lent store is kept."""


class ResolvedStore(msgspec.Struct, frozen=True):
    """Which store, and who said so."""

    url: str
    """May hold a password: for opening, never for printing."""
    source: str
    note: str = ""
    """What a person may be surprised by."""

    @property
    def is_lent(self) -> bool:
        """Somebody else keeps it, and lends it over HTTP."""
        return self.scheme in LENT

    @property
    def scheme(self) -> str:
        """``postgresql`` or ``sqlite``; ``https`` or ``http`` where it is lent."""
        return scheme_of(self.url)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the store: the same for every command."""

    connection: ResolvedStore
    schema: str = "stowhand"
    history: float | None = 86_400.0
    failed_retention: float | None = None
    max_pool_size: int = 4 + RESERVED_CONNECTIONS
    """Where nobody says, the worker's slots and the connections that it keeps for itself."""
    no_prepared_statements: bool = False
    listen_url: str | None = None
    synchronous: str = "FULL"
    token: str | None = None
    """A secret: for opening, never for printing."""
    ca_file: str | None = None
    insecure: bool = False

    @property
    def url(self) -> str:
        """May hold a password."""
        return self.connection.url

    def options(self) -> StoreOptions:
        """The same, as a store wants it."""
        return StoreOptions(
            schema=self.schema,
            history=self.history,
            failed_retention=self.failed_retention,
            pool_size=self.max_pool_size,
            prepared_statements=not self.no_prepared_statements,
            listen_url=self.listen_url,
            synchronous=self.synchronous,
            token=self.token,
            ca_file=self.ca_file,
            insecure=self.insecure,
        )


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a worker process needs to know. Plain values: it can be handed to another process."""

    store: StoreSettings
    tasks: str | None = None
    """A folder of tasks; ``None`` with no ``app``: ``tasks/`` in the current folder."""
    app: str | None = None
    """``module:name`` of an App. At most one of ``tasks`` and ``app`` is set."""
    crontab: str | None = None
    """A file of recurring tasks; ``None``: ``crontab`` beside the folder of tasks, if there is one."""
    once: bool = False
    watch: bool = False
    """Load the folder of tasks again when it changes."""
    forbidden_flags: tuple[str, ...] | None = None
    schema_only: bool = False
    jobs: int = 4
    processes: int = 1
    lease: float = 30.0
    poll_interval: float | None = None
    """Seconds. ``None``: 2 s, stretched to 10 s while wake-ups are heard."""
    grace: float = GRACE
    """Where nobody says: the preset ``service`` lets what runs end within its timeout."""
    timeout: float | None = None
    max_attempts: int = 25
    backoff: str = "natural"
    fair: bool = False
    """Tasks take turns."""
    preset: str = "default"
    log_level: str = "info"
    log_format: str = "text"
    otel: bool = False
    http: str | None = None
    """HOST:PORT on which metrics and health are shown; ``None``: nowhere."""

    @property
    def pool_shortage(self) -> str | None:
        """What to say of a pool that was given fewer connections than there are slots."""
        if self.store.connection.scheme != "postgresql":
            return None
        return pool_shortage(f"--max-pool-size {self.store.max_pool_size}", self.store.max_pool_size, self.jobs)

    def worker_options(self, tasks: tuple[str, ...] | None = None, name: str | None = None) -> WorkerOptions:
        """The options of one worker of this process."""
        return WorkerOptions(
            name=name,
            concurrency=self.jobs,
            tasks=tasks,
            poll_interval=self.poll_interval,
            lease=self.lease,
            grace=self.grace,
            job_timeout=self.timeout,
            backoff=named(self.backoff),
            forbidden_flags=self.forbidden_flags or (),
            fair=self.fair,
            once=self.once,
        )


def read_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> WorkerSettings:
    """Put all sources together. ``flags``: what was typed, as text, by setting name; ``None`` means not typed.

    Raises one ConfigurationError for everything that is wrong.
    """
    reading = _Reading(flags or {}, os.environ if environ is None else environ, folder or Path())
    values = reading.values()
    connection = reading.connection()
    reading.check(values, connection)
    if values["max_pool_size"] is None:
        values["max_pool_size"] = (values["jobs"] or 0) + RESERVED_CONNECTIONS
    if values["grace"] is None:
        values["grace"] = (values["timeout"] if values["preset"] == "service" else None) or GRACE
    if connection is None or reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    store_names = {field for field in StoreSettings.__struct_fields__ if field != "connection"}
    store = StoreSettings(connection=connection, **{name: values.pop(name) for name in store_names})
    return WorkerSettings(store=store, **values)


def resolve_store_url(
    explicit: str | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> ResolvedStore:
    """Which store is meant when ``explicit`` (a flag, an argument) is given or not. Raises ConfigurationError."""
    reading = _Reading({"connection": explicit}, os.environ if environ is None else environ, folder or Path())
    connection = reading.connection()
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    if connection is None or (explicit is None and reading.problems):
        raise ConfigurationError("\n".join(reading.problems))
    return connection


class _Said(msgspec.Struct, frozen=True):
    """One value, and where it came from. ``rank``: smaller wins."""

    text: str
    source: str
    rank: int


class _Reading:
    """One pass over all sources; collects problems instead of stopping at the first."""

    def __init__(self, flags: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> None:
        self._flags = flags
        self._environ = environ
        self._file: SettingsFile = read_settings_file(folder)
        self.problems: list[str] = [*self._file.problems]

    def values(self) -> dict[str, Any]:
        """Every setting but the connection, parsed."""
        preset = self._parsed(SETTINGS["preset"], {}) or "default"
        defaults = PRESETS[preset] | ({"log_level": "debug"} if _wants_debugging(self._environ) else {})
        values = {
            name: self._parsed(setting, defaults)
            for name, setting in SETTINGS.items()
            if name not in ("connection", "preset")
        }
        return {**values, "preset": preset, **self._tasks_or_app(values)}

    def connection(self) -> ResolvedStore | None:
        """The store; ``None`` when what was said cannot be one, which is then among the problems."""
        try:
            return self._connection()
        except ConfigurationError as error:
            self.problems.append(str(error))
            return None

    def check(self, values: Mapping[str, Any], connection: ResolvedStore | None) -> None:
        """What only several settings together can get wrong."""
        pool = values["max_pool_size"]
        if connection is not None and connection.scheme == "postgresql" and pool is not None:
            refusal = pool_refusal(f"--max-pool-size {pool}", pool)
            self.problems += [refusal] if refusal else []
        if connection is not None and connection.is_lent:
            for name in NOT_REMOTE:
                if (said := next(self._sayings(SETTINGS[name]), None)) is not None:
                    self.problems.append(
                        f"{said.source}: means nothing for {connection.url}, which somebody else keeps;"
                        " it is set where 'stowhand serve' runs"
                    )

    def _connection(self) -> ResolvedStore:
        said = next(self._sayings(SETTINGS["connection"]), None)
        if said is not None:
            return self._named(said.text, said.source)
        database_url = self._environ.get("DATABASE_URL", "")
        if database_url.startswith(("postgres://", "postgresql://")):
            return self._named(database_url, "DATABASE_URL")
        note = "DATABASE_URL does not name a PostgreSQL database and was left alone" if database_url else ""
        if self._environ.get("PGDATABASE"):
            return ResolvedStore("postgresql://", "PGDATABASE and its companions", note)
        return ResolvedStore(DEFAULT_STORE, NOBODY, note)

    @staticmethod
    def _named(text: str, source: str) -> ResolvedStore:
        try:
            return ResolvedStore(store_url(text), source)
        except (ConfigurationError, UnicodeError) as error:
            raise ConfigurationError(f"{source}: {error}") from None

    def _parsed(self, setting: Setting, preset: Mapping[str, str]) -> Any:
        said = next(self._sayings(setting), None)
        text = said.text if said is not None else preset.get(setting.name, setting.default)
        if text is None:
            return None
        try:
            return setting.parse(text)
        except ValueError as error:
            self.problems.append(f"{said.source if said else setting.name}: {error}")
            return setting.parse(setting.default) if setting.default is not None else None

    def _sayings(self, setting: Setting) -> Iterator[_Said]:
        """Who says something about a setting, strongest first. An empty environment variable says nothing."""
        flag = self._flags.get(setting.name)
        if flag is not None:
            yield _Said(_as_text(flag), setting.option, 0)
        variable = self._environ.get(setting.env)
        if variable:
            yield _Said(variable, setting.env, 1)
        if setting.name in self._file.values:
            yield _Said(self._file.values[setting.name], f"{self._file.name}: {setting.name}", 2)

    def _tasks_or_app(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """One of the two: a stronger source silences the other; the same source may not name both."""
        tasks, app = (next(self._sayings(SETTINGS[name]), None) for name in ("tasks", "app"))
        if tasks is None or app is None:
            return {}
        if tasks.rank == app.rank:
            self.problems.append(f"{tasks.source} and {app.source} are both given: leave out one of them")
        return {"app": None} if tasks.rank < app.rank else {"tasks": None}


def suspicious_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like a misspelt setting, with the nearest name; for ``stowhand doctor``."""
    known = [setting.env for setting in SETTINGS.values()]
    found = []
    for name in environ:
        # A program that runs as a task finds its job in STOWHAND_JOB_…
        ours = name == "STOWHAND_DEBUG" or name.startswith("STOWHAND_JOB_")
        if name.startswith("STOWHAND_") and name not in known and not ours:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            found += [(name, near[0])] if near else []
    return found


def _wants_debugging(environ: Mapping[str, str]) -> bool:
    return environ.get("STOWHAND_DEBUG", "") not in ("", "0")


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
