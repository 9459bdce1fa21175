"""Resolves the settings and the store: the only code that decides which source wins.

| source | of a command | inside a program |
|---|---|---|
| what was typed; a caller's arguments | 1 | |
| ``STOWHAND_<NAME>`` | 2 | 2 |
| an App's arguments about its store | 3 | 1 |
| ``stowhand.toml``, else ``[tool.stowhand]`` in ``pyproject.toml``, of the current folder | 4 | 3 |
| for the connection: ``DATABASE_URL``, then ``PGDATABASE`` | 5 | 4 |
| the preset, then the default | 6 | 5 |

A command takes an App's arguments only where the store is the App's own. Inside a program a source that names another
store than the App's gives nothing about stores. Problems are reported all at once.
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

NOT_REMOTE = (
    "schema",
    "history",
    "failed_retention",
    "synchronous",
    "no_prepared_statements",
    "crontab",
    "max_pool_size",
    "listen_url",
)
"""Set where a lent store is kept, not where it is used."""
_NO_SETTINGS = (
    "STOWHAND_DEBUG",
    "STOWHAND_BENCH_PROBE",
    "STOWHAND_TASK_IDENTIFIER",
    "STOWHAND_PAYLOAD_FORMAT",
)
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")
_OF_A_STORE = {
    option.name for option in SETTINGS.values() if option.field in ("connection", *StoreOptions.__struct_fields__)
} - {"max_attempts"}
TYPED, ENVIRONMENT, FILE, DATABASE_URL, UNNAMED_STORE, APP = range(6)
"""Ranks of sources; the lowest wins, but an App comes after ENVIRONMENT, and inside a program first."""
_INSTEAD = {
    FILE: "-c or STOWHAND_CONNECTION",
    DATABASE_URL: "App() without a URL, -c, or STOWHAND_CONNECTION",
}
"""How to work on the store that a source names beside an App with another."""


class Given(msgspec.Struct, frozen=True):
    """The value of a setting, and its source."""

    value: Any
    """Text; from an App the value itself."""
    source: str
    """For people."""
    rank: int


def read_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    own_store: Callable[[str], OwnStore] | None = None,
) -> WorkerSettings:
    """Merge all sources. ``flags``: typed values as text, by setting name; ``None`` means not typed.

    ``own_store``: gives the store of the App of that name; ``None``: Apps do not count. Raises one
    ConfigurationError for everything that is wrong.
    """
    sources = _Sources(flags or {}, environ, folder)
    one_of = sources.tasks_or_app()
    own = None
    if own_store is not None and "app" not in one_of and (app := sources.given("app")) is not None:
        own = own_store(app.value)
    connection = sources.connection(own)
    values = sources.values() | one_of
    sources.check(values, connection)
    sources.finish()
    assert connection is not None
    worker = preset_worker(values["preset"], _of(WorkerOptions, values))
    values["pool_size"] = values.get("pool_size") or worker.concurrency + RESERVED_CONNECTIONS
    options = StoreOptions(**_of(StoreOptions, values))
    store = StoreSettings(connection=connection, options=options)
    return WorkerSettings(
        store=store, worker=worker, timings=read_timings(sources.environ), **_of(WorkerSettings, values)
    )


def _of(declaring: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a struct that are settings: a worker's own ``tasks`` are none."""
    settings = (field for field, option in options_of(declaring).items() if option.on != "python")
    return {field: values[field] for field in settings if field in values}


def read_store(own: OwnStore) -> tuple[str, StoreOptions]:
    """Return URL and options of an App's store, inside a program. Raises ConfigurationError."""
    sources = _Sources({})
    if own.url is None:
        connection = sources.connection(None)
    else:
        sources.leave_out_stores_but(own.url)
        connection = ResolvedStore(own.url, own.source)
    sources.add_app(own, 0)
    values = sources.values([option for option in SETTINGS.values() if option.field in StoreOptions.__struct_fields__])
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    sources.finish()
    assert connection is not None
    of_programs = {name: value for name, value in own.options.items() if name != "preset"}
    return connection.url, StoreOptions(**{**_of(StoreOptions, values), **of_programs})


