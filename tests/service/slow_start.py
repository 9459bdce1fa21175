"""``python -m tests.service.slow_start FILE worker …``: the program, whose tasks are loaded when that file is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    from stowhand.cli import main
    from stowhand.service import process, task_loader

    load, gate = task_loader.load_tasks, Path(sys.argv.pop(1))

    def slowly(*given: object, **named: object) -> object:
        """As it is, and later."""
        while not gate.exists():
            time.sleep(0.02)
        return load(*given, **named)  # type: ignore[arg-type]

    vars(process)["load_tasks"] = slowly
    sys.exit(main())
