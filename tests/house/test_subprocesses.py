"""Programs that are forked by a running interpreter begin as those of a new one do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import subprocesses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux")

LONG = {f"LONG_{number}": "x" * 120_000 for number in range(3)}
"""More than a socket takes at once."""
SHOW_LENGTHS = "import os, sys; print('httpx' in sys.modules, *(len(os.environ[f'LONG_{n}']) for n in range(3)))"
LENGTHS = "True 120000 120000 120000\n"
SHOW_IGNORED = "import signal as s; print(*(s.getsignal(n) is s.SIG_IGN for n in (s.SIGHUP, s.SIGINT, s.SIGTERM)))"


def test_an_environment_may_be_large() -> None:
    for _ in range(2):
        assert output(SHOW_LENGTHS, env=dict(os.environ) | LONG) == LENGTHS


def test_an_environment_of_a_shells_child_may_be_large() -> None:
    assert by_shell(SHOW_LENGTHS, "", LONG) == LENGTHS


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_ignored_signals_stay_ignored(ignored: signal.Signals) -> None:
    known = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, signal.SIG_DFL) for one in known}
    try:
        signal.signal(ignored, signal.SIG_IGN)
        assert output(SHOW_IGNORED).split() == [str(one == ignored) for one in known]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_signals_ignored_by_a_shell_stay_ignored() -> None:
    assert by_shell(SHOW_IGNORED, "trap '' HUP INT TERM", {}) == "True True True\n"


def test_a_missing_folder_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        output("", cwd=tmp_path / "missing")


def test_a_failed_request_gets_its_error() -> None:
    for request, error in (({"folder": "/missing"}, "FileNotFoundError"), ({}, "KeyError")):
        with pytest.raises(ChildProcessError, match=error):
            subprocesses._server().start(request, [0, 1, 2])
    assert output("print(1)") == "1\n"


def output(code: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a forked program prints."""
    command = [sys.executable, "-c", code]
    shown: str = subprocesses.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return shown


def by_shell(code: str, before: str, more: dict[str, str]) -> str:
    """The same of one that a shell starts after `before`."""
    path = f"{subprocesses.programs()}:{os.environ['PATH']}"
    command = ["sh", "-c", f'{before}\nexec python -c "$1"', "sh", code]
    env = dict(os.environ) | {"PATH": path} | more
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
