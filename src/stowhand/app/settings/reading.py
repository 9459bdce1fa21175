"""Resolves the settings from all their sources (settings.py lists them).

The first source that gives a value wins: a flag, ``STOWHAND_<NAME>``, an App's arguments for its own store,
``stowhand.toml`` (or ``[tool.stowhand]`` in ``pyproject.toml``) in the current folder, the preset, the default. Which
store that is: own_store.py. Inside a program an App's arguments come first. Problems are reported all at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from stowhand.app.own_store import ON_PURPOSE, Given, OwnStore, ResolvedStore, choose, is_own, same_store
from stowhand.app.presets import PRESETS, preset_worker
from stowhand.app.settings.addresses import listen_address
from stowhand.app.settings.file import SettingsFile, read_settings_file
from stowhand.app.settings.settings import SETTINGS, StoreSettings, WorkerSettings
from stowhand.errors import SYNONYMS, ConfigurationError, hint
from stowhand.protocols.option import PREFIX, Option, options_of
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import RESERVED_CONNECTIONS, StoreOptions, pool_refusal
from stowhand.stores.url import store_url
from stowhand.worker.timings import VARIABLE, read_timings

NOT_REMOTE = (
    "schema",
    "history",
    "failed_retention",
    "synchronous",
    "no_prepared_statements",
    "crontab",
    "max_pool_size",
    "listen_url",
    "notify",
)
"""Set where a lent store is kept, not where it is used."""
_NO_SETTINGS = (
    "STOWHAND_DEBUG",
    "STOWHAND_BENCH_PROBE",
    "STOWHAND_TASK_IDENTIFIER",
    "STOWHAND_PAYLOAD_FORMAT",
)
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP)(_\w+)?$")
_OF_A_STORE = {"connection", *StoreOptions.__struct_fields__} - {"max_attempts"}


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
    reading = _Reading(flags or {}, environ, folder)
    one_of = reading.tasks_or_app()
    connection = reading.connection(None if own_store is None else reading.own_store(own_store, one_of))
    values = reading.values() | one_of
    reading.check(values, connection)
    reading.finish()
    assert connection is not None
    worker = preset_worker(values["preset"], _of(WorkerOptions, values))
    values["pool_size"] = values.get("pool_size") or worker.concurrency + RESERVED_CONNECTIONS
    options = StoreOptions(**_of(StoreOptions, values))
    store = StoreSettings(connection=connection, options=options)
    return WorkerSettings(
        store=store, worker=worker, timings=read_timings(reading.environ), **_of(WorkerSettings, values)
    )


def _of(declaring: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these fields; a worker's own ``tasks`` are no setting."""
    settings = (field for field, option in options_of(declaring).items() if option.on != "python")
    return {field: values[field] for field in settings if field in values}


def read_store(own: OwnStore) -> tuple[str, StoreOptions]:
    """The URL and the options of an App's store, inside a program: its arguments first, then everything else.

    What the environment or the file says of another store than the App's does not hold for this one. Raises
    ConfigurationError.
    """
    reading = _Reading({})
    reading.lead(own)
    connection = reading.connection(None) if own.url is None else ResolvedStore(own.url, own.source)
    values = reading.values([option for option in SETTINGS.values() if option.field in StoreOptions.__struct_fields__])
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    reading.finish()
    assert connection is not None
    return connection.url, StoreOptions(**_of(StoreOptions, values))


def read_setting(name: str, flag: str | None = None) -> Any:
    """One of them, whatever is wrong with the others. Raises ConfigurationError."""
    reading = _Reading({name: flag})
    option = SETTINGS[name]
    value = reading.values([option]).get(option.field, option.default)
    reading.finish()
    return value


def read_preset(own: OwnStore) -> str:
    """The preset of an App: its argument first, then the environment and the file. Raises ConfigurationError."""
    reading = _Reading({})
    reading.lead(own)
    preset: str = reading.values(())["preset"]
    reading.finish()
    return preset


