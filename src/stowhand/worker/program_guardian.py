"""Ends the programs of a worker process that was killed. Its own process, run as a script by program_groups.py.

A program is in a session of its own, so what kills its worker leaves it running while its job starts again elsewhere. A
signal at the parent's death would have to be requested between fork and exec, where a process with threads may run no
Python; it would reach the program alone, and not what that has started; and not every system has it. This process runs
beside the worker, receives every process group, and kills those that are left when the worker is gone.

stdin       ``+GROUP`` when a program runs, ``-GROUP`` when it has ended; its end: the worker is gone, or dismisses this
argument    the worker's process id
"""

from __future__ import annotations

import os
import select
import signal
import sys

POLL = 1.0
"""Seconds between two looks at the parent."""


def main() -> None:
    """Until the worker is gone. Signals that stop a worker are blocked here (program_groups.py)."""
    for group in watch(int(sys.argv[1])):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue  # gone, or of another user now


def watch(parent: int) -> set[int]:
    """Read until the parent has gone, or has closed the pipe; gives the groups that are left then."""
    groups: set[int] = set()
    begun = b""
    while True:
        # A process that the worker forked may hold the pipe open as well: its end alone is no proof.
        gone = os.getppid() != parent
        readable, _, _ = select.select([0], [], [], 0 if gone else POLL)
        data = os.read(0, 65_536) if readable else b""
        if not data and (readable or gone):
            return groups
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))


if __name__ == "__main__":
    main()
