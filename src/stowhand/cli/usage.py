"""Usage errors: an unknown option, command or argument, with a suggestion."""

from __future__ import annotations

from collections.abc import Collection

import click

from stowhand.cli.help import Command, SettingOption
from stowhand.errors import hint, suggest
from stowhand.hints import find_advice, find_equivalents

UNSUGGESTED_OPTIONS = ("--insecure",)
"""Options that must not be used by mistake."""
OTHER_OPTIONS = {
    "at": "--run-at",
    "autoreload": "--watch",
    "b": "--crontab",
    "beat": "--crontab",
    "broker": "--connection",
    "burst": "--once",
    "database": "--connection",
    "db": "--connection",
    "delay": "--run-at",
    "dsn": "--connection",
    "format": "--json",
    "in": "--run-at",
    "l": "--log-level",
    "loglevel": "--log-level",
    "max-memory-per-child": "--max-memory",
    "p": "--processes",
    "pool": "--processes",
    "q": "--queue",
    "reload": "--watch",
    "store": "--connection",
    "url": "--connection",
    "v": "--log-level",
    "verbose": "--log-level",
}
"""Options by their names in other programs, without dashes. ``hints`` has words of libraries."""
OTHER_COMMANDS = {
    "check": "doctor",
    "dashboard": "web",
    "events": "top",
    "init": "migrate",
    "inspect": "jobs",
    "monitor": "top",
    "schedule": "cron",
    "status": "stats",
    "upgrade": "migrate",
    "workers": "stats",
}
"""Commands by their names in other programs."""


def unknown_option(name: str, context: click.Context) -> str:
    """Return a sentence about an option that this command does not have."""
    command, spellings = context.command, spellings_of(context)
    problem = f"no option {name!r}"
    serial = "--serial" if "--serial" in spellings else "serial=... of a task or job"
    if name == "--queue-name" and "--queue" in spellings:
        return f"{problem}; --queue is the class of work, and {serial} runs jobs one at a time"
    bare = {spelling.lstrip("-"): spelling for spelling in spellings}
    by_name = {word.replace("-", "_"): spelling for word, spelling in bare.items()}
    word = name.lstrip("-").replace("-", "_")
    if (advice := find_advice(word, by_name)) is not None:
        return f"{problem}; {advice}"
    equivalents = [by_name[option_name] for option_name in find_equivalents(word, by_name)]
    if equivalents:
        return f"{problem}; did you mean {' or '.join(map(repr, equivalents))}?"
    likeness = 1.0 if len(word) == 1 else 0.6
    suggestion = hint(name.lstrip("-"), spellings, likeness, OTHER_OPTIONS | bare)
    if suggestion:
        return problem + suggestion
    if isinstance(command, click.Group):
        return f"{problem} here; options follow the command: {context.command_path} COMMAND {name}"
    if isinstance(command, Command) and command.on_extra:
        return f"{problem}; {command.on_extra}"
    own = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    words = [option.opts[-1] for option in own if not isinstance(option, SettingOption) and option.name != "version"]
    return f"{problem}; available: {', '.join(words)}" if words else problem


def unknown_command(word: str, names: Collection[str], context: click.Context) -> str:
    """Return a sentence about a command that this group does not have."""
    group = context.command
    assert isinstance(group, click.Group)
    problem = f"no command {word!r}"
    if ":" in word and "worker" in names:
        return f"{problem}; to run an App: {context.command_path} worker {word}"
    below: dict[str, str] = {}
    for name in names:
        inner = group.get_command(context, name)
        if isinstance(inner, click.Group):
            below = {command: f"{name} {command}" for command in inner.list_commands(context)} | below
    return problem + (hint(word, [*names, *below.values()], synonyms=below | OTHER_COMMANDS) or suggest(word, names))


def unexpected_argument(word: str, context: click.Context) -> str:
    """Return a sentence about an argument that this command does not take."""
    from stowhand.jobs.job import State  # Imported here, so that `stowhand --help` loads little.

    command, spellings = context.command, spellings_of(context)
    problem = f"unexpected argument {word!r}"
    if word in list(State) and "--state" in spellings:
        return f"{problem}; did you mean --state {word}?"
    takes_app = any(param.name == "module_app" for param in command.params)
    if ":" in word and "--app" in spellings and not takes_app:
        return f"{problem}; the App is an option here: -A {word}"
    return f"{problem}; {command.on_extra}" if isinstance(command, Command) and command.on_extra else problem


def spellings_of(context: click.Context) -> list[str]:
    """Return the options of a command that may be suggested."""
    options = [option for option in context.command.get_params(context) if isinstance(option, click.Option)]
    return [
        spelling
        for option in options
        if not option.hidden
        for spelling in option.opts
        if spelling not in UNSUGGESTED_OPTIONS
    ]