def resolve_store_url(
    explicit: str | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> ResolvedStore:
    """Which store is meant when ``explicit`` (a flag, an argument) is given or not. Raises ConfigurationError."""
    reading = _Reading({"connection": explicit}, environ, folder)
    connection = reading.connection(None)
    # A file that cannot be read may have named another store: going on to the default would lose jobs there.
    if connection is None or explicit is None:
        reading.finish()
    assert connection is not None
    return connection


class _Reading:
    """One pass over all sources; collects problems instead of stopping at the first."""

    def __init__(
        self, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._flags = flags
        self.environ = os.environ if environ is None else environ
        self._file: SettingsFile = read_settings_file(folder or Path())
        self._owned: Mapping[str, Any] = {}
        """Values that an App gives for the store that is used."""
        self._outdone_by = ON_PURPOSE
        """The weakest rank that takes precedence over the App."""
        self._foreign: int | None = None
        """The rank whose values are for another store."""
        self._found: list[str] = [*self._file.problems]
        self._of_the_store: list[str] = []

    def finish(self) -> None:
        """Raises ConfigurationError with all problems; those of the store last, although it is resolved first, for its
        App gives values too."""
        if problems := [*self._found, *self._of_the_store]:
            raise ConfigurationError("\n".join(problems))

    def values(self, wanted: Iterable[Option] = SETTINGS.values()) -> dict[str, Any]:
        """What is set, by field, and the preset in any case."""
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

    def own_store(self, own_store: Callable[[str], OwnStore], one_of: Mapping[str, Any]) -> OwnStore | None:
        """The store of the App that is named; ``None``: none is named."""
        given = self._given(SETTINGS["app"])
        rival = self._given(SETTINGS["tasks"])
        contradicted = given is None or "app" in one_of or (rival is not None and rival.rank == given.rank)
        return None if given is None or contradicted else own_store(given.text)

    def connection(self, own: OwnStore | None) -> ResolvedStore | None:
        """The store; ``None`` when what was given cannot be one, which is then among the problems."""
        try:
            store = choose(self._given(SETTINGS["connection"]), own, self.environ)
        except ConfigurationError as error:
            self._of_the_store = [str(error)]
            return None
        if own is not None and is_own(store, own, self.environ):
            self._owned = own.options
            store = self._with_its_schema(store, own)
        return store

    def lead(self, own: OwnStore) -> None:
        """Let the App take precedence, and ignore values for another store."""
        self._owned, self._outdone_by = own.options, -1
        given = self._given(SETTINGS["connection"])
        if given is None or own.url is None:
            return
        try:
            if not same_store(store_url(given.text), own.url, self.environ):
                self._foreign = given.rank
        except (ConfigurationError, UnicodeError):
            self._foreign = given.rank

    def _with_its_schema(self, store: ResolvedStore, own: OwnStore) -> ResolvedStore:
        given = self._given(SETTINGS["schema"])
        kept = own.options.get("schema", "stowhand" if own.url is not None else None)
        if store.scheme != "postgresql" or given is None or given.rank > ON_PURPOSE or kept in (None, given.text):
            return store
        note = (
            f"{given.source} {given.text} outdoes the schema of {own.source}, {kept}: its other processes enqueue there"
        )
        return msgspec.structs.replace(store, note="; ".join(filter(None, (store.note, note))))

    def check(self, values: Mapping[str, Any], connection: ResolvedStore | None) -> None:
        """Check settings against each other."""
        pool = values.get("pool_size")
        if connection is not None and connection.scheme == "postgresql" and pool is not None:
            refusal = pool_refusal(f"--max-pool-size {pool}", pool)
            self._found += [refusal] if refusal else []
        if connection is not None and connection.scheme == "memory":
            self._found.extend(_in_memory(connection, values.get("processes", 1)))
        if connection is not None and connection.is_lent:
            for name in NOT_REMOTE:
                if (given := self._given(SETTINGS[name])) is not None:
                    self._found.append(
                        f"{given.source}: means nothing for {connection.url}, which another process keeps;"
                        " it is set where 'stowhand serve' runs"
                    )

    def _value(self, option: Option, defaults: Mapping[str, Any]) -> Any:
        """``UNSET``: it is set nowhere."""
        given = self._given(option)
        if option.field in self._owned and (given is None or given.rank > self._outdone_by):
            return self._owned[option.field]
        if given is not None:
            try:
                return listen_address(given.text) if option.field == "listen_url" else option.parse(given.text)
            except ValueError as error:
                self._found.append(f"{given.source}: {error}")
        return defaults.get(option.field, UNSET)

    def _given(self, option: Option) -> Given | None:
        """The strongest value that is given for a setting. An empty environment variable gives none."""
        foreign = self._foreign if option.field in _OF_A_STORE else None
        flag = self._flags.get(option.name)
        if flag is not None:
            return Given(_as_text(flag), option.flag, 0)
        for name in option.variables if foreign != 1 else ():
            if variable := self.environ.get(name):
                return Given(variable, name, 1)
        if option.name in self._file.values and foreign != 2:
            return Given(self._file.values[option.name], f"{self._file.name}: {option.name}", 2)
        return None

    def tasks_or_app(self) -> dict[str, Any]:
        """One of the two: a stronger source silences the other; the same source may not name both."""
        tasks, app = (self._given(SETTINGS[name]) for name in ("tasks", "app"))
        if tasks is None or app is None:
            return {}
        if tasks.rank == app.rank:
            self._found.append(f"{tasks.source} and {app.source} are both given: leave out one of them")
        return {"app": None} if tasks.rank < app.rank else {"tasks": None}


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like settings and are none, each with a sentence."""
    known = [variable for option in SETTINGS.values() for variable in option.variables]
    found = []
    for name, value in environ.items():
        if name == VARIABLE:
            found.append((name, f"{name} changes how long a worker waits: it is for the tests of Stowhand alone"))
        elif name.startswith(PREFIX) and name not in known and not _is_of_others(name, value):
            bare = name.removeprefix(PREFIX).lower()
            meant = PREFIX + SYNONYMS.get(bare, bare).upper()
            found.append((name, f"the variable {name} means nothing here{hint(meant, known, 0.8)}"))
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


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
