"""Tables of the pages about speed, made from the results. Each is between two comments of its page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks import report
from benchmarks.report import OURS, Runs, Target
from benchmarks.results import ROOT, Measured, Results, figures

PAGE = ROOT / "docs" / "contributing" / "measurements.md"
"""Every table, with goals and verdicts."""
USERS_PAGE = ROOT / "docs" / "explanation" / "performance.md"
"""One table for users."""
RESULTS_START, RESULTS_END = "<!-- results: {} -->", "<!-- end of results -->"
RESULTS_PATTERN = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
NOT_MEASURED = "*Not measured yet.*"


@dataclass(frozen=True)
class Shown:
    """Table of one part: a row for each contender or case, a column for each measure."""

    part: str
    columns: Mapping[str, str]
    """Measure by heading."""
    first: str = "contender"
    words: Mapping[str, str] = field(default_factory=dict)
    """What a contender is called on the page, where that differs."""

    def lines(self, results: Results) -> Iterator[str]:
        """Return rows of medians, with half the distance between the lowest and the highest run."""
        part = results.get(self.part)
        there = {heading: measure for heading, measure in self.columns.items() if part and measure in part.figures}
        if part is None or not there:
            yield NOT_MEASURED
            return
        yield row([self.first, *there])
        yield row(["---", *("--:" for _ in there)])
        for who in dict.fromkeys(who for measure in there.values() for who in part.figures[measure]):
            runs = (part.figures[measure].get(who) for measure in there.values())
            yield row([self.words.get(who, who), *(cell(each) for each in runs)])
        yield ""
        yield source(part)


def goals(results: Results) -> Iterator[str]:
    """Return a row for each goal, with both figures, the ratio and the verdict."""
    yield row(["measure", "ours", "beside", "ratio", "goal", ""])
    yield row(["---", "--:", "---", "--:", "--:", "---"])
    for on, (parts, targets) in GOALS.items():
        found = figures(results, parts)
        for target in targets:
            yield row(_verdict(on, found, target))


def compared(results: Results) -> Iterator[str]:
    """Yield one row for each library that was measured on each store."""
    drain, start = "drain, 1 process, jobs/s", "enqueue to start, p50, ms"
    yield row(["store", "library", "jobs/s, one worker process", "enqueue to start, ms"])
    yield row(["---", "---", "--:", "--:"])
    parts = {name: results[name] for name in COMPARED if name in results}
    for name, part in parts.items():
        drains, starts = part.figures.get(drain, {}), part.figures.get(start, {})
        for who in dict.fromkeys((*drains, *starts)):
            if not who.endswith(" queues"):
                figures_of_row = (_middle(drains.get(who)), _middle(starts.get(who)))
                yield row([COMPARED[name], who, *figures_of_row])
    yield ""
    for part in parts.values():
        yield f"* {source(part)}"


def _middle(runs: list[float] | None) -> str:
    return figure(statistics.median(runs)) if runs else "-"


def machine(results: Results) -> Iterator[str]:
    """Return where each part was measured."""
    by_machine: dict[str, list[str]] = {}
    for name, part in sorted(results.items()):
        at = part.machine
        versions = ", ".join(f"{what} {version}" for what, version in at.versions.items())
        text = f"{at.processor}, {at.cores} cores, {at.memory} of memory; {at.system}; {versions}"
        by_machine.setdefault(text, []).append(name)
    for text, names in by_machine.items():
        yield f"* {', '.join(names)}: {text}"


def source(part: Measured) -> str:
    """Return the line below a table that names its source."""
    most = max((len(runs) for found in part.figures.values() for runs in found.values()), default=0)
    many = "one run" if most == 1 else f"medians of {most} runs"
    return f"`{part.command}`: {many}, commit {part.commit}, {part.day}, {part.seconds} s; load {part.load}."


def row(cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def cell(runs: list[float] | None) -> str:
    """Return the median and the spread of the runs."""
    if not runs:
        return "-"
    middle = statistics.median(runs)
    apart = round(50 * (max(runs) - min(runs)) / middle) if middle else 0
    return figure(middle) + (f" ±{apart} %" if apart else "")


def figure(value: float) -> str:
    """Return a figure with three significant digits."""
    shortened = float(f"{value:.3g}")
    if abs(shortened) >= 100:
        return f"{shortened:,.0f}"
    return f"{shortened:.3g}"


def written(page: str, results: Results) -> str:
    """Return the page with these tables. Raises KeyError if it names an unknown table."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{chr(10).join(TABLES[found[2]](results))}\n{found[3]}"

    return RESULTS_PATTERN.sub(table, page)


