"""The process of a scenario: ``SCENARIO URL FOLDER [FAULT]``, the fault as JSON and on SQLite alone.

On PostgreSQL the proxy of ``wire.py`` strikes, from outside.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from stowhand.errors import StoreError
from tests.kill_points.points import Fault
from tests.kill_points.watched import watch
from tests.kill_points.workflows import scenario_of
from tests.kill_points.world import World

UNREACHABLE = 3
"""The exit code of a scenario that has ended with an error of the store."""


def main(name: str, url: str, folder: str, fault: str = "") -> int:
    world = World(url, Path(folder))
    if world.is_sqlite:
        watch(world.folder / "points", msgspec.json.decode(fault, type=Fault) if fault else None)
    try:
        asyncio.run(scenario_of(name).run(world))
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - the log of this process
        return UNREACHABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
