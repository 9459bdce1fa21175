"""The clocks of this store: a wall clock for run times, and the monotonic clock of a boot for leases.

All processes of one boot read the same monotonic clock, and changes of the wall clock do not affect it. A reboot
restarts it, so a lease contains the id of its boot.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import msgspec

from stowhand.clock import SystemClock, wall_clock
from stowhand.errors import ConfigurationError

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MICROSECOND = timedelta(microseconds=1)
LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(msgspec.Struct, frozen=True):
    """One reading of both clocks."""

    wall: int
    """Microseconds since 1970, UTC."""
    boot: str
    ticks: int
    """Microseconds of the boot's monotonic clock."""

    def after(self, seconds: float) -> int:
        """Return the wall time after ``seconds``. Raise OverflowError if they are infinite."""
        return self.wall + micros(seconds)


Now = Callable[[], Moment]


def clock(pinned: Callable[[], datetime] | None) -> Now:
    """Return a function that reads the time. A pinned time also applies to leases and never reboots."""
    if pinned is None:
        return _read
    return lambda: _pinned_moment(pinned())


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * 1_000_000)


def to_micros(when: datetime) -> int:
    """Convert an aware datetime to microseconds since 1970."""
    return (when - UNIX_EPOCH) // ONE_MICROSECOND


def to_datetime(stored: int) -> datetime:
    """Convert a stored time to a datetime, with integers only: a float would lose microseconds."""
    return UNIX_EPOCH + timedelta(0, 0, stored)


def _pinned_moment(when: datetime) -> Moment:
    stored = to_micros(when)
    return Moment(stored, "pinned", stored)


_monotonic = SystemClock().monotonic


def _read() -> Moment:
    return Moment(to_micros(wall_clock()), boot_id(), micros(_monotonic()))


@cache
def boot_id() -> str:
    """Return the id of this boot: random on Linux, the boot session on macOS, elsewhere the boot time."""
    try:
        return LINUX_BOOT_ID.read_text("ascii").strip()
    except OSError:
        pass  # This is not Linux, or /proc is hidden: try sysctl.
    for name in ("kern.bootsessionuuid", "kern.boottime"):
        output = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5
        )
        if output.returncode == 0 and output.stdout.strip():
            return output.stdout.strip()
    raise ConfigurationError(
        f"cannot identify the current boot of this machine ({sys.platform}): neither {LINUX_BOOT_ID} nor sysctl's"
        " kern.bootsessionuuid can be read, so a job could stay claimed by a worker of an earlier boot; use PostgreSQL"
    )
