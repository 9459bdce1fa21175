"""The ``stowhand`` command. One file per subcommand, imported when it is asked for."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the program with the arguments of this process, and end it with the right number."""
    if os.getpid() == 1:  # in a container; the kernel keeps from such a process what it does not handle itself
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from stowhand.cli.program import run

    sys.exit(_left_behind_nothing(run(sys.argv[1:])))


def _left_behind_nothing(code: int) -> int:
    """As ``finished`` has it; where nothing can have been traced, it is not even loaded."""
    process = sys.modules.get("stowhand.service.process")
    return code if process is None else int(process.finished(code))
