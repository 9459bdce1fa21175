"""SQLite in a scenario's process: names every commit of a write, and strikes before or after one of them.

What a transaction has written before its commit is invisible to every other process, so the commits are all points.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from stowhand.stores.sqlite.queue.transaction import STATEMENTS
from tests.kill_points.points import Fault

NAMES = {text: name for name, text in STATEMENTS.items()}
COMMENTS = re.compile("--.*")
READS = ("SELECT", "PRAGMA", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")


class Points:
    """The commits of this process."""

    def __init__(self, list_file: Path, fault: Fault | None) -> None:
        self._list_file = list_file
        self._fault = fault
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def meets(self, label: str) -> Fault | None:
        """Name a commit. Return the fault that is to strike there."""
        with self._lock:
            self._counts[label] += 1
            name, number = f"{label}.{self._counts[label]}", self._counts.total()
            with self._list_file.open("a") as file:
                file.write(f"{name}\n")
        return self._fault if self._fault is not None and self._fault.is_at(name, number) else None


class Watched(sqlite3.Connection):
    """A connection whose commits are points."""

    points: Points
    _first_write = ""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self._first_write:
            fault = self.points.meets(self._first_write)
            if fault is not None and fault.moment == "before":
                strike(fault)
            cursor = super().execute(sql)
            if fault is not None:
                strike(fault)
            return cursor
        self._note(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self._note(sql)
        return super().executemany(sql, parameters)

    def _note(self, sql: str) -> None:
        """Remember what the transaction is about."""
        word = COMMENTS.sub("", sql).split(maxsplit=1)[0].upper()
        if word == "BEGIN":
            self._first_write = ""
        elif not self._first_write and word not in READS:
            self._first_write = NAMES.get(sql) or word.lower()


def strike(fault: Fault) -> None:
    """End this process, or fail as a disk does."""
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
    raise error


def watch(list_file: Path, fault: Fault | None) -> None:
    """From now on, every connection of this process is watched."""
    Watched.points = Points(list_file, fault)
    vars(sqlite3)["connect"] = partial(sqlite3.connect, factory=Watched)
