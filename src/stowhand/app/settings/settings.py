"""Resolves the settings from all their sources (definitions.py lists them).

The first source that gives a value wins: a flag, ``STOWHAND_<NAME>``, an App's arguments for its own store,
``stowhand.toml`` (or ``[tool.stowhand]`` in ``pyproject.toml``) in the current folder, the preset, the default. Which
store that is: own_store.py. Inside a program an App's arguments come first. Problems are reported all at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stowhand.app.own_store import ON_PURPOSE, Given, OwnStore, ResolvedStore, choose, is_own, same_store
from stowhand.app.presets import GRACE, grace_of
from stowhand.app.settings.definitions import CALLED, PREFIX, PRESETS, SETTINGS, Setting
from stowhand.app.settings.file import SettingsFile, read_settings_file
from stowhand.errors import ConfigurationError
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import RESERVED_CONNECTIONS, StoreOptions, pool_refusal, pool_shortage
from stowhand.retry import named
from stowhand.stores.url import store_url

_KEPT = ("schema", "history", "failed_retention", "synchronous")
NOT_REMOTE = (*_KEPT, "no_prepared_statements", "crontab", "max_pool_size", "listen_url")
"""Set where a lent store is kept, not where it is used."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the store: the same for every command."""

    connection: ResolvedStore
    schema: str = "stowhand"
    history: float | None = 86_400.0
    failed_retention: float | None = None
    max_pool_size: int = 4 + RESERVED_CONNECTIONS
    """By default the worker's slots and the connections that it reserves."""
    no_prepared_statements: bool = False
    listen_url: str | None = None
    synchronous: str = "FULL"
    token: str | None = None
    """A secret: for opening, never for printing."""
    ca_file: str | None = None
    insecure: bool = False
    max_attempts: int | None = None
    """Of jobs that are made here without a number of their own; ``None``: the store's default."""

    @property
    def url(self) -> str:
        """May hold a password."""
        return self.connection.url

    def options(self) -> StoreOptions:
        """The same as options of a store."""
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
            max_attempts=self.max_attempts,
        )


_NO_SETTINGS = ("STOWHAND_DEBUG", "STOWHAND_BENCH_PROBE", "STOWHAND_TASK_IDENTIFIER", "STOWHAND_PAYLOAD_FORMAT")
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")
_OF_A_STORE = {*StoreSettings.__struct_fields__} - {"max_attempts"}


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
    """The default of the preset ``service`` is the timeout, so that running jobs can end."""
    timeout: float | None = None
    backoff: str = "natural"
    fair: bool = False
    """Tasks take turns."""
    preset: str = "default"
    log_level: str = "info"
    log_format: str = "text"
    otel: bool = False
    tokens: str | None = None
    """The file of tokens with which a store is lent."""
    http: str | None = None
    """HOST:PORT on which metrics and health are shown; ``None``: nowhere."""
    metrics_labels: int = 100
    """Tasks and queues that have series of their own in the metrics."""

    @property
    def pool_shortage(self) -> str | None:
        """A warning if the pool has fewer connections than there are slots."""
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
    own_store: Callable[[str], OwnStore] | None = None,
) -> WorkerSettings:
    """Put all sources together. ``flags``: what was typed, as text, by setting name; ``None`` means not typed.

    ``own_store``: gives the store of the App of that name; ``None``: Apps do not count. Raises one
    ConfigurationError for everything that is wrong.
    """
    reading = _Reading(flags or {}, os.environ if environ is None else environ, folder or Path())
    one_of = reading.tasks_or_app()
    connection = reading.connection(None if own_store is None else reading.own_store(own_store, one_of))
    values = reading.values() | one_of
    reading.check(values, connection)
    if values["max_pool_size"] is None:
        values["max_pool_size"] = (values["jobs"] or 0) + RESERVED_CONNECTIONS
    if values["grace"] is None:
        values["grace"] = grace_of(values["preset"], values["timeout"])
    if connection is None or reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    store_names = {field for field in StoreSettings.__struct_fields__ if field != "connection"}
    store = StoreSettings(connection=connection, **{name: values.pop(name) for name in store_names})
    return WorkerSettings(store=store, **values)


