"""Parts of the page about performance: benchmarks with their options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Benchmark with options."""

    command: str
    quick: str
    """Options with which it is soon over: whether it works, not how fast it is."""
    minutes: float
    """About what it takes on a quiet machine; it is ended after four times that, and five minutes more."""
    repeated: bool = True
    """Takes ``--runs``."""

    def line(self, runs: int, *, quick: bool) -> str:
        """Return the command line with all options."""
        options = [self.command, *([self.quick] if quick else []), *([f"--runs {runs}"] if self.repeated else [])]
        return " ".join(options)


PARTS = {
    "queues": Part(
        "peers.py --only drain,latency --peers graphile,graphile-13,pgqueuer,procrastinate --jobs 30000 --samples 150",
        "--jobs 2000 --many 2000 --samples 20",
        5.0,
    ),
    "bulk": Part("peers.py --only many,one --peers graphile --many 50000 --one 1000", "--many 2000 --one 100", 1.5),
    "costs": Part("peers.py --only costs,start --peers graphile,pgqueuer", "--counted 2000", 2.5),
    "idle": Part("peers.py --only idle --peers graphile --window 60", "--window 5", 2.5),
    "enqueue": Part("enqueue.py --seconds 1", "--seconds 0.2 --bulk 2000 --callers 1,8", 1.0),
    "timeline": Part("timeline.py --jobs 300", "--jobs 30", 0.5, repeated=False),
    "sql": Part("sql.py --only add_job --jobs 20000", "--jobs 1000", 1.5),
    "serial": Part("serial.py --jobs 600 --case 1:1:4 --case 3:4:4 --case 50:4:4", "--jobs 60", 2.0),
    "tables": Part(
        "tables.py --finished 100000 --rounds 120 --jobs 5000",
        "--finished 2000 --ahead 100 --rounds 30 --jobs 200",
        2.0,
    ),
    "bystander": Part("bystander.py --jobs 70000 --seconds 2", "--jobs 20000 --seconds 0.5", 2.5),
    "flows": Part("flows.py --only drain --jobs 12000", "--jobs 1000", 3.0),
    "brokers": Part("brokers.py", "--jobs 300 --samples 10", 2.0),
    "lent": Part("lent.py --jobs 20000 --samples 150", "--jobs 500 --samples 20", 1.5),
    "sqlite": Part("peers.py --sqlite --only drain,latency --jobs 10000 --samples 60", "--jobs 1000 --samples 20", 2.5),
}
"""In the order in which they are measured: what matters most comes first."""
