"""``python -m tests.service.patient worker …``: the program, with minutes where it has seconds to leave by itself.

It says of each wish to stop that it counts: so a test knows that it was heard.
"""

from __future__ import annotations

import os

from stowhand.cli import main
from stowhand.service import process, stop_requests, supervisor

ADD = stop_requests.StopRequests.add


def add(self: stop_requests.StopRequests) -> bool:
    """As it is; in a signal's handler too, so it is written at once."""
    counts = ADD(self)
    if counts:
        os.write(2, f"wish {self.count}\n".encode())
    return counts


if __name__ == "__main__":
    stop_requests.StopRequests.add = add  # type: ignore[method-assign]
    process.STOPPED = 120.0
    vars(supervisor)["STOPPED"] = 120.0
    main()