def read_setting(name: str, flag: str | None = None, own: OwnStore | None = None) -> Any:
    """Return one setting, also if others are wrong. ``own``: the App's arguments. Raises ConfigurationError."""
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
    """Return the store; ``explicit``: a flag or an argument that names it. Raises ConfigurationError."""
    sources = _Sources({"connection": explicit}, environ, folder)
    connection = sources.connection(None)
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
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
        typed = {
            name: Given(_as_text(flag), SETTINGS[name].flag, TYPED) for name, flag in flags.items() if flag is not None
        }
        variables: dict[str, Given] = {}
        for option in SETTINGS.values():
            for name in option.variables:
                if (text := self.environ.get(name)) and option.name not in variables:  # an empty one gives none
                    variables[option.name] = Given(text, name, ENVIRONMENT)
        of_file = {name: Given(text, f"{file.name}: {name}", FILE) for name, text in file.values.items()}
        self._in_order: list[dict[str, Given]] = [typed, variables, of_file]
        self._problems: list[str] = [*file.problems]
        self._store_problems: list[str] = []

    def finish(self) -> None:
        """Raises ConfigurationError with all problems; those of the store last, although it is resolved first, for its
        App gives values too."""
        if problems := [*self._problems, *self._store_problems]:
            raise ConfigurationError("\n".join(problems))

    def given(self, name: str) -> Given | None:
        """Return the value of the strongest source."""
        return next((source[name] for source in self._in_order if name in source), None)

    def values(self, wanted: Iterable[Option] = SETTINGS.values()) -> dict[str, Any]:
        """Return the values that are set, by field, and the preset in any case."""
        preset = SETTINGS["preset"]
        chosen = self._value(preset, {"preset": preset.default})
        debugs = self.environ.get("STOWHAND_DEBUG", "") not in ("", "0")
        defaults = PRESETS[chosen] | ({"log_level": "debug"} if debugs else {})
        values = {
            option.field: value
            for option in wanted
            if option.name not in ("connection", "preset")
            if (value := self._value(option, defaults)) is not UNSET
        }
        return {**values, "preset": chosen}

    def tasks_or_app(self) -> dict[str, Any]:
        """Keep one of ``tasks`` and ``app``, that of the stronger source. One source may not name both."""
        tasks, app = self.given("tasks"), self.given("app")
        if tasks is None or app is None:
            return {}
        if tasks.rank == app.rank:
            self._problems.append(f"{tasks.source} and {app.source} are both given: leave out one of them")
        return {"app": None} if tasks.rank <= app.rank else {"tasks": None}

    def add_app(self, own: OwnStore, place: int) -> None:
        """Insert the App's arguments before the source at this place."""
        self._in_order.insert(
            place,
            {
                option.name: Given(own.options[option.field], own.source, APP)
                for option in SETTINGS.values()
                if option.field in own.options
            },
        )

    def leave_out_stores_but(self, url: str) -> None:
        """Drop the store settings of the source that names a connection, if it names another store."""
        given = self.given("connection")
        if given is not None and not self._is_same(_readable(given), url):
            for name in _OF_A_STORE:
                self._in_order[given.rank].pop(name, None)

    def connection(self, own: OwnStore | None) -> ResolvedStore | None:
        """Return the store; ``None`` after adding a problem if no store can be read."""
        try:
            store = self._choose(own)
        except ConfigurationError as error:
            self._store_problems = [str(error)]
            return None
        if own is not None and (own.url is None or self._is_same(store.url, own.url)):
            store = self._with_its_schema(store, own)
            self.add_app(own, FILE)
        return store

    def _choose(self, own: OwnStore | None) -> ResolvedStore:
        given, note = self.given("connection"), ""
        if given is None:
            given, note = _of_the_environment(self.environ)
        if own is None or own.url is None:
            return _named(given, note)
        if given.rank > ENVIRONMENT:
            return ResolvedStore(own.url, own.source, self._passed_over(given, own), own.app if own.made else None)
        store = _named(given)
        if self._is_same(store.url, own.url):
            return store
        note = (
            f"{own.source} names another store, {scrub(own.url)}: what its tasks enqueue by themselves, and what its"
            f" other processes enqueue, goes there and not here; {given.source} is what leads away from it"
        )
        return msgspec.structs.replace(store, note=note)

    def _passed_over(self, given: Given, own: OwnStore) -> str:
        """Return a note about a source that names another store: production may have used that one before."""
        url = _readable(given)
        if given.rank not in _INSTEAD or url is None or self._is_same(url, own.url):
            return ""
        return (
            f"{given.source} names {scrub(url)}, which is not used, for {own.source} names its own; to work there:"
            f" {_INSTEAD[given.rank]}"
        )

    def _is_same(self, url: str | None, other: str | None) -> bool:
        return url is not None and other is not None and same_store(url, other, self.environ)

    def _with_its_schema(self, store: ResolvedStore, own: OwnStore) -> ResolvedStore:
        given = self.given("schema")
        kept = own.options.get("schema", "stowhand" if own.url is not None else None)
        if store.scheme != "postgresql" or given is None or given.rank > ENVIRONMENT or kept in (None, given.value):
            return store
        note = (
            f"{given.source} {given.value} outdoes the schema of {own.source}, {kept}: its other processes enqueue"
            " there"
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
            self._problems.extend(_in_memory(connection, values.get("processes", 1)))
        if connection.is_lent:
            for name in NOT_REMOTE:
                if (given := self.given(name)) is not None and given.rank != APP:
                    self._problems.append(
                        f"{given.source}: means nothing for {connection.url}, which another process keeps;"
                        " it is set where 'stowhand serve' runs"
                    )

    def _value(self, option: Option, defaults: Mapping[str, Any]) -> Any:
        """Return the value of a setting; ``UNSET`` if it is set nowhere."""
        given = self.given(option.name)
        if given is not None and given.rank == APP:
            return given.value
        if given is not None:
            try:
                return listen_address(given.value) if option.field == "listen_url" else option.parse(given.value)
            except ValueError as error:
                self._problems.append(f"{given.source}: {error}")
        return defaults.get(option.field, UNSET)


def _of_the_environment(environ: Mapping[str, str]) -> tuple[Given, str]:
    """Return the connection if no setting names one, and a note."""
    database_url = environ.get("DATABASE_URL", "")
    if database_url.startswith(("postgres://", "postgresql://")):
        return Given(database_url, "DATABASE_URL", DATABASE_URL), ""
    note = "DATABASE_URL does not name a PostgreSQL database and was left alone" if database_url else ""
    if environ.get("PGDATABASE"):
        return Given("postgresql://", "PGDATABASE and its companions", UNNAMED_STORE), note
    return Given(DEFAULT_STORE, DEFAULT_STORE_SOURCE, UNNAMED_STORE), note


def _named(given: Given, note: str = "") -> ResolvedStore:
    try:
        return ResolvedStore(store_url(given.value), given.source, note)
    except (ConfigurationError, UnicodeError) as error:
        raise ConfigurationError(f"{given.source}: {error}") from None


def _readable(given: Given) -> str | None:
    try:
        return _named(given).url
    except ConfigurationError:
        return None


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return variables that look like settings and are none, each with a sentence."""
    known = [variable for option in SETTINGS.values() for variable in option.variables]
    found = []
    for name, value in environ.items():
        if name == TIMINGS_VARIABLE:
            found.append((name, f"{name} changes how long a worker waits: it is for the tests of Stowhand alone"))
        elif name.startswith(VARIABLE_PREFIX) and name not in known and not _is_of_others(name, value):
            bare = name.removeprefix(VARIABLE_PREFIX).lower()
            meant = VARIABLE_PREFIX + next(iter(find_equivalents(bare, SETTINGS)), SYNONYMS.get(bare, bare)).upper()
            found.append((name, f"the variable {name} means nothing here{hint(meant, known, 0.8)}"))
    return found


def _is_of_others(name: str, value: str) -> bool:
    """Return whether a variable is of a program that runs as a task, or of a Kubernetes Service called stowhand."""
    is_of_a_task = name in _NO_SETTINGS or name.startswith("STOWHAND_JOB_")
    return is_of_a_task or bool(_SERVICE.search(name)) or (name.startswith("STOWHAND_PORT") and "://" in value)


def _in_memory(store: ResolvedStore, processes: int) -> Iterator[str]:
    """Jobs in memory belong to the process that enqueued them."""
    if store.app is None:
        yield f"{store.source}: a store in memory ends with its process: name it in the App of a worker, App('memory://')"
    if processes > 1:
        yield f"--processes {processes}: the store of {store.source} is in the memory of one process"


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
