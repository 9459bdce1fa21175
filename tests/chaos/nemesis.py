"""Kills and freezes worker processes by a seeded plan, and puts new ones in the place of the dead."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Fault = Callable[[], str]
FROZEN = 3.0
"""Longer than the lease of 2 s, so that a frozen worker wakes up a zombie."""


@dataclass
class Fleet:
    """Three worker processes, each by itself: what a dead one held must come back by its lease alone."""

    url: str
    folder: Path
    environment: dict[str, str]
    rng: random.Random
    size: int = 3
    program: tuple[str, ...] = ()
    """Arguments of Python; unless given, ``stowhand worker`` on the chaos tests' tasks."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    frozen: dict[int, float] = field(default_factory=dict)
    started: int = 0

    def keep(self) -> None:
        """Replace the dead and thaw those that were frozen long enough."""
        now = time.monotonic()
        for pid, until in list(self.frozen.items()):
            if until <= now:
                del self.frozen[pid]
                _send(pid, signal.SIGCONT)
        self.processes = [process for process in self.processes if process.poll() is None]
        while len(self.processes) < self.size:
            self._start()

    def kill_one(self) -> str:
        """SIGKILL to any of them."""
        process = self.rng.choice(self.processes)
        _send(process.pid, signal.SIGKILL)
        process.wait()
        self.frozen.pop(process.pid, None)
        return f"killed {process.pid}"

    def freeze_one(self) -> str:
        """SIGSTOP; the SIGCONT comes after more than a lease. Others may be frozen meanwhile."""
        awake = [process for process in self.processes if process.pid not in self.frozen]
        if not awake:
            return "nobody left to freeze"
        process = self.rng.choice(awake)
        _send(process.pid, signal.SIGSTOP)
        self.frozen[process.pid] = time.monotonic() + FROZEN
        return f"froze {process.pid}"

    def stop(self, grace: float) -> list[int]:
        """Stop them all in the ordinary way; gives the exit codes."""
        for pid in self.frozen:
            _send(pid, signal.SIGCONT)
        for process in self.processes:
            _send(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(deadline - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes

    def destroy(self) -> None:
        """Whatever happened: leave nobody behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def logs(self) -> str:
        """Everything that all of them wrote."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("worker-*.log")))

    def _start(self) -> None:
        self.started += 1
        log = (self.folder / f"worker-{self.started}.log").open("wb")
        command = [sys.executable, "-m", "stowhand.cli", "worker", "-c", self.url, "--app", "tests.chaos.work:app"]
        options = ["--lease", "2", "-j", "8", "--grace", "10", "--log-level", "info"]
        chosen = [sys.executable, *self.program] if self.program else [*command, *options]
        with log:
            process = subprocess.Popen(chosen, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)


def plan(rng: random.Random, faults: list[Fault], first: float, last: float) -> list[tuple[float, Fault]]:
    """Each fault at a random moment between ``first`` and ``last`` seconds, in order of time."""
    return sorted(((rng.uniform(first, last), fault) for fault in faults), key=lambda due: due[0])


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
