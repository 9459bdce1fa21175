"""``python -m tests.service.slow_start worker …``: the program, with tasks that take a second to load."""

from __future__ import annotations

import sys
import time

if __name__ == "__main__":
    from stowhand.cli import main
    from stowhand.service import loading, process

    load = loading.load_tasks

    def slowly(*given: object) -> object:
        """As it is, and later."""
        time.sleep(1.0)
        return load(*given)  # type: ignore[arg-type]

    vars(process)["load_tasks"] = slowly
    sys.exit(main())
