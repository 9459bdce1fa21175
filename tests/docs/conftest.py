"""The built site, for the tests that read it and the one that searches it. Their group runs in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ADDRESS, ROOT


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all versions, with the site of this clone in ``0.1``."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "scripts.site", "--output", str(folder), "--address", ADDRESS]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert built.stdout == f"{folder / '0.1'}\n"
    return folder
