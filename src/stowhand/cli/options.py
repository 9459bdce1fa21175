"""Settings as options of commands. Values stay text here, because the settings parse the texts of all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from stowhand.app.own_store import OwnStore
from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.cli.help import CONNECTION, HTTP, LIMITS, LOGGING, WORK, SettingOption
from stowhand.cli.input import with_options
from stowhand.observe.logs import configure_logging
from stowhand.protocols.options import Names, Option, Switch

F = TypeVar("F", bound=Callable[..., Any])

PORT_NUMBER = click.IntRange(0, 65535)
FILE_PATH = click.Path(path_type=Path)
json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of results."
)


SETTINGS_BY_SECTION = {
    CONNECTION: (
        *("connection", "token", "ca_file", "insecure", "schema", "no_prepared_statements", "max_pool_size"),
        *("listen_url", "synchronous"),
    ),
    WORK: ("app", "tasks"),
    LIMITS: (
        *("concurrency", "processes", "timeout", "grace", "lease", "poll_interval", "backoff"),
        *("max_jobs", "max_age", "max_memory", "history", "failed_retention"),
    ),
    HTTP: ("http", "web", "metrics_labels"),
    LOGGING: ("log_level", "log_format", "otel", "app_version"),
}
"""Sections of a worker's help, and their settings in order. All other settings are in the section of what to run."""
_ORDERED_SETTINGS = [name for names in SETTINGS_BY_SECTION.values() for name in names]


def _flag(setting: Option) -> Callable[[F], F]:
    is_switch = isinstance(setting, Switch)
    has_default = setting.said_default and not is_switch
    default_text = f"  [default: {setting.said_default}]" if has_default else ""
    return click.option(
        setting.name,
        *(short for short in setting.short if not short.startswith("--")),
        setting.flag,
        *(short for short in setting.short if short.startswith("--")),
        metavar=None if is_switch else setting.metavar,
        is_flag=is_switch,
        multiple=isinstance(setting, Names),
        default=None,
        help=f"{setting.doc}{default_text}  [env: {setting.variables[0]}]",
        cls=SettingOption,
        section=next((section for section, names in SETTINGS_BY_SECTION.items() if setting.name in names), WORK),
        is_shared=setting.on == "store",
        shell_complete=completing(setting.words),
    )


def completing(words: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion: the words that start with the entered text, ignoring case."""
    return lambda ctx, param, prefix: [word for word in words if word.lower().startswith(prefix.lower())]


def _settings(*names: str) -> Callable[[F], F]:
    return with_options(*(_flag(SETTINGS[name]) for name in names))


def _settings_on(*on: str) -> Callable[[F], F]:
    names = [name for name, setting in SETTINGS.items() if setting.on in on]
    unlisted = [name for name in names if name not in _ORDERED_SETTINGS]
    return _settings(*(name for name in _ORDERED_SETTINGS if name in names), *unlisted)


app_argument = click.argument("module_app", metavar="[MODULE:APP]", required=False)
"""The App as the first argument. ``take_app`` reads it."""
store_options = _settings_on("store")
"""Options of every command that opens a store."""
worker_options = with_options(app_argument, _settings_on("store", "worker"))
"""Options of a worker."""
log_options = _settings("log_level", "log_format")
"""Options of the log, for commands whose other settings are in the user's program."""
dev_options = with_options(app_argument, _settings("connection", "app", "concurrency"), log_options)
"""Options of ``dev``; the environment has the other settings."""
connection_options = with_options(_settings("connection"), log_options)
"""Options of commands about a user's table: its database and the log."""
table_run_options = with_options(_settings("http"), log_options)
"""Options of workers of a table; the user's program has the other settings."""
crontab_options = _settings("crontab", "tasks")
"""Options that name recurring tasks, beside ``--app``."""
tasks_option = _settings("tasks")
otel_option = _settings("otel")
http_option = _settings("http")


def take_app(option_values: dict[str, Any]) -> None:
    """Make the argument MODULE:APP the option ``--app``. Raises UsageError if both are given."""
    app = option_values.pop("module_app")
    if app is None:
        return
    if option_values["app"] is not None:
        raise click.UsageError(f"two Apps: {app} and --app {option_values['app']}; omit one")
    if Path(app).is_dir() and not Path(app, "__init__.py").exists():
        raise click.UsageError(f"{app} is a folder; for a folder of tasks: --tasks {app}; for an App: MODULE:APP")
    option_values["app"] = app


def listen_options(port: int) -> Callable[[F], F]:
    """Return the options of a server's address and certificate. ``port`` is the default."""
    return with_options(
        click.option(
            "--host",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on; a non-loopback address needs tokens.",
        ),
        click.option(
            "--port", type=PORT_NUMBER, default=port, show_default=True, help="Port to listen on; 0: any free port."
        ),
        click.option("--tls-cert", type=FILE_PATH, metavar="FILE", help="PEM certificate, with its chain."),
        click.option(
            "--tls-key", type=FILE_PATH, metavar="FILE", help="PEM key, if it is not in the certificate file."
        ),
    )


def own_store(app: str) -> OwnStore:
    """Return the store that an App names. It imports the App's module: call it only to open a store."""
    from stowhand.service.task_loader import load_app

    return msgspec.structs.replace(load_app(app).own_store, app=app)


def settings_of(option_values: dict[str, Any], read_own_store: Callable[[str], OwnStore] = own_store) -> WorkerSettings:
    """Combine the options with all other settings, and start logging. Raise ConfigurationError.

    ``read_own_store`` returns the store that an App names, for commands with the option ``--app``.
    """
    connection = option_values.get("connection")
    if connection is not None and connection.isdecimal():
        raise click.UsageError(
            f"-c {connection}: -c names the store; for the number of jobs at once: -j {connection}; for a database of"
            f" that name: -c dbname={connection}"
        )
    flags = {name: value for name, value in option_values.items() if name in SETTINGS and value != ()}
    settings = read_settings(flags, own_store=read_own_store if "app" in option_values else None)
    configure_logging(settings.log_level, settings.log_format)
    return settings
