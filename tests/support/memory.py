"""Temporary files of a run lie in memory where there is room: a commit to a disk waits for the disk (25 ms for a new
SQLite file with one row, half of one in memory), and a process that is killed leaves the same behind in both.

What `durable` marks stays on the disk, as does everything if TMPDIR is set.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes. A whole run of two processes takes a third of it; containers often offer 64 MB, where nothing may be run."""


def use_memory(folder: Path = MEMORY) -> None:
    """Of this process, and of all that it starts."""
    if "TMPDIR" not in os.environ and _has_room(folder):
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def _has_room(folder: Path) -> bool:
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    result = os.statvfs(folder)
    return result.f_bavail * result.f_frsize >= ROOM and not result.f_flag & os.ST_NOEXEC
