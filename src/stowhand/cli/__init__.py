"""The ``stowhand`` command. One file per subcommand, imported when it is asked for."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the program with the arguments of this process, and end it with the right number."""
    from stowhand.cli.program import run

    sys.exit(run(sys.argv[1:]))
