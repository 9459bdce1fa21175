"""The program: its commands, their errors and their exit codes.

Exit codes: 0 ok, 1 failure, 2 usage, 3 the store cannot be reached, 4 its schema is unsuitable.
An error raised on purpose becomes one readable line on stderr; STOWHAND_DEBUG=1 adds its traceback.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence

import click

from stowhand.cli.groups import Group
from stowhand.cli.usage import unknown_option
from stowhand.errors import StowhandError

COMMAND_SUMMARIES = {
    "worker": "Run a worker: claim jobs and run them.",
    "enqueue": "Enqueue a job and print its id.",
    "jobs": "List, explain and change jobs.",
    "queues": "List, pause and resume queues.",
    "serials": "List, pause and resume serial keys.",
    "limits": "List the limits of tasks, and override them.",
    "stats": "Show jobs by state and task, throughput, and workers.",
    "top": "Show the page of stats and the running jobs, live.",
    "dev": "Run a worker that reloads, and the dashboard, while you write.",
    "web": "Show the dashboard in a browser.",
    "cron": "Check a crontab; list and run recurring items.",
    "migrate": "Install or upgrade the store's schema.",
    "doctor": "Check this machine, the settings and the store.",
    "health": "Ask a running worker whether it is alive, or ready.",
    "bench": "Measure how fast the store is on this machine.",
    "table": "Serve a table of your own: check it, print one, read logs.",
    "flows": "Flows: list queues and jobs, retry, cancel, watch, run.",
    "serve": "Lend the store over HTTP to remote workers.",
    "tokens": "Make, list and revoke tokens of remote workers.",
    "completion": "Print the completion script of a shell.",
}

COMMAND_ALIASES = {"add": "enqueue"}
"""Other names of commands, not shown in help."""

_COMMAND_NAMES = re.compile(rf"(?<!manage\.py )\bstowhand (?=(?:{'|'.join(COMMAND_SUMMARIES)})\b)")

COMPLETION_VARIABLE = "_STOWHAND_COMPLETE"
"""Set by a shell that completes a command line; its value names the shell's format."""

root = Group(
    name="stowhand",
    summaries=COMMAND_SUMMARIES,
    aliases=COMMAND_ALIASES,
    help="Background jobs in Python on the store you already have. One worker, any store.",
    epilog="Without -c the store is DATABASE_URL, PGDATABASE, or the file stowhand.db in the current folder.\n\n"
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 the store cannot be reached, 4 its schema is unsuitable.\n\n"
    "Help of the Python library: python -m pydoc stowhand. All pages: the folder docs of the source distribution.",
)


def run(arguments: Sequence[str], name: str = "stowhand") -> int:
    """Run one command line and return its exit code. ``name`` is the program name in messages."""
    try:
        code = _invoke(list(arguments), name)
        if sys.stdout is not None:  # It is None if it was closed before the program started.
            sys.stdout.flush()
        return code
    except click.ClickException as error:
        return _show_usage(error, name)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _discard_output()
    except Exception as error:  # noqa: BLE001  boundary: the program exits here, with one line and an exit code
        return _show(error, name)


def as_called(text: str, name: str | None = None) -> str:
    """Replace commands in a text by the way this program is called, such as ``manage.py stowhand jobs …`` in Django."""
    name = name or click.get_current_context().find_root().info_name
    return _COMMAND_NAMES.sub(lambda _: f"{name} ", text)


def _invoke(arguments: list[str], name: str) -> int:
    """Invoke the command. ``click.Command.main`` would handle errors and exit itself."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, root.name or "", COMPLETION_VARIABLE, instruction)
    try:
        with root.make_context(name, arguments) as context:
            code = root.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


def _show(error: Exception, name: str) -> int:
    """Print the error, and a hint if there is one. Return the exit code."""
    from stowhand.observe.logs import is_debugging
    from stowhand.observe.safe_text import scrub
    from stowhand.service.exit_codes import exit_code

    expected = isinstance(error, StowhandError)
    if not expected or is_debugging():
        click.echo(scrub("".join(traceback.format_exception(error)).rstrip()), err=True)
    message = str(error) if expected else f"unexpected {type(error).__name__}: {error}"
    _print_error(as_called(message or type(error).__name__, name))
    if hint := _next_step(error):
        click.echo(as_called(hint, name), err=True)
    return exit_code(error)


def _next_step(error: Exception) -> str:
    from stowhand.errors import SchemaMissing, SchemaOutdated

    if isinstance(error, SchemaMissing | SchemaOutdated) and "stowhand migrate" not in str(error):
        return "Run: stowhand migrate"
    return ""


def _show_usage(error: click.ClickException, name: str) -> int:
    context: click.Context | None = getattr(error, "ctx", None)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and context is not None:
        message = unknown_option(error.option_name, context)
    _print_error(as_called(message, name))
    if context is not None:
        click.echo(f"Try: {context.command_path} --help", err=True)
    return error.exit_code


def _print_error(message: str) -> None:
    """Print a message to stderr. Further lines are indented below the first."""
    from stowhand.observe.safe_text import escape_lines, scrub

    lines = f"error: {escape_lines(scrub(message), ' ' * len('error: '))}".split("\n")
    click.echo("\n".join(line.rstrip() for line in lines), err=True)


def _interrupted() -> int:
    from stowhand.service.exit_codes import INTERRUPTED

    click.echo("", err=True)
    return INTERRUPTED


def _discard_output() -> int:
    """Discard buffered output, because its reader is closed: flushing it at exit would raise an error."""
    from stowhand.service.exit_codes import BROKEN_PIPE

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
