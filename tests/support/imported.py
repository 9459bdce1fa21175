"""What a new interpreter has imported."""

from __future__ import annotations

import os
import subprocess
import sys


def modules_after(code: str) -> set[str]:
    """The names of the modules that are loaded once ``code`` has run.

    Without what measures coverage: it starts with the interpreter, and imports modules of its own.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    script = f"{code}\nimport sys; print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())