def read_store(
    own: OwnStore, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[str, StoreOptions]:
    """The URL and the options of an App's store, inside a program: its arguments first, then everything else.

    What the environment or the file says of another store than the App's does not hold for this one. Raises
    ConfigurationError.
    """
    reading = _Reading({}, os.environ if environ is None else environ, folder or Path())
    reading.lead(own)
    connection = reading.connection(None) if own.url is None else ResolvedStore(own.url, own.source)
    names = [field for field in StoreSettings.__struct_fields__ if field != "connection"]
    values = reading.values(names)
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    if connection is None or reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    given = {name: values[name] for name in names if values[name] is not None or name != "max_pool_size"}
    options = StoreSettings(connection=connection, **given).options()
    return connection.url, msgspec.structs.replace(options, pool_size=values["max_pool_size"])


def read_setting(
    name: str, flag: str | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Any:
    """One of them, whatever is wrong with the others. Raises ConfigurationError."""
    reading = _Reading({name: flag}, os.environ if environ is None else environ, folder or Path())
    value = reading.values([name])[name]
    if reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    return value


def read_preset(own: OwnStore, *, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """The preset of an App: its argument first, then the environment and the file. Raises ConfigurationError."""
    reading = _Reading({}, os.environ if environ is None else environ, folder or Path())
    reading.lead(own)
    preset: str = reading.values(())["preset"]
    if reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    return preset


def resolve_store_url(
    explicit: str | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> ResolvedStore:
    """Which store is meant when ``explicit`` (a flag, an argument) is given or not. Raises ConfigurationError."""
    reading = _Reading({"connection": explicit}, os.environ if environ is None else environ, folder or Path())
    connection = reading.connection(None)
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    if connection is None or (explicit is None and reading.problems):
        raise ConfigurationError("\n".join(reading.problems))
    return connection


class _Reading:
    """One pass over all sources; collects problems instead of stopping at the first."""

    def __init__(self, flags: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> None:
        self._flags = flags
        self._environ = environ
        self._file: SettingsFile = read_settings_file(folder)
        self._owned: Mapping[str, Any] = {}
        """Values that an App gives for the store that is used."""
        self._outdone_by = ON_PURPOSE
        """The weakest rank that takes precedence over the App."""
        self._foreign: int | None = None
        """The rank whose values are for another store."""
        self._found: list[str] = [*self._file.problems]
        self._of_the_store: list[str] = []

    @property
    def problems(self) -> list[str]:
        """All of them; those of the store last, although it is resolved first, for its App gives values too."""
        return [*self._found, *self._of_the_store]

    def values(self, names: Iterable[str] = SETTINGS) -> dict[str, Any]:
        """Every setting but the connection, parsed."""
        preset = self._parsed(SETTINGS["preset"], {}) or "default"
        defaults = PRESETS[preset] | ({"log_level": "debug"} if _wants_debugging(self._environ) else {})
        values = {
            name: self._parsed(SETTINGS[name], defaults) for name in names if name not in ("connection", "preset")
        }
        return {**values, "preset": preset}

    def own_store(self, own_store: Callable[[str], OwnStore], one_of: Mapping[str, Any]) -> OwnStore | None:
        """The store of the App that is named; ``None``: none is named."""
        given = next(self._values_given(SETTINGS["app"]), None)
        rival = next(self._values_given(SETTINGS["tasks"]), None)
        contradicted = given is None or "app" in one_of or (rival is not None and rival.rank == given.rank)
        return None if given is None or contradicted else own_store(given.text)

    def connection(self, own: OwnStore | None) -> ResolvedStore | None:
        """The store; ``None`` when what was given cannot be one, which is then among the problems."""
        try:
            store = choose(next(self._values_given(SETTINGS["connection"]), None), own, self._environ)
        except ConfigurationError as error:
            self._of_the_store = [str(error)]
            return None
        if own is not None and is_own(store, own, self._environ):
            self._owned = own.options
            store = self._with_its_schema(store, own)
        return store

    def lead(self, own: OwnStore) -> None:
        """Let the App take precedence, and ignore values for another store."""
        self._owned, self._outdone_by = own.options, -1
        given = next(self._values_given(SETTINGS["connection"]), None)
        if given is None or own.url is None:
            return
        try:
            if not same_store(store_url(given.text), own.url, self._environ):
                self._foreign = given.rank
        except (ConfigurationError, UnicodeError):
            self._foreign = given.rank

    def _with_its_schema(self, store: ResolvedStore, own: OwnStore) -> ResolvedStore:
        given = next(self._values_given(SETTINGS["schema"]), None)
        kept = own.options.get("schema", "stowhand" if own.url is not None else None)
        if store.scheme != "postgresql" or given is None or given.rank > ON_PURPOSE or kept in (None, given.text):
            return store
        note = (
            f"{given.source} {given.text} outdoes the schema of {own.source}, {kept}: its other processes enqueue there"
        )
        return msgspec.structs.replace(store, note="; ".join(filter(None, (store.note, note))))

    def check(self, values: Mapping[str, Any], connection: ResolvedStore | None) -> None:
        """Check settings against each other."""
        pool = values["max_pool_size"]
        if connection is not None and connection.scheme == "postgresql" and pool is not None:
            refusal = pool_refusal(f"--max-pool-size {pool}", pool)
            self._found += [refusal] if refusal else []
        if connection is not None and connection.scheme == "memory":
            self._found.extend(_in_memory(connection, values["processes"]))
        if connection is not None and connection.is_lent:
            for name in NOT_REMOTE:
                if (given := next(self._values_given(SETTINGS[name]), None)) is not None:
                    self._found.append(
                        f"{given.source}: means nothing for {connection.url}, which another process keeps;"
                        " it is set where 'stowhand serve' runs"
                    )

    def _parsed(self, setting: Setting, preset: Mapping[str, str]) -> Any:
        given = next(self._values_given(setting), None)
        if setting.name in self._owned and (given is None or given.rank > self._outdone_by):
            return self._owned[setting.name]
        text = given.text if given is not None else preset.get(setting.name, setting.default)
        if text is None:
            return None
        try:
            return setting.parse(text)
        except ValueError as error:
            self._found.append(f"{given.source if given else setting.name}: {error}")
            return setting.parse(setting.default) if setting.default is not None else None

    def _values_given(self, setting: Setting) -> Iterator[Given]:
        """The values given for a setting, strongest first. An empty environment variable gives none."""
        of_a_store = setting.name in _OF_A_STORE
        flag = self._flags.get(setting.name)
        if flag is not None:
            yield Given(_as_text(flag), setting.option, 0)
        for name in (PREFIX + called.upper() for called in setting.names):
            if (variable := self._environ.get(name)) and not (of_a_store and self._foreign == 1):
                yield Given(variable, name, 1)
        if setting.name in self._file.values and not (of_a_store and self._foreign == 2):
            yield Given(self._file.values[setting.name], f"{self._file.name}: {setting.name}", 2)

    def tasks_or_app(self) -> dict[str, Any]:
        """One of the two: a stronger source silences the other; the same source may not name both."""
        tasks, app = (next(self._values_given(SETTINGS[name]), None) for name in ("tasks", "app"))
        if tasks is None or app is None:
            return {}
        if tasks.rank == app.rank:
            self._found.append(f"{tasks.source} and {app.source} are both given: leave out one of them")
        return {"app": None} if tasks.rank < app.rank else {"tasks": None}


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like settings and are none, each with a sentence."""
    known = [PREFIX + called.upper() for called in CALLED]
    found = []
    for name, value in environ.items():
        if name.startswith(PREFIX) and name not in known and not _is_of_others(name, value):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            found.append((name, f"the variable {name} means nothing here{hint}"))
    return found


def _is_of_others(name: str, value: str) -> bool:
    """Set for a program that runs as a task, or by Kubernetes for a Service called stowhand."""
    is_of_a_task = name in _NO_SETTINGS or name.startswith("STOWHAND_JOB_")
    return is_of_a_task or bool(_SERVICE.search(name)) or (name.startswith("STOWHAND_PORT") and "://" in value)


def _in_memory(store: ResolvedStore, processes: int) -> Iterator[str]:
    """Jobs in memory belong to the process that enqueued them."""
    if store.app is None:
        yield f"{store.source}: a store in memory ends with its process: name it in the App of a worker, App('memory://')"
    if processes > 1:
        yield f"--processes {processes}: the store of {store.source} is in the memory of one process"


def _wants_debugging(environ: Mapping[str, str]) -> bool:
    return environ.get("STOWHAND_DEBUG", "") not in ("", "0")


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
