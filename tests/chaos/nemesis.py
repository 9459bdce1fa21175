"""Kills and freezes worker processes by a seeded plan, and puts new ones in the place of the dead."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import subprocesses
from tests.support.fork_server import FORKS_TOO

Fault = Callable[[], str]
BOOT = 60.0
"""Seconds: no machine of ours takes as long to start a worker."""


@dataclass
class Fleet:
    """Three worker processes, each by itself: what a dead one held must come back by its lease alone."""

    url: str
    folder: Path
    environment: dict[str, str]
    rng: random.Random
    size: int = 3
    freeze: float = 3.0
    """Seconds: longer than the lease, which is two unless a program has another, so that a frozen worker wakes up a
    zombie."""
    program: tuple[str, ...] = ()
    """Arguments of Python; unless given, ``stowhand worker`` on the chaos tests' tasks."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    frozen: dict[int, threading.Timer] = field(default_factory=dict)
    started: int = 0
    deaths: dict[int, float] = field(default_factory=dict)
    """By process id: the time at which it was found dead."""
    pauses: list[tuple[int, float]] = field(default_factory=list)
    """Process ids, and the times at which they were frozen."""

    def keep(self) -> None:
        """Replace the dead, and forget those that were frozen long enough."""
        self.frozen = {pid: thaw for pid, thaw in self.frozen.items() if thaw.is_alive()}
        self._bury()
        while len(self.processes) < self.size:
            self._start()

    def _bury(self) -> None:
        dead = [process for process in self.processes if process.poll() is not None]
        self.deaths |= {process.pid: time.time() for process in dead if process.pid not in self.deaths}
        self.processes = [process for process in self.processes if process not in dead]

    def kill_one(self) -> str:
        """SIGKILL to any of them."""
        process = self.rng.choice(self.processes)
        _send(process.pid, signal.SIGKILL)
        process.wait()
        self.deaths[process.pid] = time.time()
        if process.pid in self.frozen:
            self.frozen.pop(process.pid).cancel()
        return f"killed {process.pid}"

    def freeze_one(self) -> str:
        """SIGSTOP; the SIGCONT comes after more than a lease. Others may be frozen meanwhile.

        It comes by itself: a process that is frozen in the middle of a write keeps the test waiting too.
        """
        awake = [process for process in self.processes if process.pid not in self.frozen]
        if not awake:
            return "nobody left to freeze"
        process = self.rng.choice(awake)
        self.pauses.append((process.pid, time.time()))
        _send(process.pid, signal.SIGSTOP)
        self.frozen[process.pid] = threading.Timer(self.freeze, _send, (process.pid, signal.SIGCONT))
        self.frozen[process.pid].start()
        return f"froze {process.pid}"

    def stop(self, grace: float) -> list[int]:
        """Stop them all in the ordinary way; gives the exit codes.

        Those that were started a moment ago, in the place of a dead one, are awaited until they hear the signal.
        """
        for thaw in self.frozen.values():
            thaw.join()
        for process in self.processes:
            _wait_for_ears(process)
            _send(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(deadline - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self._bury()
        return codes

    def destroy(self) -> None:
        """End all processes."""
        for thaw in self.frozen.values():
            thaw.cancel()
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
        environment = self.environment | {FORKS_TOO: "1"}
        with log:
            process = subprocesses.Popen(chosen, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)


class Plan:
    """Every fault at a share of the work, drawn at random: neither a fast machine nor a slow one is spared."""

    def __init__(self, rng: random.Random, faults: list[Fault]) -> None:
        shares = [rng.uniform(0.02, 0.8) for _ in faults]
        self._todo = sorted(zip(shares, faults, strict=True), key=lambda due: due[0])
        self._began = time.monotonic()

    def __bool__(self) -> bool:
        """Whether any is left."""
        return bool(self._todo)

    @property
    def seconds(self) -> float:
        """Since the plan was made."""
        return time.monotonic() - self._began

    def strike(self, fleet: Fleet, done: float) -> list[str]:
        """Those that are due when the share ``done`` is done, the dead replaced after each; gives what they say."""
        messages = []
        while self._todo and self._todo[0][0] <= done:
            messages.append(f"{self.seconds:.1f} s, {done:.0%} done: {self._todo.pop(0)[1]()}")
            fleet.keep()
        return messages


def _wait_for_ears(process: subprocess.Popen[bytes]) -> None:
    """Until the process has a handler for SIGTERM, as the kernel knows it; while Python starts there is none."""
    deadline = time.monotonic() + BOOT
    while process.poll() is None and not _hears(process.pid, signal.SIGTERM):
        assert time.monotonic() < deadline, f"{process.pid} has no handler for SIGTERM after {BOOT} s"
        time.sleep(0.02)


def _hears(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
