"""``python -m tests.service.counting worker …``: the program, which writes which request to stop it counts."""

from __future__ import annotations

import os

from stowhand.cli import main
from stowhand.service import signals

ADD = signals.StopRequests.add


def add(self: signals.StopRequests) -> bool:
    """As it is; in a signal's handler too, so it is written at once."""
    counts = ADD(self)
    if counts:
        os.write(2, f"request {self.count}\n".encode())
    return counts


if __name__ == "__main__":
    signals.StopRequests.add = add  # type: ignore[method-assign]
    main()
