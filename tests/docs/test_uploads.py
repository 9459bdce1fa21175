"""examples/uploads from beginning to end: real files, a real kill, the command line."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.pages import ROOT, environment

UPLOADS = ROOT / "examples" / "uploads"


def test_uploads_are_indexed_once_though_a_worker_is_killed(postgres_url: str) -> None:
    folders = [ROOT / "src" / "stowhand" / name for name in ("cron", "observe", "service", "tasks")]
    done = subprocess.run(
        [sys.executable, "-W", "error", UPLOADS / "run.py", *folders],
        env=environment() | {"DATABASE_URL": postgres_url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    dies, others, became, logs = re.split(r"^== .*\n", done.stdout, flags=re.MULTILINE)[2:]
    held, symbols = map(int, re.findall(r"\d+", dies))
    assert 1 <= held <= 4
    assert symbols == 0, "what the dead worker had inserted was never seen"
    peak, budget, taken_back = map(int, re.findall(r"\d+", others))
    assert 0 < peak <= budget == 1_000_000
    assert taken_back == held
    assert "WRONG" not in became, "each symbol is there once, as a direct walk finds them"
    assert [tuple(line.split()[:2]) for line in became.splitlines()] == [
        *((folder.name, "completed") for folder in folders),
        ("broken", "failed"),
        ("ctypes", "canceled"),
    ]
    assert "oops.py, line 1: invalid syntax" in became
    assert "fine.py: 1 symbols" in logs
    assert "oops.py, line 1: invalid syntax" in logs
