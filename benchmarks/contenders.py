"""Contenders: the measured libraries with their settings, and how each is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = ROOT / ".state" / "peers"
SCRIPTS = Path(__file__).parent / "peers"
NODE = STATE / "node"
NODE_13 = STATE / "node-graphile-13"
PYTHON = STATE / "python"

NPM_PACKAGES = {
    "graphile": (NODE, ("graphile-worker@0.17.3", "pg@8")),  # 0.18 asks for Node 22
    "graphile-13": (NODE_13, ("graphile-worker@0.13.0", "pg@8")),
    "bullmq": (STATE / "node-bullmq", ("bullmq@6.7.0", "ioredis@5.11.1")),
    "guild": (STATE / "node-guild", ("@guildxyz/queues@0.0.8",)),
}
"""By family: a folder of its own, since two of them want different majors of one package."""
PIP_PACKAGES = (
    *("pgqueuer==1.6.*", "asyncpg", "uvloop", "procrastinate==3.10.*", "psycopg[binary,pool]", "huey==3.5.*"),
    *("celery==5.*", "dramatiq==2.*", "rq==3.*", "redis"),
)


@dataclass(frozen=True)
class Contender:
    """Queue with one set of settings. A small script with a few verbs drives it."""

    name: str
    script: str
    measures: tuple[str, ...]
    family: str
    """What ``--peers`` calls it."""
    live: str = ""
    """SQL that is true while a job is left; of Redis, the keys of which one is there so long."""
    environment: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    """Of the jobs, for those that would take minutes."""
    steps: int = 1
    """Handlers that one job passes."""
    imports: dict[str, str] = field(default_factory=dict)
    """What an application and a worker import, as a program in the contender's language."""

    @property
    def command(self) -> list[str]:
        """Return the command of the script, to which a verb and a number are appended."""
        script = SCRIPTS / self.script
        if script.suffix == ".js":
            return ["node", str(script)]
        own = self.family == "stowhand"
        return [sys.executable if own else str(PYTHON / "bin" / "python"), str(script)]


ALL = ("one", "many", "drain", "latency", "idle", "start")
COUNTED = (*ALL, "costs")
"""Where a server counts."""
OURS_LIVE = "exists (select from stowhand.live)"
OUR_IMPORTS = {"an application": "from stowhand import App", "a worker": "from stowhand import Worker"}
GRAPHILE = dict.fromkeys(OUR_IMPORTS, "require(`${process.env.PEERS_NODE}/node_modules/graphile-worker`)")
PGQUEUER = dict.fromkeys(OUR_IMPORTS, "from pgqueuer import PgQueuer")
PROCRASTINATE = dict.fromkeys(OUR_IMPORTS, "import procrastinate")
HUEY = dict.fromkeys(OUR_IMPORTS, "from huey import SqliteHuey")
GRAPHILE_LIVE = "exists (select from graphile_worker._private_jobs)"
OLD_NODE = {"GRAPHILE_MODE": "0.13", "PEERS_NODE": str(NODE_13)}
POSTGRES = (
    Contender("stowhand", "stowhand_.py", COUNTED, "stowhand", OURS_LIVE, imports=OUR_IMPORTS),
    Contender(
        "stowhand, history kept", "stowhand_.py", ("drain", "costs"), "stowhand", OURS_LIVE, {"STOWHAND_HISTORY": "yes"}
    ),
    Contender("bare insert", "bare.py", ("one",), "stowhand"),
    Contender(
        "graphile-worker, batched",
        "graphile.js",
        ("one", "many", "drain", "costs"),
        "graphile",
        GRAPHILE_LIVE,
        {"GRAPHILE_MODE": "batched"},
    ),
    Contender(
        "graphile-worker, plain",
        "graphile.js",
        ("latency", "idle", "start"),
        "graphile",
        GRAPHILE_LIVE,
        {"GRAPHILE_MODE": "plain"},
        imports=GRAPHILE,
    ),
    Contender("graphile-worker 0.13, -j 1", "graphile.js", ("latency", "idle"), "graphile-13", "", OLD_NODE),
    Contender("pgqueuer", "pgqueuer_.py", COUNTED, "pgqueuer", "exists (select from pgqueuer)", imports=PGQUEUER),
    Contender(
        "procrastinate",
        "procrastinate_.py",
        COUNTED,
        "procrastinate",
        "exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        share=0.05,
        imports=PROCRASTINATE,
    ),
)

SQLITE_LIVE = "exists (select 1 from stowhand_jobs)"
FULL, NORMAL = ({"STOWHAND_SYNCHRONOUS": name} for name in ("FULL", "NORMAL"))
HUEY_LIVE = "exists (select 1 from task)"
SQLITE = (
    Contender("stowhand, FULL", "stowhand_.py", ALL, "stowhand", SQLITE_LIVE, FULL, imports=OUR_IMPORTS),
    Contender("stowhand, NORMAL", "stowhand_.py", ALL, "stowhand", SQLITE_LIVE, NORMAL, imports=OUR_IMPORTS),
    Contender("huey, FULL", "huey_.py", ALL, "huey", HUEY_LIVE, {"HUEY_DURABLE": "yes"}, share=0.1, imports=HUEY),
    Contender("huey, OFF", "huey_.py", ALL, "huey", HUEY_LIVE, share=0.5, imports=HUEY),
)


def install(families: set[str]) -> set[str]:
    """Install missing packages of the peers below .state/peers. Return the installed families; print why others
    are not."""
    return {family for family in sorted(families) if _installed(family)}


def _installed(family: str) -> bool:
    try:
        if family in NPM_PACKAGES:
            _install_npm(*NPM_PACKAGES[family])
        elif family != "stowhand":
            _install_pip()
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"not installed: {family}: {error}", file=sys.stderr)
        return False
    return True


def _install_pip() -> None:
    wanted, complete = "\n".join(PIP_PACKAGES), PYTHON / "complete"
    if not complete.exists() or complete.read_text() != wanted:
        venv.create(PYTHON, with_pip=True)
        _run(str(PYTHON / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade", *PIP_PACKAGES)
        complete.write_text(wanted)


def _install_npm(folder: Path, packages: tuple[str, ...]) -> None:
    if not (folder / "node_modules" / packages[0].rpartition("@")[0]).is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}\n")
        quiet = ("--no-fund", "--no-audit", "--omit-lockfile-registry-resolved")
        _run("npm", "install", *quiet, "--prefix", str(folder), *packages)


def environment(probes: Path) -> dict[str, str]:
    """Return the environment of every script."""
    path = os.pathsep.join([str(ROOT / "src"), str(SCRIPTS), str(ROOT)])
    ours = {"PYTHONPATH": path, "PEERS_NODE": str(NODE), "STOWHAND_BENCH_PROBE": str(probes)}
    others = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # for everybody
    return {**others, **ours}


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
