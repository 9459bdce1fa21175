"""Ends the programs of a worker process that was killed. Its own process, run as a script by program_groups.py.

A program is in a session of its own, so what kills its worker leaves it running while its job starts again elsewhere. A
signal at the parent's death would have to be requested between fork and exec, where a process with threads may run no
Python; it would reach the program alone, and not what that has started; and not every system has it. This process runs
beside the worker, receives every process group, and kills those that are left when the worker is gone.

Its standard input says ``+GROUP`` when a program runs, and ``-GROUP`` when that has ended. The end of the input means
that the worker is gone, or dismisses this process. Signals that stop a worker are blocked here.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Read until the worker is gone, and kill the groups that are left."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(OSError):  # gone, or of another user now
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