def asked(page: str) -> list[str]:
    """Return the names of the page's tables."""
    return [found[2] for found in RESULTS_PATTERN.finditer(page)]


def _verdict(on: str, found: Runs, target: Target) -> list[str]:
    ours, peer = (_median(found, target.measure, who) for who in (target.ours, target.peer))
    bound = target.bound.replace(">=", "≥").replace("<=", "≤")
    name = f"{on}: {target.measure}" if target.ours == OURS else f"{on}: {target.measure} ({target.ours})"
    if ours is None or (target.peer and not peer):
        return [name, "-" if ours is None else figure(ours), target.peer or "", "", bound, "not measured"]
    beside = f"{target.peer}: {figure(peer)}" if peer else ""
    ratio = figure(ours / peer) if peer else ""
    verdict = "met" if target.met(ours / peer if peer else ours) else "**not met**"
    return [name, figure(ours), beside, ratio, bound, verdict]


def _median(found: Runs, measure: str, who: str | None) -> float | None:
    runs = found.get(measure, {}).get(who) if who else None
    return statistics.median(runs) if runs else None


GOALS: Mapping[str, tuple[tuple[str, ...], tuple[Target, ...]]] = {
    "PostgreSQL": (("queues", "bulk", "costs", "idle"), report.QUEUES),
    "callers": (("enqueue",), report.CALLERS),
    "SQL": (("sql",), report.FROM_SQL),
    "a serial queue": (("serial",), report.SERIAL),
    "lent over HTTP": (("lent",), report.LENT),
    "table": (("tables",), report.TABLES),
    "others": (("bystander",), report.BYSTANDER),
    "flow": (("flows",), report.FLOWS),
    "SQLite": (("sqlite",), report.ON_SQLITE),
}
"""On what, the parts in which its measures are, and its goals."""
DRAIN = {
    "1 process, jobs/s": "drain, 1 process, jobs/s",
    "2 processes, jobs/s": "drain, 2 processes, jobs/s",
    "worker, us a job": "drain, 1 process, processor time of the workers, us a job",
    "server, us a job": "drain, 1 process, processor time of the server, us a job",
    "memory of a worker, MB": "memory of a worker after a drain, MB",
}
ENQUEUE = {
    "in bulk, jobs/s": "enqueue, in bulk, jobs/s",
    "caller, us a job": "enqueue, in bulk, processor time of the caller, us a job",
    "one by one, jobs/s": "enqueue, one by one, jobs/s",
    "caller, us": "enqueue, one by one, processor time of the caller, us a job",
    "server, us": "enqueue, one by one, processor time of the server, us a job",
}
LATENCY = {"p50, ms": "enqueue to start, p50, ms", "p99, ms": "enqueue to start, p99, ms"}
COSTS = {
    "WAL to enqueue, bytes": "enqueue, in bulk: WAL, bytes a job",
    "WAL to claim and settle, bytes": "claim and settle: WAL, bytes a job",
    "commits": "claim and settle: commits a job",
    "transaction ids": "claim and settle: transaction ids a job",
    "MultiXacts": "claim and settle: MultiXacts a job",
    "dead row versions": "claim and settle: dead row versions a job",
    "server, us": "whole life: processor time of the server, us a job",
}
START = {
    "interpreter alone, ms of processor time": "import, the bare interpreter, ms of processor time",
    "imports of an application": "import, an application, ms of processor time",
    "imports of a worker": "import, a worker, ms of processor time",
    "process start to first job, ms": "process start to first job, ms",
    "stop signal to exit, ms": "told to end to the end, ms",
}
IDLE = {
    "transactions a minute": "transactions of an idle worker, per minute",
    "memory, MB": "memory of an idle worker, MB",
}
BYSTANDER_ROWS = {
    "select, p50 ms": "select beside a drain, p50, ms",
    "p99 ms": "select beside a drain, p99, ms",
    "update, p50 ms": "update beside a drain, p50, ms",
    "update, p99 ms": "update beside a drain, p99, ms",
    "drained meanwhile, jobs/s": "drain beside it, jobs/s",
}
CALLERS = {
    "jobs/s": "enqueue: jobs/s",
    "client, us a job": "enqueue: client us",
    "server, us a job": "enqueue: server us",
    "WAL, bytes a job": "enqueue: WAL B",
    "commits a job": "enqueue: commits",
}
SQL = {
    f"{what}{unit}": f"add_job, {measure}: {name}"
    for what, measure in (("plain", "plain"), ("keyed", "keyed"), ("in a queue", "in one of ten queues"))
    for unit, name in ((", jobs/s", "jobs/s"), (", us", "processor time of the server, us a job"))
}
SERIAL = {
    "jobs/s": "serial: jobs/s",
    "commits a job": "serial: commits",
    "transaction ids a job": "serial: xids",
    "WAL, bytes a job": "serial: WAL bytes",
    "MultiXacts": "serial: multixacts",
    "workers, us a job": "serial: worker us",
    "server, us a job": "serial: server us",
}
LENT = {
    "drain, jobs/s": "lent: drain jobs/s",
    "worker, us a job": "lent: worker us",
    "server in between, us a job": "lent: server us",
    "enqueue to start, p50 ms": "lent: p50 ms",
    "p99 ms": "lent: p99 ms",
}
RECORDS = {
    "drain, records/s": "drain: records/s",
    "worker, us a record": "drain: processor time of the worker, us a record",
}
GAPS = {"p10, ms": "timeline: p10, ms", "p50, ms": "timeline: p50, ms", "p99, ms": "timeline: p99, ms"}
FLOW = {
    "1 process, jobs/s": "drain, 1 process, jobs/s",
    "2 processes, jobs/s": "drain, 2 processes, jobs/s",
    "workers, us a job": "drain, 1 process, processor time of the workers, us a job",
    "server, us a job": "drain, 1 process, processor time of the server, us a job",
}
COMPARED = {"queues": "PostgreSQL", "sqlite": "SQLite", "flows": "Redis (flows)", "brokers": "Valkey"}
"""Stores by the part that measures libraries on them."""
TABLES: dict[str, Callable[[Results], Iterator[str]]] = {
    "compared": compared,
    "goals": goals,
    "machine": machine,
    "drain": Shown("queues", DRAIN).lines,
    "enqueue": Shown("bulk", ENQUEUE).lines,
    "latency": Shown("queues", LATENCY).lines,
    "callers": Shown("enqueue", CALLERS, "callers").lines,
    "costs": Shown("costs", COSTS).lines,
    "start": Shown("costs", START).lines,
    "idle": Shown("idle", IDLE).lines,
    "bystander": Shown("bystander", BYSTANDER_ROWS, "beside").lines,
    "sql": Shown("sql", SQL).lines,
    "serial": Shown("serial", SERIAL, "queues").lines,
    "lent": Shown("lent", LENT).lines,
    "tables": Shown("tables", RECORDS, "store").lines,
    "timeline": Shown("timeline", GAPS, "between").lines,
    "flows": Shown("flows", FLOW).lines,
    "sqlite": Shown("sqlite", DRAIN | LATENCY).lines,
}
