"""Measure speed, and write the tables of both pages about it: python benchmarks/page.py --help

The benchmarks run one after another, as parts; each writes its figures as JSON, which are put into results.json as soon
as it has ended. A part that fails is named, and keeps the figures that it had. Without anything else on the machine all
of it takes 20 to 25 minutes on two cores.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
sys.path = [place for place in sys.path if Path(place) != Path(__file__).parent]  # its peers/ would hide this package

from benchmarks.contenders import NPM_PACKAGES, PYTHON  # noqa: E402
from benchmarks.parts import PARTS  # noqa: E402
from benchmarks.performance import PAGE, USERS_PAGE, written  # noqa: E402
from benchmarks.report import Runs  # noqa: E402
from benchmarks.results import Machine, Measured, commit, read, this_machine, write  # noqa: E402
from tests.support.binaries import find_postgres  # noqa: E402
from tests.support.valkey import find_redis  # noqa: E402

LOGS = ROOT / ".state" / "performance"


RUNS = 5


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="A part; may be repeated. All.")
@click.option("--runs", default=RUNS, show_default=True, help="Of each measurement.")
@click.option("--quick", is_flag=True, help="One short run of each: whether it works. Nothing is written.")
@click.option("--tables", is_flag=True, help="Measure nothing: write the tables anew.")
def main(only: tuple[str, ...], runs: int, quick: bool, tables: bool) -> None:
    """Measure all parts, and write results.json and the page's tables."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended on the way out
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in [] if tables else (only or PARTS):
        part = PARTS[name]
        try:
            measured = _measured(name, part.line(1 if quick else runs, quick=quick), 60 * (4 * part.minutes + 5))
        except (OSError, RuntimeError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            failed.append(name)
            click.echo(f"{name}: FAILED, {error}", err=True)
            continue
        for line in (LOGS / f"{name}.log").read_text(errors="replace").splitlines():
            if line.startswith("not installed: ") or " failed: " in line:
                click.echo(f"{name}: {line}", err=True)
        click.echo(f"{name}: {measured.seconds} s, {len(measured.figures)} measures, load {measured.load}", err=True)
        if not quick:
            write(read() | {name: measured})
    if not quick:
        for page in (PAGE, USERS_PAGE):
            page.write_text(written(page.read_text(), read()))
    if failed:
        raise click.ClickException(f"failed, their logs are in {LOGS.relative_to(ROOT)}: {', '.join(failed)}")


def _measured(name: str, command: str, seconds: float) -> Measured:
    """Run a part. Raises RuntimeError with the end of its log if it fails or takes too long."""
    file, log = LOGS / f"{name}.json", LOGS / f"{name}.log"
    file.unlink(missing_ok=True)
    before, began = os.getloadavg()[0], time.monotonic()
    with log.open("wb") as output, _running(command, file, output.fileno()) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
    if code != 0 or not file.exists():
        how = f"not done within {seconds:.0f} s" if code is None else f"ended with {code}"
        raise RuntimeError(f"{how}:\n{log.read_text(errors='replace')[-1500:]}")
    return Measured(
        command=f"benchmarks/{command}",
        commit=commit(),
        day=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began),
        load=f"{before:.1f} before, {os.getloadavg()[0]:.1f} after",
        machine=_machine(),
        figures=msgspec.json.decode(file.read_bytes(), type=Runs),
    )


@contextlib.contextmanager
def _running(command: str, file: Path, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run in a new session, and end all of its processes afterwards."""
    words = [sys.executable, *shlex.split(f"benchmarks/{command}"), "--json", str(file)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _machine() -> Machine:
    """Return the machine, with installed servers and peers."""
    servers = {"PostgreSQL": _said(str(find_postgres()[0].bindir / "postgres"), "--version").split(" ")[-1]}
    servers["Redis or Valkey"] = ".".join(map(str, find_redis().version))
    servers["Node"] = _said("node", "--version").removeprefix("v")
    return this_machine({name: version for name, version in (servers | _peers()).items() if version})


def _peers() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, packages in NPM_PACKAGES.values():
        name = packages[0].rpartition("@")[0]
        described = folder / "node_modules" / name / "package.json"
        if described.exists():
            version = msgspec.json.decode(described.read_bytes())["version"]
            found[name] = f"{found[name]} and {version}" if name in found else version
    listed = _said(str(PYTHON / "bin" / "python"), "-m", "pip", "list", "--format", "freeze")
    for line in listed.splitlines():
        name, _, version = line.partition("==")
        if name in ("pgqueuer", "procrastinate", "huey", "asyncpg"):
            found[name] = version
    return found


def _said(*command: str) -> str:
    """Return the version that a program prints; nothing if it is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    main()
