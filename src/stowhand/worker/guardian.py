"""Ends the programs of a process that died without a word. It is a process of its own, run as a script by program.py.

A program is in a session of its own, so whatever kills its worker leaves it running while its job begins anew
elsewhere. A signal at the parent's death would have to be asked for between fork and exec, where a process with threads
may run no Python; it would reach the program alone, and not what that has started; and not every system has it. This
process lives beside the worker, is told of every group, and kills those that run when the worker is gone.

stdin       ``+GROUP`` when a program runs, ``-GROUP`` when it is over; its end: the worker is gone, or wants it no more
argument    the worker's process id
"""

from __future__ import annotations

import os
import select
import signal
import sys

WITHOUT_WORD = 1.0
"""Seconds between two looks at the parent, where the system does not tell of its end."""


def main() -> None:
    """Until the worker is gone. What asks a worker to stop is blocked here (guarded.py)."""
    groups = watch(int(sys.argv[1]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue  # gone, or become somebody else


def watch(parent: int) -> set[int]:
    """Read until the parent has gone, or has closed the pipe; gives the groups that run then."""
    groups: set[int] = set()
    os.set_blocking(0, False)
    death = _death_of(parent)
    begun = b""
    while True:
        # A process that the worker forked may hold the pipe as well: its end alone would not tell.
        gone = os.getppid() != parent
        try:
            data = os.read(0, 65_536)
        except BlockingIOError:
            if gone:
                return groups
            select.select([0, *death], [], [], None if death else WITHOUT_WORD)
            continue
        if not data:
            return groups
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))


def _death_of(parent: int) -> list[int]:
    """What can be waited for; nothing where the system has no such thing."""
    try:
        return [os.pidfd_open(parent)]
    except (AttributeError, OSError):
        return []


if __name__ == "__main__":
    main()
