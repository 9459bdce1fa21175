"""``manage.py stowhand worker | jobs | …``: the command ``stowhand``, for the jobs of this project."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from stowhand.cli.program import run
from stowhand.django.project import BACKEND_VARIABLE

APP_PATH = "stowhand.django.serving:app"
_DJANGO_OPTIONS = ("--settings", "--pythonpath")
"""Django has obeyed them already, in this process, and leaves them in the command line."""


class Command(BaseCommand):
    """Everything behind its name is the command line's of ``stowhand``."""

    help = "Run a worker of this project's tasks; look at jobs and act on them: manage.py stowhand --help"
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """For ``call_command``."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Django's own parser would take ``--version`` and ``--help`` for itself."""
        sys.exit(_stowhand(argv[2:]))

    def handle(self, *args: str, **options: Any) -> None:
        code = _stowhand(options["arguments"])
        if code:
            raise CommandError(f"stowhand ended with {code}", returncode=code)


def _stowhand(arguments: Sequence[str]) -> int:
    """Its exit code. The processes that it starts find the project by the environment, too."""
    parsed, rest = _split_arguments(list(arguments))
    if parsed.backend is not None:
        os.environ[BACKEND_VARIABLE] = parsed.backend
    if parsed.pythonpath is not None:
        path, previous = str(Path(parsed.pythonpath).absolute()), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, previous)))
    os.environ["STOWHAND_APP"] = APP_PATH
    return run(rest, "manage.py stowhand")


def _split_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What is for Django and for ``app_of``, and what is for ``stowhand``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backend")
    for name in _DJANGO_OPTIONS:
        parser.add_argument(name)
    return parser.parse_known_args(arguments)
