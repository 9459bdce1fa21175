"""``manage.py stowhand worker | jobs | …``: the command ``stowhand`` for the jobs of this project."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from stowhand.cli.program import run
from stowhand.django.application import BACKEND_VARIABLE

APP_PATH = "stowhand.django.serving:app"
_DJANGO_OPTIONS = ("--settings", "--pythonpath")
"""Options that Django has already applied in this process, and leaves in the command line."""


class Command(BaseCommand):
    """The command ``stowhand``, with all of its arguments."""

    help = "Run a worker of this project's tasks; list and change jobs: manage.py stowhand --help"
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Accept all arguments, for ``call_command``."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Run without Django's own parser, which would handle ``--version`` and ``--help`` itself."""
        sys.exit(_stowhand(argv[2:]))

    def handle(self, *args: str, **options: Any) -> None:
        code = _stowhand(options["arguments"])
        if code:
            raise CommandError(f"stowhand exited with {code}", returncode=code)


def _stowhand(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code. Its child processes find the project by the environment too."""
    parsed, rest = _split_arguments(list(arguments))
    if parsed.backend is not None:
        os.environ[BACKEND_VARIABLE] = parsed.backend
    if parsed.pythonpath is not None:
        path, previous = str(Path(parsed.pythonpath).absolute()), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, previous)))
    os.environ["STOWHAND_APP"] = APP_PATH
    return run(rest, "manage.py stowhand")


def _split_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of Django and of ``app_of``, and the arguments of ``stowhand``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backend")
    for name in _DJANGO_OPTIONS:
        parser.add_argument(name)
    return parser.parse_known_args(arguments)
