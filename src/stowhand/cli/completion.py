"""``stowhand completion``: print the script with which a shell completes the command line."""

from __future__ import annotations

import click

from stowhand.cli.help import Command
from stowhand.cli.input import WordChoice

SUPPORTED_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=WordChoice(SUPPORTED_SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options and their values.

    bash: in ~/.bashrc (4.4 or newer): eval "$(stowhand completion bash)"

    zsh: in ~/.zshrc, after compinit: eval "$(stowhand completion zsh)"

    fish: stowhand completion fish > ~/.config/fish/completions/stowhand.fish
    """
    from click.shell_completion import get_completion_class

    from stowhand.cli.program import COMPLETION_VARIABLE, root

    completion = get_completion_class(shell)
    assert completion is not None, f"click knows {shell}"
    # Click's own method would run bash to check its version. A shell that evaluates this script is new enough.
    click.echo(completion.source_template % completion(root, {}, "stowhand", COMPLETION_VARIABLE).source_vars())
