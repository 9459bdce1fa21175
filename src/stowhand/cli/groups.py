"""Command groups: ``-h``, ``--help`` and ``--version`` everywhere, suggestions, and imports on use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from stowhand import __version__
from stowhand.cli.help import Command, summary
from stowhand.cli.usage import unknown_command
from stowhand.service.exit_codes import USAGE

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Group(click.Group):
    """Commands by name; an unknown command gets a suggestion.

    ``summaries`` has the help line of each command that is imported on use. ``aliases`` has other names of commands.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        summaries: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("context_settings", CONTEXT_SETTINGS)
        super().__init__(*args, **options)
        self._summaries = summaries or {}
        self._aliases = aliases or {}
        self.params.append(version_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._summaries, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._aliases.get(cmd_name, cmd_name)
        command = super().get_command(ctx, cmd_name)
        if cmd_name in self._summaries:
            command = importlib.import_module(f"stowhand.cli.{cmd_name}").command
        if command is not None and all(param.name != "version" for param in command.params):
            command.params.append(version_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = [self._aliases.get(args[0], args[0]), *args[1:]] if args else args
        names = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in names:
            ctx.fail(unknown_command(args[0], names, ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        if not self._summaries:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence, whatever its length."""
        del limit
        return summary(self.help or "")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and how to show the help of a command."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Help of a command: {ctx.command_path} COMMAND --help")


def version_option() -> click.Option:
    """Return the option ``--version``."""
    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Show the version and exit.",
    )


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        click.echo(f"stowhand {__version__}")
        ctx.exit()
