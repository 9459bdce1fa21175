"""The ``stowhand`` command. One module per subcommand, imported on use."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the program with the arguments of this process, and exit with its code."""
    if os.getpid() == 1:  # In a container, the kernel drops signals that process 1 does not handle.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from stowhand.cli.program import run

    sys.exit(_after_last_spans(run(sys.argv[1:])))


def _after_last_spans(code: int) -> int:
    """Return the exit code once the last spans are sent. Their module is not loaded if nothing was traced."""
    process = sys.modules.get("stowhand.service.process")
    return code if process is None else int(process.export_last_spans(code))
