"""``python -m tests.service.lingering …``: the program, or a child, which lingers once its work is over."""

from __future__ import annotations

import atexit
import sys
import threading

from stowhand.cli import main
from stowhand.service import child, process


def linger(code: int = 0) -> None:
    """The seconds that a process may take are over now."""
    over.set()
    threading.Event().wait()


if __name__ == "__main__":
    over = threading.Event()
    vars(process).update(sleep_blocking=lambda seconds: over.wait())
    if sys.argv[1:] == ["child"]:
        vars(child).update(finished=linger)
        child.main()
    else:
        atexit.register(linger)
        main()
