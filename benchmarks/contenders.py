"""Who is measured, with which settings, and how each is installed."""

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
PIP_PACKAGES = ("pgqueuer==1.6.*", "asyncpg", "uvloop", "procrastinate==3.10.*", "psycopg[binary,pool]", "huey==3.5.*")


@dataclass(frozen=True)
class Contender:
    """A queue with one set of settings, driven through a small script of ours that knows a few verbs."""

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

    @property
    def command(self) -> list[str]:
        """What runs the script; a verb and a number follow."""
        script = SCRIPTS / self.script
        if script.suffix == ".js":
            return ["node", str(script)]
        own = self.family == "stowhand"
        return [sys.executable if own else str(PYTHON / "bin" / "python"), str(script)]


ALL = ("one", "many", "drain", "latency", "idle")
OURS_LIVE = "exists (select from stowhand.live)"
POSTGRES = (
    Contender("stowhand", "stowhand_.py", ALL, "stowhand", OURS_LIVE),
    Contender("bare insert", "bare.py", ("one",), "stowhand"),
    Contender(
        "graphile-worker, batched",
        "graphile.js",
        ("one", "many", "drain"),
        "graphile",
        "exists (select from graphile_worker._private_jobs)",
        {"GRAPHILE_MODE": "batched"},
    ),
    Contender("graphile-worker, plain", "graphile.js", ("latency", "idle"), "graphile", "", {"GRAPHILE_MODE": "plain"}),
    Contender(
        "graphile-worker 0.13, -j 1",
        "graphile.js",
        ("latency", "idle"),
        "graphile-13",
        "",
        {"GRAPHILE_MODE": "0.13", "PEERS_NODE": str(NODE_13)},
    ),
    Contender("pgqueuer", "pgqueuer_.py", ALL, "pgqueuer", "exists (select from pgqueuer)"),
    Contender(
        "procrastinate",
        "procrastinate_.py",
        ALL,
        "procrastinate",
        "exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        share=0.05,
    ),
)

SQLITE_LIVE = "exists (select 1 from stowhand_jobs)"
SQLITE = (
    Contender("stowhand, FULL", "stowhand_.py", ALL, "stowhand", SQLITE_LIVE, {"STOWHAND_SYNCHRONOUS": "FULL"}),
    Contender("stowhand, NORMAL", "stowhand_.py", ALL, "stowhand", SQLITE_LIVE, {"STOWHAND_SYNCHRONOUS": "NORMAL"}),
    Contender("huey, FULL", "huey_.py", ALL, "huey", "exists (select 1 from task)", {"HUEY_DURABLE": "yes"}, share=0.1),
    Contender("huey, OFF", "huey_.py", ALL, "huey", "exists (select 1 from task)", share=0.5),
)


def install(families: set[str]) -> None:
    """Put the peers' packages below .state/peers, if they are not there."""
    for folder, packages in (NPM_PACKAGES[family] for family in sorted(families & NPM_PACKAGES.keys())):
        if not (folder / "node_modules" / packages[0].rpartition("@")[0]).is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text("{}\n")
            quiet = ("--no-fund", "--no-audit", "--omit-lockfile-registry-resolved")
            _run("npm", "install", *quiet, "--prefix", str(folder), *packages)
    if families & {"pgqueuer", "procrastinate", "huey"} and not (PYTHON / "complete").exists():
        venv.create(PYTHON, with_pip=True)
        _run(str(PYTHON / "bin" / "python"), "-m", "pip", "install", "--quiet", *PIP_PACKAGES)
        (PYTHON / "complete").touch()


def environment(probes: Path) -> dict[str, str]:
    """What every script finds in its environment."""
    path = os.pathsep.join([str(ROOT / "src"), str(SCRIPTS)])
    return {**os.environ, "PYTHONPATH": path, "PEERS_NODE": str(NODE), "STOWHAND_BENCH_PROBE": str(probes)}


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
