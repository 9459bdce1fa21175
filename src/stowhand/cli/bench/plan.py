"""Plan of a benchmark and a row of its results."""

from __future__ import annotations

import msgspec

MEASURES = ("enqueue", "many", "drain", "latency")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the measurements. The defaults take about two minutes."""

    measures: tuple[str, ...] = MEASURES
    enqueued: int = 2_000
    """Jobs enqueued one by one."""
    many: int = 100_000
    """Jobs enqueued in one call."""
    jobs: int = 60_000
    """The backlog that is drained."""
    runs: int = 3
    """Repetitions, of which the median counts."""
    processes: tuple[int, ...] = (1, 2)
    samples: int = 200
    """Jobs sent to an idle worker."""
    concurrency: int = 24

    def quick(self) -> Plan:
        """Rough figures in some seconds."""
        return msgspec.structs.replace(self, enqueued=200, many=5_000, jobs=5_000, runs=1, samples=30)


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure."""

    measure: str
    value: float
    """The median of ``runs`` where there were several."""
    unit: str
    runs: list[float] = []
