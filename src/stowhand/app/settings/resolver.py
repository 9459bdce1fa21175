"""Resolves the settings and the store: the only code that decides which source wins.

| source | of a command | inside a program |
|---|---|---|
| options of the command line; a caller's arguments | 1 | |
| ``STOWHAND_<NAME>`` | 2 | 2 |
| an App's arguments about its store | 3 | 1 |
| ``stowhand.toml``, else ``[tool.stowhand]`` in ``pyproject.toml``, of the current folder | 4 | 3 |
| for the connection: ``DATABASE_URL``, then ``PGDATABASE`` | 5 | 4 |
| the preset, then the default | 6 | 5 |

A command uses an App's arguments only if the store is the App's own. Inside a program, settings of stores are ignored
in a source that names another store than the App's. All problems are reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from stowhand.app.own_store import DEFAULT_STORE, DEFAULT_STORE_SOURCE, OwnStore, ResolvedStore, same_store
from stowhand.app.presets import PRESETS, preset_worker
from stowhand.app.settings.addresses import listen_address
from stowhand.app.settings.file import read_settings_file
from stowhand.app.settings.settings import SETTINGS, StoreSettings, WorkerSettings
from stowhand.errors import SYNONYMS, ConfigurationError, hint
from stowhand.hints import find_equivalents
from stowhand.observe.safe_text import scrub
from stowhand.protocols.options import VARIABLE_PREFIX, Option, WorkerOptions, options_of
from stowhand.protocols.store import RESERVED_CONNECTIONS, StoreOptions, pool_refusal
from stowhand.stores.url import store_url
from stowhand.worker.host import TIMINGS_VARIABLE, read_timings

NOT_REMOTE_SETTINGS = (
    "schema",
    "history",
    "failed_retention",
    "synchronous",
    "no_prepared_statements",
    "crontab",
    "max_pool_size",
    "listen_url",
)
"""Settings of the process that lends a store, which its remote users cannot set."""
_OTHER_VARIABLES = (
    "STOWHAND_DEBUG",
    "STOWHAND_BENCH_PROBE",
    "STOWHAND_TASK_IDENTIFIER",
    "STOWHAND_PAYLOAD_FORMAT",
)
_SERVICE_VARIABLE_PATTERN = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")
_DRIVER_PATTERN = re.compile(r"(?:postgres|postgresql|sqlite)(\+\w+):")
_STORE_SETTINGS = {
    option.name for option in SETTINGS.values() if option.field in ("connection", *StoreOptions.__struct_fields__)
} - {"max_attempts"}
ARGUMENT, ENVIRONMENT, FILE, DATABASE_URL, UNNAMED_STORE, APP = range(6)
"""Ranks of sources. The lowest wins, except that an App comes after ENVIRONMENT, and inside a program first."""
_ALTERNATIVES = {
    FILE: "-c or STOWHAND_CONNECTION",
    DATABASE_URL: "App() without a URL, -c, or STOWHAND_CONNECTION",
}
"""How to use the store that a source names, if an App names another one; by the rank of the source."""


class SettingValue(msgspec.Struct, frozen=True):
    """The value of a setting, and its source."""

    value: Any
    """Text; from an App the value itself."""
    source: str
    """Name of the source, for messages."""
    rank: int


def read_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    own_store: Callable[[str], OwnStore] | None = None,
) -> WorkerSettings:
    """Return the settings of a worker process, merged from all sources.

    Args:
        flags: values of the command line as text, by setting name; ``None`` is an absent option.
        environ: the environment; by default that of this process.
        folder: the folder of the settings file; by default the current one.
        own_store: function that returns the store of the App with a name; without it Apps are ignored.

    Raises:
        ConfigurationError: Settings are invalid; the message lists all problems.

    """
    sources = _Sources(flags or {}, environ, folder)
    tasks_or_app = sources.tasks_or_app()
    own = None
    if own_store is not None and "app" not in tasks_or_app and (app := sources.find("app")) is not None:
        own = own_store(app.value)
    connection = sources.connection(own)
    values = sources.values() | tasks_or_app
    sources.check(values, connection)
    sources.finish()
    assert connection is not None
    worker = preset_worker(values["preset"], _settings_of(WorkerOptions, values))
    values["pool_size"] = values.get("pool_size") or worker.concurrency + RESERVED_CONNECTIONS
    options = StoreOptions(**_settings_of(StoreOptions, values))
    store = StoreSettings(connection=connection, options=options)
    return WorkerSettings(
        store=store, worker=worker, timings=read_timings(sources.environ), **_settings_of(WorkerSettings, values)
    )


def _settings_of(declaring: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a struct that are settings, which excludes a worker's own ``tasks``."""
    settings = (field for field, option in options_of(declaring).items() if option.on != "python")
    return {field: values[field] for field in settings if field in values}


