"""examples/uploads from beginning to end: real files, a real kill, the command line."""

from __future__ import annotations

import re
import subprocess
import sys

import psycopg

from tests.docs.pages import ROOT, environment

UPLOADS = ROOT / "examples" / "uploads"


def test_uploads_are_indexed_once_although_a_worker_is_killed(postgres_url: str) -> None:
    folders = [ROOT / "src" / "stowhand" / name for name in ("cron", "observe", "service", "tasks")]
    done = subprocess.run(
        ["python", "-W", "error", UPLOADS / "run.py", *folders],
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
    failures = "SELECT folder FROM uploads_example.uploads WHERE num_failures > 0 AND folder NOT LIKE '%/broken'"
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(failures).fetchall() == [], "nothing but a syntax error is in the way"
    assert "WRONG" not in became, "each symbol is there once, as a direct walk finds them"
    assert [tuple(line.split()[:2]) for line in became.splitlines()] == [
        *((folder.name, "completed") for folder in folders),
        ("broken", "failed"),
        ("ctypes", "canceled"),
    ]
    assert "oops.py, line 1: invalid syntax" in became
    assert "fine.py: 1 symbols" in logs
    assert "oops.py, line 1: invalid syntax" in logs


def test_files_are_parsed_in_threads_and_a_missing_folder_is_an_error() -> None:
    parse = (
        "import gc, sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from symbols import python_files, read_symbols\n"
        "gc.set_threshold(200)\n"
        "gc.callbacks.append(lambda *_: time.sleep(0))  # a collection may let another thread go on, anywhere\n"
        "folder = sys.argv[1]\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(lambda file: read_symbols(file, folder), python_files(folder) * 3))\n"
        "print('parsed'); python_files('/no/such/folder')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", parse, ROOT / "src" / "stowhand" / "commands"],
        cwd=UPLOADS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "parsed\n", done.stderr
    assert done.stderr.endswith("NotADirectoryError: /no/such/folder is not a folder\n")
