"""``Popen`` of this package's programs without the start of an interpreter: forked by a process that has imported them.

What a new interpreter would do differently (its options, its encoding, what it has imported) is not what these
tests are about; those that are start one by ``subprocess``. The process is a child of the one that starts it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fork_server.py")
OWN = ("PYTHON", "LC_", "LANG")
"""Variables that a running interpreter does not obey any more."""
BEFORE = dict(os.environ)
"""In which the server starts: without what a test has set."""
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Popen(subprocess.Popen[Any]):
    """As ``subprocess.Popen``; ``[sys.executable, "-m", module, …]`` is forked where it can be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *more: Any) -> None:
        (close_fds, pass_fds, cwd, env, _info, _flags, shell) = more[:7]
        pipes = more[7:13]
        (_restore, gid, gids, uid, umask, new_session, group) = more[13:]
        plain = not (preexec_fn or executable or pass_fds or shell or gids) and gid is None and uid is None
        words = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
        environ = dict(os.environ if env is None else env)
        if not (plain and umask == -1 and group == -1 and close_fds and _can_fork(words, environ)):
            super()._execute_child(args, executable, preexec_fn, *more)  # type: ignore[misc]
            return
        descriptors = [0 if pipes[0] == -1 else pipes[0], 1 if pipes[3] == -1 else pipes[3]]
        descriptors.append(2 if pipes[5] == -1 else pipes[5])
        request = {
            "module": words[2],
            "arguments": words[3:],
            "folder": str(Path(cwd or ".").absolute()),
            "environ": environ,
            "new_session": bool(new_session),
        }
        try:
            self.pid = _server().start(request, descriptors)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """As ``subprocess.run``."""
    stdin, timeout, check = options.pop("input", None), options.pop("timeout", None), options.pop("check", False)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if stdin is not None:
        options["stdin"] = subprocess.PIPE
    process: subprocess.Popen[Any]
    with Popen(*arguments, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _can_fork(words: list[str], environ: dict[str, str]) -> bool:
    if sys.platform != "linux" or words[:2] != [sys.executable, "-m"] or len(words) < 3:
        return False
    return _own(environ) == _own(BEFORE)


def _own(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(OWN)}


class _Server:
    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen([sys.executable, str(SERVER)], stdin=theirs.fileno(), env=BEFORE)
        assert self._control.recv(16) == b"ready"
        atexit.register(self.close)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The id of a new child of this process."""
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            return int(self._control.recv(32))
        finally:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._control.close()
        self._process.wait(10)


_servers: dict[int, _Server] = {}


def _server() -> _Server:
    """One for each process of the test run."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _Server()
    return _servers[os.getpid()]
