"""``Popen`` of this package's programs without the start of an interpreter: forked by a process that has imported them.

What a new interpreter would do differently (its options, its encoding, what it has imported) is not what these
tests are about; those that are start one by ``subprocess``. The process is a child of the one that starts it.
``programs`` is for what shells and programs start.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import marshal
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fork_server.py")
CLIENT = Path(__file__).with_name("fork_client.py")
PYTHON = sys.executable
STOWHAND = str(Path(sys.executable).with_name("stowhand"))
MANAGE = "manage.py"
"""Of a project of Django's."""
OWN = ("PYTHON", "LC_", "LANG")
"""Variables that a running interpreter does not obey any more."""
ALIKE = {"C", "POSIX", "C.UTF-8"}
"""Locales in which an interpreter writes UTF-8, as the forked one does."""
BEFORE = dict(os.environ)
"""In which the server starts: without what a test has set."""
INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""As in `fork_server.py`: those that a program may be started to ignore."""
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Popen(subprocess.Popen[Any]):
    """As ``subprocess.Popen``; ``[sys.executable, "-m", module, …]`` and scripts are forked where they can be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *more: Any) -> None:
        (close_fds, pass_fds, cwd, env, _info, _flags, shell) = more[:7]
        pipes = more[7:13]
        (_restore, gid, gids, uid, umask, new_session, group) = more[13:]
        plain = not (preexec_fn or executable or shell or gids) and gid is None and uid is None
        words = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
        environ = dict(os.environ if env is None else env)
        plain = plain and umask == -1 and group == -1 and close_fds and Path(cwd or ".").is_dir()
        if not (plain and _can_fork(words, environ)):
            super()._execute_child(args, executable, preexec_fn, *more)  # type: ignore[misc]
            return
        descriptors = [0 if pipes[0] == -1 else pipes[0], 1 if pipes[3] == -1 else pipes[3]]
        descriptors += [2 if pipes[5] == -1 else pipes[5], *pass_fds]
        try:
            ignored = [int(one) for one in INHERITED if signal.getsignal(one) is signal.SIG_IGN]
            request = _request(words, Path(cwd or ".").absolute(), environ, ignored)
            self.pid = _server().start(request | {"new_session": bool(new_session), "passed": pass_fds}, descriptors)
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


@cache
def programs() -> str:
    """A folder for PATH: ``stowhand`` and ``python``, forked where they can be.

    Each is a small process that passes its signals on, and ends as the forked one does; killed, it takes that along.
    What these start by ``sys.executable`` is forked too.
    """
    folder = tempfile.TemporaryDirectory(prefix="stowhand-programs-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    python, client = str(Path(folder.name, "python")), ""
    if sys.platform == "linux":
        address = f"stowhand-tests-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{address}")
        listener.listen(64)
        client = shlex.join([PYTHON, "-IS", str(CLIENT), address])
        threading.Thread(target=_attend, args=(listener, python), name="forked programs", daemon=True).start()
    for name, program in {"stowhand": STOWHAND, "python": PYTHON, "python3": PYTHON}.items():
        script = Path(folder.name, name)
        script.write_text(f'#!/bin/sh\nexec {client} {shlex.quote(program)} "$@"\n')
        script.chmod(0o755)
    return folder.name


def _attend(listener: socket.socket, python: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_attend_one, args=(client, python), name="forked program", daemon=True).start()


def _attend_one(client: socket.socket, python: str) -> None:
    """What `fork_client.py` asks for, until the program has ended or the client is gone."""
    with client:
        _, descriptors, _, _ = socket.recv_fds(client, 1, 4)
        try:
            with os.fdopen(descriptors.pop(0), "rb") as order:
                order.seek(0)
                words, folder, environ, ignored = marshal.load(order)
            if not _can_fork(words, environ):
                client.send(b"start it")
                return
            pid = _server().start(_request(words, Path(folder), environ, ignored) | {"executable": python}, descriptors)
        finally:
            for one in descriptors:
                os.close(one)
        code = _follow(pid, client)
        with suppress(OSError):
            client.send(str(code).encode())


def _follow(pid: int, client: socket.socket) -> int:
    """Pass signals on to a child of this process until it ends; kill it when the client is gone. Its exit code."""
    ended = os.pidfd_open(pid)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(client, select.POLLIN)
    try:
        while ended not in (readable := [place for place, _ in waiting.poll()]):
            number = client.recv(16) if readable else b""
            os.kill(pid, int(number or signal.SIGKILL))
            if not number:
                waiting.unregister(client)
    finally:
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _can_fork(words: list[str], environ: Mapping[str, str]) -> bool:
    return sys.platform == "linux" and _own(environ) == _own(BEFORE) and _wanted(words) is not None


def _request(words: list[str], folder: Path, environ: dict[str, str], ignored: list[int]) -> dict[str, Any]:
    """What the server is to do."""
    wanted = _wanted(words)
    assert wanted is not None
    common = {"folder": str(folder), "environ": environ, "ignored": ignored, "executable": PYTHON}
    return wanted | common | {"new_session": False, "passed": ()}


def _wanted(words: list[str]) -> dict[str, Any] | None:
    """What a command line runs: a module, a script or code, with which arguments; None: nothing that can be forked."""
    match words:
        case [program, *rest] if program == STOWHAND:
            kind, warnings, arguments = "script", [], [program, *rest]
        case [python, "-W", rule, *rest] if python == PYTHON:
            kind, warnings, arguments = "", [rule], rest
        case [python, *rest] if python == PYTHON:
            kind, warnings, arguments = "", [], rest
        case _:
            return None
    match kind, arguments:
        case "script", _:
            pass
        case _, ["-m" | "-c" as option, _, *_]:
            kind, arguments = "module" if option == "-m" else "code", arguments[1:]
        case _, [script, *_] if script.endswith(".py"):
            kind = "script"
        case _:
            return None
    what = arguments[0]
    quick = what in (STOWHAND, MANAGE) or (kind == "module" and what.startswith(("stowhand", "django")))
    return {"kind": kind, "what": what, "arguments": arguments[1:], "warnings": warnings, "quick": quick}


def _own(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(OWN) and value not in ALIKE}


class _Server:
    def __init__(self, control: socket.socket | None = None) -> None:
        """``control``: of one that runs; ``None``: start one."""
        self._one_at_a_time = threading.Lock()
        self._process: subprocess.Popen[Any] | None = None
        if control is None:
            control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen([PYTHON, str(SERVER)], stdin=theirs.fileno(), env=BEFORE)
        self._control = control
        assert self._control.recv(16) == b"ready"
        atexit.register(self.close)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The id of a new child of this process."""
        with self._one_at_a_time, os.fdopen(os.memfd_create("request"), "wb") as order:
            order.write(json.dumps(request).encode())
            order.flush()
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._control, [b"!"], [order.fileno(), *descriptors])
                answer = self._control.recv(1024)
                if not answer.isdigit():
                    raise ChildProcessError(answer.decode() or "the fork server has ended")
                return int(answer)
            finally:
                _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._control.close()
        if self._process is not None:
            self._process.wait(10)


_servers: dict[int, _Server] = {}
_making = threading.Lock()


def ask(control: socket.socket) -> None:
    """Let the server at the other end fork what this process starts."""
    _servers[os.getpid()] = _Server(control)


def _server() -> _Server:
    """One for each process of the test run."""
    with _making:
        if os.getpid() not in _servers:
            _servers[os.getpid()] = _Server()
        return _servers[os.getpid()]
