"""Help: options in named sections, shared settings in one paragraph, complete summaries, where more help is."""

from __future__ import annotations

import pydoc
from collections.abc import Iterator

import click
import pytest

from stowhand.cli.help import summary
from stowhand.cli.program import COMMAND_SUMMARIES, root
from tests.cli.conftest import Stowhand


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def groups() -> Iterator[tuple[str, click.Group]]:
    """Every group by its path."""
    yield "", root
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if isinstance(command, click.Group):
            yield name, command


def leaves() -> Iterator[str]:
    """Every command that is not a group, by its path."""
    for path, group in groups():
        context = click.Context(group)
        for name in group.list_commands(context):
            if not isinstance(group.get_command(context, name), click.Group):
                yield f"{path} {name}".strip()


@pytest.mark.parametrize("path", [path for path, _ in groups()], ids=lambda path: path or "stowhand")
def test_every_summary_is_one_complete_line(call: Stowhand, path: str) -> None:
    group = dict(groups())[path]
    listed = call(*path.split(), "--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == group.list_commands(click.Context(group))
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_the_list_of_commands_matches_their_help() -> None:
    context = click.Context(root)
    for name, line in COMMAND_SUMMARIES.items():
        command = root.get_command(context, name)
        assert command is not None
        assert summary(command.help or "") == line


def test_the_options_of_a_worker_have_named_sections(call: Stowhand) -> None:
    shown = call("worker", "--help").out
    titles = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Connection", "What to run", "Limits", "HTTP", "Logging", "Options"]
    sections = [shown.partition(f"\n{title}:\n")[2].split("\n\n")[0] for title in titles]
    connection, run, limits, http, logging, _ = sections
    assert "-c, --connection STORE" in connection
    assert "-A, --app MODULE:NAME" in run
    assert "--queue" in run
    assert "-j, --concurrency" in limits
    assert "--timeout SECONDS" in limits
    assert "--http [HOST:]PORT" in http
    assert "--log-level LEVEL" in logging


@pytest.mark.parametrize("path", ["jobs list", "enqueue", "stats", "serials pause"])
def test_other_commands_name_the_shared_options_only(call: Stowhand, path: str) -> None:
    own, _, shared = call(*path.split(), "--help").out.partition("Connection and logging")
    assert "--connection" not in own
    assert shared.startswith(" (stowhand worker --help explains them):\n  -c/--connection, ")
    names = shared.partition("\n")[2].partition("\n\n")[0]
    assert len(names.splitlines()) == 2
    assert "--no-prepared-statements" in names
    assert "-A/--app" in names


@pytest.mark.parametrize("path", ["", *COMMAND_SUMMARIES, *leaves()])
def test_no_help_names_a_page_that_the_package_lacks(call: Stowhand, path: str) -> None:
    assert "docs/" not in call(*path.split(), "--help").out


@pytest.mark.parametrize("path", ["", "jobs", "cron"])
def test_help_ends_with_where_to_find_more_help(call: Stowhand, path: str) -> None:
    shown = call(*path.split(), "--help").out
    assert shown.endswith(f"\nHelp of a command: {' '.join(['stowhand', *path.split()])} COMMAND --help\n")
    assert ("Help of the Python library: python -m pydoc stowhand" in " ".join(shown.split())) is (not path)


def test_the_help_of_the_library_has_an_example() -> None:
    assert "$ stowhand worker jobs:app" in pydoc.plain(pydoc.render_doc("stowhand"))
