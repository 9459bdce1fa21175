"""``python -m tests.service.hasty worker …``: the program, with a second and a half where it has five to have left.

It says which wish to stop it counts.

``python -m tests.service.hasty giving worker …``: and with as long as it takes to give back what it holds.
"""

from __future__ import annotations

import sys

from stowhand.cli import main
from stowhand.service import process, stop_requests
from stowhand.worker import worker
from tests.service.patient import add

if __name__ == "__main__":
    stop_requests.StopRequests.add = add  # type: ignore[method-assign]
    worker.LAST_PAUSE, worker.LAST_CALLS = 0.5, 0.1
    process.STOPPED = 1.5
    if sys.argv[1] == "giving":
        del sys.argv[1]
        process.GIVE_BACK = 60.0
    main()
