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

    sys.exit(_after_last_spans(run(sys.argv[1:])))


def _after_last_spans(code: int) -> int:
    """The exit code after the last spans are sent; where nothing can have been traced, their module is not loaded."""
    process = sys.modules.get("stowhand.service.process")
    return code if process is None else int(process.export_last_spans(code))
