"""The table of settings as options. What was typed stays text here: the settings parse it, wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from stowhand.app.own_store import OwnStore
from stowhand.app.settings.reading import read_settings
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.observe.logs import configure_logging
from stowhand.protocols.option import Names, Option, Switch

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")


def store_options(command: F) -> F:
    """The options of every command that opens a store."""
    return _decorated(command, [setting for setting in SETTINGS.values() if setting.on == "store"])


def connection_options(command: F) -> F:
    """Where the database is, and what is logged: for a table that is not in a queue of ours."""
    return _decorated(command, [SETTINGS[name] for name in ("connection", "log_level", "log_format")])


def log_options(command: F) -> F:
    """What is logged, and how: for commands whose other settings are in the user's program."""
    return _decorated(command, [SETTINGS[name] for name in ("log_level", "log_format")])


def worker_options(command: F) -> F:
    """All of them but what only an enqueuer, or a lender, has a use for."""
    return _decorated(command, [setting for setting in SETTINGS.values() if setting.on in ("store", "worker")])


def tasks_option(command: F) -> F:
    """``--tasks``"""
    return _decorated(command, [SETTINGS["tasks"]])


def crontab_options(command: F) -> F:
    """Where recurring tasks are written, beside ``--app``: ``--crontab`` and ``--tasks``."""
    return _decorated(command, [SETTINGS["crontab"], SETTINGS["tasks"]])


def otel_option(command: F) -> F:
    """Make spans: ``--otel``."""
    return _decorated(command, [SETTINGS["otel"]])


def http_option(command: F) -> F:
    """Where a worker shows its health and metrics: ``--http``."""
    return _decorated(command, [SETTINGS["http"]])


def table_run_options(command: F) -> F:
    """How workers of a table are run; the user's program has the other settings."""
    return _decorated(command, [SETTINGS[name] for name in ("processes", "http", "log_level", "log_format")])


def own_store(app: str) -> OwnStore:
    """What that App says of its store. Its module is imported: only where a command opens a store."""
    from stowhand.service.loading import load_app

    return msgspec.structs.replace(load_app(app).own_store, app=app)


def settings_of(typed: dict[str, Any], ask: Callable[[str], OwnStore] = own_store) -> WorkerSettings:
    """Put what was typed together with everything else, and start logging as it says. Raises ConfigurationError.

    ``ask``: what an App says of its store, asked by every command that has the option ``--app``.
    """
    flags = {name: value for name, value in typed.items() if name in SETTINGS and value != ()}
    settings = read_settings(flags, own_store=ask if "app" in typed else None)
    configure_logging(settings.log_level, settings.log_format)
    return settings


def completing(words: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes a value in a shell: the words that begin like it, in any case."""
    return lambda ctx, param, begun: [word for word in words if word.lower().startswith(begun.lower())]


def _decorated(command: F, settings: list[Option]) -> F:
    for setting in reversed(settings):
        command = _option(setting)(command)
    return command


def _option(setting: Option) -> Callable[[F], F]:
    is_switch = isinstance(setting, Switch)
    shown = f"  [default: {said}]" if (said := setting.said_default) and not is_switch else ""
    return click.option(
        setting.name,
        *(short for short in setting.short if not short.startswith("--")),
        setting.flag,
        *(short for short in setting.short if short.startswith("--")),
        metavar=None if is_switch else setting.metavar,
        is_flag=is_switch,
        multiple=isinstance(setting, Names),
        default=None,
        help=f"{setting.doc}{shown}  [env: {setting.variables[0]}]",
        shell_complete=completing(setting.words) if setting.words else None,
    )
