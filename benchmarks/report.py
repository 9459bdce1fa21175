"""Report: figures side by side, and their targets."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OURS = "stowhand"
Runs = dict[str, dict[str, list[float]]]
"""The figures of all runs, by measure (what, and the unit) and then by contender or case."""


def save(runs: Runs, file: Path | None) -> None:
    """Write the figures as JSON for ``page.py``, if a file is named (``--json`` of every benchmark)."""
    if file is not None:
        file.write_text(json.dumps(runs, indent=1))


def by_column(what: str, columns: Sequence[str], rows: Mapping[str, Sequence[Sequence[float]]]) -> Runs:
    """Return a table's figures by column. It has a row for each run of each case."""
    return {
        f"{what}: {column}": {case: [row[place] for row in runs] for case, runs in rows.items()}
        for place, column in enumerate(columns)
    }


@dataclass(frozen=True)
class Target:
    """Target: a ratio to a peer of the same run, or a bound."""

    measure: str
    peer: str | None
    minimum: float | None = None
    maximum: float | None = None
    ours: str = OURS

    def met(self, figure: float) -> bool:
        """Return whether the ratio, or the figure if there is no peer, meets the target."""
        return (self.minimum is None or figure >= self.minimum) and (self.maximum is None or figure <= self.maximum)

    @property
    def bound(self) -> str:
        return f">= {self.minimum:g}" if self.minimum is not None else f"<= {self.maximum:g}"


BATCHED, PLAIN = "graphile-worker, batched", "graphile-worker, plain"
OLD = "graphile-worker 0.13, -j 1"
KEPT, FULL, NORMAL = "stowhand, history kept", "stowhand, FULL", "stowhand, NORMAL"
QUEUES = (
    Target("drain, 1 process, jobs/s", BATCHED, minimum=2.5),
    Target("drain, 2 processes, jobs/s", BATCHED, minimum=2.2),
    Target("drain, 1 process, jobs/s", OURS, minimum=0.75, ours=KEPT),
    Target("drain, 1 process, processor time of the workers, us a job", None, maximum=14),
    Target("enqueue, in bulk, jobs/s", BATCHED, minimum=2),
    Target("enqueue, one by one, jobs/s", "bare insert", minimum=0.9),
    Target("enqueue to start, p50, ms", PLAIN, maximum=0.7),
    Target("enqueue to start, p99, ms", PLAIN, maximum=0.7),
    Target("enqueue to start, p50, ms", OLD, maximum=0.8),
    Target("transactions of an idle worker, per minute", None, maximum=8),
    Target("memory of a worker after a drain, MB", None, maximum=50),
    Target("whole life: WAL, bytes a job", None, maximum=1000),
    Target("whole life: WAL, bytes a job", None, maximum=1200, ours=KEPT),
    Target("claim and settle: commits a job", None, maximum=0.03),
    Target("claim and settle: MultiXacts a job", None, maximum=0),
)
ON_SQLITE = (
    Target("drain, 1 process, jobs/s", None, minimum=15_000, ours=FULL),
    Target("drain, 1 process, jobs/s", None, minimum=25_000, ours=NORMAL),
    Target("drain, 1 process, jobs/s", "huey, FULL", minimum=3.0, ours=FULL),
    Target("enqueue to start, p50, ms", None, maximum=5, ours=FULL),
)
ALONE, BESIDE_HELD = "nothing else", "stowhand, snapshot held"
BYSTANDER = (
    Target("select beside a drain, p50, ms", ALONE, maximum=1.05),
    Target("select beside a drain, p50, ms", ALONE, maximum=1.05, ours=BESIDE_HELD),
    Target("update beside a drain, p50, ms", ALONE, maximum=1.05),
    Target("update beside a drain, p50, ms", ALONE, maximum=1.05, ours=BESIDE_HELD),
)
CALLERS = (
    Target("enqueue: jobs/s", "bare", minimum=0.9, ours="callers 1"),
    Target("enqueue: jobs/s", "callers 1", minimum=8, ours="callers 50"),
)
TABLES = (Target("drain: records/s", "our own queue", minimum=0.7, ours="a table"),)
SERIAL = (
    Target("serial: commits", None, maximum=2, ours="1 queue, 1 process, 4 at once"),
    Target("serial: multixacts", None, maximum=0, ours="1 queue, 1 process, 4 at once"),
)
FROM_SQL = (
    Target("add_job, plain: jobs/s", "graphile-worker 0.13.0", minimum=0.8),
    Target("add_job, keyed: jobs/s", "graphile-worker 0.13.0", minimum=0.6),
    Target("add_job, in one of ten queues: jobs/s", "graphile-worker 0.13.0", minimum=1),
)
LENT = (
    Target("lent: drain jobs/s", None, minimum=15_000),
    Target("lent: p50 ms", None, maximum=8),
)
BULLMQ, GUILD = "bullmq", "guild-queues"
FLOWS = (
    Target("drain, 1 process, jobs/s", BULLMQ, minimum=3),
    Target("drain, 2 processes, jobs/s", BULLMQ, minimum=3),
    Target("drain, 1 process, jobs/s", GUILD, minimum=6),
)


@dataclass
class Report:
    """Figures by measure and contender."""

    targets: tuple[Target, ...] = QUEUES
    runs: Runs = field(default_factory=dict)

    def add(self, measure: str, contender: str, figure: float) -> None:
        """Add one run."""
        self.runs.setdefault(measure, {}).setdefault(contender, []).append(figure)

    def lines(self) -> Iterator[str]:
        """Return the lines of a table and of the targets."""
        for measure, found in self.runs.items():
            yield f"\n{measure}"
            own = self._median(measure, next(iter(found)))
            for contender, runs in found.items():
                median = statistics.median(runs)
                ratio = f"{own / median:>8.2f}x" if own and median and contender != next(iter(found)) else " " * 9
                yield f"  {contender:<28}{median:>12,.6g}{ratio}   ({', '.join(f'{run:,.6g}' for run in runs)})"
        yield "\ntargets"
        yield from self._verdicts()

    def _verdicts(self) -> Iterator[str]:
        for target in self.targets:
            ours = self._median(target.measure, target.ours)
            peer = self._median(target.measure, target.peer) if target.peer else 1.0
            if ours is None or not peer:
                continue
            figure = ours / peer
            against = f" x {target.peer}" if target.peer else ""
            yield (
                f"  {'met' if target.met(figure) else 'NOT MET':<9}{target.measure}, {target.ours}:"
                f" {figure:,.4g}{against} (target: {target.bound})"
            )

    def _median(self, measure: str, contender: str) -> float | None:
        runs = self.runs.get(measure, {}).get(contender)
        return statistics.median(runs) if runs else None
