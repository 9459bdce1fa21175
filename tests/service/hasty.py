"""``python -m tests.service.hasty worker …``: the program, with a second and a half where it has five to have left."""

from __future__ import annotations

from stowhand import worker
from stowhand.cli import main
from stowhand.service import process

if __name__ == "__main__":
    worker.LAST_PAUSE, worker.LAST_CALLS = 0.5, 0.1
    process.STOPPED = 1.5
    main()
