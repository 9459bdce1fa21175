"""The table of settings as options. What was typed stays text here: the settings parse it, wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from stowhand.app.own_store import OwnStore
from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.observe.logs import configure_logging
from stowhand.protocols.option import Names, Option, Switch

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")


def _flags(*wanted: Option) -> Callable[[F], F]:
    def decorated(command: F) -> F:
        for setting in reversed(wanted):
            command = _flag(setting)(command)
        return command

    return decorated


def _flag(setting: Option) -> Callable[[F], F]:
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
        shell_complete=completing(setting.words),
    )


def completing(words: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes a value in a shell: the words that begin like it, in any case."""
    return lambda ctx, param, begun: [word for word in words if word.lower().startswith(begun.lower())]


_LOG = (SETTINGS["log_level"], SETTINGS["log_format"])
store_options = _flags(*(setting for setting in SETTINGS.values() if setting.on == "store"))
"""Of every command that opens a store."""
worker_options = _flags(*(setting for setting in SETTINGS.values() if setting.on in ("store", "worker")))
"""All of them but what only an enqueuer, or a lender, has a use for."""
dev_options = _flags(SETTINGS["connection"], SETTINGS["jobs"], *_LOG)
"""While an application is written; the environment has the others."""
connection_options = _flags(SETTINGS["connection"], *_LOG)
"""Where the database is, and what is logged: for a table that is not in a queue of ours."""
log_options = _flags(*_LOG)
"""What is logged, and how: for commands whose other settings are in the user's program."""
table_run_options = _flags(SETTINGS["processes"], SETTINGS["http"], *_LOG)
"""How workers of a table are run; the user's program has the other settings."""
crontab_options = _flags(SETTINGS["crontab"], SETTINGS["tasks"])
"""Where recurring tasks are written, beside ``--app``."""
tasks_option = _flags(SETTINGS["tasks"])
otel_option = _flags(SETTINGS["otel"])
http_option = _flags(SETTINGS["http"])


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