def read_store(own: OwnStore) -> tuple[str, StoreOptions]:
    """Return URL and options of an App's store, inside a program. Raises ConfigurationError."""
    sources = _Sources({})
    if own.url is None:
        connection = sources.connection(None)
    else:
        sources.drop_other_stores(own.url)
        connection = ResolvedStore(own.url, own.source)
    sources.add_app(own, 0)
    values = sources.values([option for option in SETTINGS.values() if option.field in StoreOptions.__struct_fields__])
    # A file that cannot be read may name another store. Jobs in the default store would be lost.
    sources.finish()
    assert connection is not None
    own_options = {name: value for name, value in own.options.items() if name != "preset"}
    return connection.url, StoreOptions(**{**_settings_of(StoreOptions, values), **own_options})


def read_setting(name: str, flag: str | None = None, own: OwnStore | None = None) -> Any:
    """Return one setting, even if others are invalid. ``own``: the App's arguments. Raises ConfigurationError."""
    sources = _Sources({name: flag})
    if own is not None:
        sources.add_app(own, 0)
    option = SETTINGS[name]
    value = sources.values([option]).get(option.field, option.default)
    sources.finish()
    return value


def resolve_store_url(
    explicit: str | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> ResolvedStore:
    """Return the store. ``explicit``: a flag or an argument that names it. Raises ConfigurationError."""
    sources = _Sources({"connection": explicit}, environ, folder)
    connection = sources.connection(None)
    # A file that cannot be read may name another store. Jobs in the default store would be lost.
    if connection is None or explicit is None:
        sources.finish()
    assert connection is not None
    return connection


class _Sources:
    """The values of each source. Collects problems instead of stopping at the first."""

    def __init__(
        self, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self.environ = os.environ if environ is None else environ
        file = read_settings_file(folder or Path())
        arguments = {
            name: SettingValue(_as_text(flag), SETTINGS[name].flag, ARGUMENT)
            for name, flag in flags.items()
            if flag is not None
        }
        variables: dict[str, SettingValue] = {}
        for option in SETTINGS.values():
            for name in option.variables:
                if (text := self.environ.get(name)) and option.name not in variables:  # an empty variable is absent
                    variables[option.name] = SettingValue(text, name, ENVIRONMENT)
        file_values = {name: SettingValue(text, f"{file.name}: {name}", FILE) for name, text in file.values.items()}
        self._sources: list[dict[str, SettingValue]] = [arguments, variables, file_values]
        self._problems: list[str] = [*file.problems]
        self._store_problems: list[str] = []

    def finish(self) -> None:
        """Raise ConfigurationError with all problems, if any; those of the store last.

        The store is resolved first, because its App supplies values too.
        """
        if problems := [*self._problems, *self._store_problems]:
            raise ConfigurationError("\n".join(problems))

    def find(self, name: str) -> SettingValue | None:
        """Return the value of the strongest source."""
        return next((source[name] for source in self._sources if name in source), None)

    def values(self, settings: Iterable[Option] = SETTINGS.values()) -> dict[str, Any]:
        """Return the values that are set, by field, and always the preset."""
        preset = SETTINGS["preset"]
        preset_name = self._value(preset, {"preset": preset.default})
        is_debugging = self.environ.get("STOWHAND_DEBUG", "") not in ("", "0")
        defaults = PRESETS[preset_name] | ({"log_level": "debug"} if is_debugging else {})
        values = {
            option.field: value
            for option in settings
            if option.name not in ("connection", "preset")
            if (value := self._value(option, defaults)) is not UNSET
        }
        return {**values, "preset": preset_name}

    def tasks_or_app(self) -> dict[str, Any]:
        """Return ``None`` for the weaker of ``tasks`` and ``app``, if both are set. One source may not set both."""
        tasks, app = self.find("tasks"), self.find("app")
        if tasks is None or app is None:
            return {}
        if tasks.rank == app.rank:
            self._problems.append(f"{tasks.source} and {app.source} are both given; leave out one of them")
        return {"app": None} if tasks.rank <= app.rank else {"tasks": None}

    def add_app(self, own: OwnStore, position: int) -> None:
        """Insert the App's arguments before the source at this place."""
        self._sources.insert(
            position,
            {
                option.name: SettingValue(own.options[option.field], own.source, APP)
                for option in SETTINGS.values()
                if option.field in own.options
            },
        )

    def drop_other_stores(self, url: str) -> None:
        """Drop the store settings of the source that names a connection, if it names another store."""
        setting = self.find("connection")
        if setting is not None and not self._is_same(_url_of(setting), url):
            for name in _STORE_SETTINGS:
                self._sources[setting.rank].pop(name, None)

    def connection(self, own: OwnStore | None) -> ResolvedStore | None:
        """Return the store; ``None`` after adding a problem if no store can be read."""
        try:
            store = self._choose(own)
        except ConfigurationError as error:
            self._store_problems = [str(error)]
            return None
        if own is not None and (own.url is None or self._is_same(store.url, own.url)):
            store = self._with_schema_note(store, own)
            self.add_app(own, FILE)
        return store

    def _choose(self, own: OwnStore | None) -> ResolvedStore:
        setting, note = self.find("connection"), ""
        if setting is None:
            setting, note = _connection_of_environment(self.environ)
        if own is None or own.url is None:
            return _resolve(setting, note)
        if setting.rank > ENVIRONMENT:
            note = self._unused_source_note(setting, own)
            return ResolvedStore(own.url, own.source, note, own.app if own.made else None)
        store = _resolve(setting)
        if self._is_same(store.url, own.url):
            return store
        note = (
            f"{setting.source} overrides the store of {own.source}, {scrub(own.url)}; jobs that its tasks and its other"
            " processes enqueue go there"
        )
        return msgspec.structs.replace(store, note=note)

    def _unused_source_note(self, setting: SettingValue, own: OwnStore) -> str:
        """Return a note about a source that names another store: production may have used that one before."""
        url = _url_of(setting)
        if setting.rank not in _ALTERNATIVES or url is None or self._is_same(url, own.url):
            return ""
        return (
            f"{setting.source} names {scrub(url)}, which is not used, because {own.source} names its own store; to use"
            f" it: {_ALTERNATIVES[setting.rank]}"
        )

    def _is_same(self, url: str | None, other: str | None) -> bool:
        return url is not None and other is not None and same_store(url, other, self.environ)

    def _with_schema_note(self, store: ResolvedStore, own: OwnStore) -> ResolvedStore:
        setting = self.find("schema")
        own_schema = own.options.get("schema", "stowhand" if own.url is not None else None)
        if store.scheme != "postgresql" or setting is None or setting.rank > ENVIRONMENT:
            return store
        if own_schema in (None, setting.value):
            return store
        note = (
            f"{setting.source} {setting.value} overrides the schema of {own.source}, {own_schema}, in which its other"
            " processes enqueue"
        )
        return msgspec.structs.replace(store, note="; ".join(filter(None, (store.note, note))))

    def check(self, values: Mapping[str, Any], connection: ResolvedStore | None) -> None:
        """Check settings against each other."""
        if connection is None:
            return
        pool = values.get("pool_size")
        if connection.scheme == "postgresql" and pool is not None:
            refusal = pool_refusal(f"--max-pool-size {pool}", pool)
            self._problems += [refusal] if refusal else []
        if connection.scheme == "memory":
            self._problems.extend(_memory_problems(connection, values.get("processes", 1)))
        if connection.is_lent:
            for name in NOT_REMOTE_SETTINGS:
                if (setting := self.find(name)) is not None and setting.rank != APP:
                    self._problems.append(
                        f"{setting.source}: has no effect for {connection.url}, which another process lends;"
                        " set it where 'stowhand serve' runs"
                    )

    def _value(self, option: Option, defaults: Mapping[str, Any]) -> Any:
        """Return the value of a setting; ``UNSET`` if it is set nowhere."""
        setting = self.find(option.name)
        if setting is not None and setting.rank == APP:
            return setting.value
        if setting is not None:
            try:
                return listen_address(setting.value) if option.field == "listen_url" else option.parse(setting.value)
            except ValueError as error:
                self._problems.append(f"{setting.source}: {error}")
        return defaults.get(option.field, UNSET)


def _connection_of_environment(environ: Mapping[str, str]) -> tuple[SettingValue, str]:
    """Return the connection if no setting names one, and a note."""
    database_url = environ.get("DATABASE_URL", "")
    if database_url.startswith(("postgres://", "postgresql://")):
        return SettingValue(database_url, "DATABASE_URL", DATABASE_URL), ""
    note = _note_of_ignored(database_url) if database_url else ""
    if environ.get("PGDATABASE"):
        return SettingValue("postgresql://", "PGDATABASE and related variables", UNNAMED_STORE), note
    return SettingValue(DEFAULT_STORE, DEFAULT_STORE_SOURCE, UNNAMED_STORE), note


def _note_of_ignored(database_url: str) -> str:
    driver = _DRIVER_PATTERN.match(database_url)
    if driver:  # an address for SQLAlchemy
        return f"DATABASE_URL names a driver and is ignored: leave out '{driver[1]}'"
    return "DATABASE_URL does not name a PostgreSQL database and is ignored"


def _resolve(setting: SettingValue, note: str = "") -> ResolvedStore:
    try:
        return ResolvedStore(store_url(setting.value), setting.source, note)
    except (ConfigurationError, UnicodeError) as error:
        raise ConfigurationError(f"{setting.source}: {error}") from None


def _url_of(setting: SettingValue) -> str | None:
    try:
        return _resolve(setting).url
    except ConfigurationError:
        return None


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return variables that look like settings but are not, each with a warning."""
    known = [variable for option in SETTINGS.values() for variable in option.variables]
    warnings = []
    for name, value in environ.items():
        if name == TIMINGS_VARIABLE:
            warnings.append(
                (name, f"{name} changes how long a worker waits; it is meant for Stowhand's own tests only")
            )
        elif name.startswith(VARIABLE_PREFIX) and name not in known and not _is_no_setting(name, value):
            name_without_prefix = name.removeprefix(VARIABLE_PREFIX).lower()
            synonym = SYNONYMS.get(name_without_prefix, name_without_prefix)
            own_name = next(iter(find_equivalents(name_without_prefix, SETTINGS)), synonym)
            suggestion = hint(VARIABLE_PREFIX + own_name.upper(), known, 0.8)
            warnings.append((name, f"the variable {name} is not a setting{suggestion}"))
    return warnings


def _is_no_setting(name: str, value: str) -> bool:
    """Return whether a variable was set for a program that runs as a task, or for a Kubernetes Service ``stowhand``."""
    is_task_variable = name in _OTHER_VARIABLES or name.startswith("STOWHAND_JOB_")
    is_service_variable = bool(_SERVICE_VARIABLE_PATTERN.search(name))
    return is_task_variable or is_service_variable or (name.startswith("STOWHAND_PORT") and "://" in value)


def _memory_problems(store: ResolvedStore, processes: int) -> Iterator[str]:
    """Yield the problems of a store in memory, which exists in one process only."""
    if store.app is None:
        yield f"{store.source}: a store in memory exists in one process only; name it in an App: App('memory://')"
    if processes > 1:
        yield f"--processes {processes}: the store of {store.source} exists in the memory of one process only"


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
