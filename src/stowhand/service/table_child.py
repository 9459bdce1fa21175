"""One of several processes of ``stowhand table run``: its arguments are level and format of the log, folder, target."""

from __future__ import annotations

import sys
from pathlib import Path

from stowhand.errors import StowhandError
from stowhand.observe.logs import configure_logging
from stowhand.observe.safe_text import scrub
from stowhand.service.exit_codes import exit_code
from stowhand.service.table_run import TableRunOptions, run_table


def main() -> int:
    """Work. Gives the exit code."""
    level, form, folder, target = sys.argv[1:]
    configure_logging(level, form)
    try:
        return run_table(TableRunOptions(target, folder=Path(folder)))
    except StowhandError as error:
        sys.stderr.write(f"error: {scrub(str(error))}\n")
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
