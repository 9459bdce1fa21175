"""Help of a command: options in sections, shared settings in one paragraph, complete summaries."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import click

CONNECTION, WORK, LIMITS, HTTP, LOGGING = "Connection", "What to run", "Limits", "HTTP", "Logging"
OWN_OPTIONS = "Options"


class SettingOption(click.Option):
    """An option that is a setting.

    ``section`` is its section in the help of a worker. ``is_shared`` is true if every command that opens a store has
    it.
    """

    def __init__(self, *args: Any, section: str, is_shared: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.section = section
        self.is_shared = is_shared


class Command(click.Command):
    """A command whose help has sections.

    With ``explains_settings`` the help has every setting, by section; otherwise it only names the shared ones.
    ``on_extra`` is the advice for an unexpected argument.
    """

    def __init__(self, *args: Any, explains_settings: bool = False, on_extra: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._explains_settings = explains_settings
        self.on_extra = on_extra

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises UsageError."""
        ctx.allow_extra_args = True  # They are refused below, with a suggestion.
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            from stowhand.cli.usage import unexpected_argument

            ctx.fail(unexpected_argument(rest[0], ctx))
        return rest

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence, whatever its length."""
        del limit
        return summary(self.help or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {
            name: [] for name in (CONNECTION, WORK, LIMITS, HTTP, LOGGING, OWN_OPTIONS)
        }
        shared = []
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None or not isinstance(option, click.Option):
                continue
            if isinstance(option, SettingOption) and self._explains_settings:
                sections[option.section].append(record)
            elif isinstance(option, SettingOption) and option.is_shared:
                shared.append(option)
            else:
                sections[OWN_OPTIONS].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if shared:
            _write_shared(shared, ctx, formatter)


def summary(text: str) -> str:
    """Return the first sentence of a help text."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return f"{sentence}." if dot else paragraph


def _write_shared(options: Sequence[SettingOption], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Name the options, and the command that explains them."""
    has_connection = any(option.section == CONNECTION for option in options)
    title = "Connection and logging" if has_connection else LOGGING
    names = ", ".join("/".join(option.opts) for option in options)
    with formatter.section(f"{title} ({ctx.find_root().info_name} worker --help explains them)"):
        indent = " " * formatter.current_indent
        # The formatter's own wrapping breaks the names of options at their hyphens.
        lines = wrap(names, formatter.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        formatter.write("".join(f"{line}\n" for line in lines))
