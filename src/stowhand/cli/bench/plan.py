"""What is to be measured, and how much of it."""

from __future__ import annotations

import msgspec

MEASURES = ("enqueue", "many", "drain", "latency")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the measurements. The defaults take about two minutes."""

    measures: tuple[str, ...] = MEASURES
    enqueued: int = 2_000
    """One by one."""
    many: int = 100_000
    """In one call."""
    jobs: int = 60_000
    """The backlog that is drained."""
    runs: int = 3
    """Of which the median counts."""
    processes: tuple[int, ...] = (1, 2)
    samples: int = 200
    """Jobs sent to an idle worker."""
    concurrency: int = 24

    def quick(self) -> Plan:
        """Rough figures in some seconds."""
        return msgspec.structs.replace(self, enqueued=200, many=5_000, jobs=5_000, runs=1, samples=30)


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding."""

    measure: str
    value: float
    """The median of ``runs`` where there were several."""
    unit: str
    runs: list[float] = []
