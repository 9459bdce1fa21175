"""A child that prints its orders, and ends with them or at ``drain``; ``stay``: it does not, nor does its own child."""

from __future__ import annotations

import subprocess
import sys
import time

if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what.startswith("exit"):
        sys.exit(int(what.split()[1]))
    for line in sys.stdin:
        print(line.strip(), flush=True)  # noqa: T201 - its parent reads it
        if what == "stay":
            print(subprocess.Popen(["sleep", "600"]).pid, flush=True)  # noqa: T201
            time.sleep(600)
        if line == "drain\n":
            break
