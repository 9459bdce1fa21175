"""A process that has imported what programs of ours import, and forks one for each request: a start in milliseconds.

Run as a program by `forked.py`, with one end of a socket pair as its standard input. A request is a JSON object and
three file descriptors; the answer is the process's id, as text.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PRELOADED = (
    *("stowhand.cli.program", "stowhand.cli.worker", "stowhand.cli.jobs", "stowhand.cli.options", "stowhand.app.app"),
    *("stowhand.service.run", "stowhand.service.supervisor", "stowhand.service.health", "stowhand.runner.running"),
    *("stowhand.stores.sqlite.queue.store", "stowhand.stores.postgres.queue.store", "stowhand.stores.table.store"),
    *("stowhand.stores.postgres.table.table", "stowhand.stores.sqlite.table.table", "stowhand.remote.client.store"),
    *("stowhand.observe.listener", "stowhand.observe.traces", "opentelemetry.sdk.trace.export", "stowhand.flows.flow"),
    *("psycopg", "psycopg_pool", "redis.asyncio", "httpx", "click"),
)
MOST = 1 << 20
HIGH = 256
"""No descriptor that a program is given has this number, or a higher one."""
FORKS_TOO = "FORKS_TOO"
"""Set in the environment of a program whose own children are to be forked as well."""
SERVES = "forks"
"""What a process is called that serves such a program: the program sees it among its children."""


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork until the other end is closed; returns, in a forked process alone, what that is to run."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    control.sendall(b"ready")
    while True:
        with suppress(KeyboardInterrupt):
            given, descriptors, _, _ = socket.recv_fds(control, MOST, 16)
            if not given:
                os._exit(0)
            if _forked(control):
                control.close()
                request: dict[str, Any] = json.loads(given)
                _wear(request, descriptors)
                return request
            for one in descriptors:
                os.close(one)


def _forked(control: socket.socket) -> bool:
    """True in the new process. Its parent ends at once, so that it becomes a child of the one that asked."""
    said, says = os.pipe()
    between = os.fork()
    if between:
        os.close(says)
        made = os.read(said, 32)
        os.close(said)
        os.waitpid(between, 0)
        control.sendall(made)  # only now: the one that asked takes over what has lost its parent while it waits
        return False
    mine = os.getpid()
    if made_id := os.fork():
        os.write(says, str(made_id).encode())
        os._exit(0)
    while os.getppid() == mine:
        os.sched_yield()
    return True


def _wear(request: dict[str, Any], descriptors: list[int]) -> None:
    """The folder, the environment and the streams of the request: as a new interpreter would find them."""
    Path("/proc/self/comm").write_text("python")
    if request["new_session"]:
        os.setsid()
    sys.executable = request["executable"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    apart = [fcntl.fcntl(one, fcntl.F_DUPFD, HIGH) for one in descriptors]
    os.closerange(3, HIGH)
    for place, descriptor in zip((0, 1, 2, *request["passed"]), apart, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = _stream(0, "rb", "strict")
    sys.stdout = _stream(1, "wb", "strict")
    sys.stderr = _stream(2, "wb", "backslashreplace", by_lines=True)
    sys.path[0] = request["folder"]
    sys.warnoptions.extend(request["warnings"])
    warnings._processoptions(request["warnings"])  # type: ignore[attr-defined]
    importlib.invalidate_caches()


def _served() -> socket.socket | None:
    """Copy this process before it runs anything: what it starts as Python is forked from the copy, and is its child.

    Gives the copy the end at which it serves, and the process itself nothing.
    """
    mine, theirs = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        Path("/proc/self/comm").write_text(SERVES)
        nothing = os.open(os.devnull, os.O_RDWR)
        for place in range(3):
            os.dup2(nothing, place)
        return theirs
    theirs.close()
    spec = importlib.util.spec_from_file_location("forked", Path(__file__).with_name("forked.py"))
    assert spec is not None
    assert spec.loader is not None
    forked = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(forked)
    forked.ask(mine)
    vars(subprocess)["Popen"] = forked.Popen
    return None


def _forks(wanted: dict[str, Any]) -> bool:
    """Whether it is to fork its children; the last one of all has none."""
    return FORKS_TOO in wanted["environ"] and not wanted["what"].endswith("quarantine_child")


def _stream(descriptor: int, mode: str, errors: str, *, by_lines: bool = False) -> io.TextIOWrapper:
    binary = os.fdopen(descriptor, mode, closefd=False)
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=by_lines or os.isatty(descriptor))


def _run_main(code: CodeType, name: str, file: str | None) -> None:
    """In a main module of its own, where what it defines can be looked up."""
    main = ModuleType("__main__")
    if file is not None:
        main.__file__ = file
    sys.modules["__main__"] = main
    sys.argv[0] = name
    exec(code, main.__dict__)


def _run(wanted: dict[str, Any]) -> None:
    what = wanted["what"]
    sys.argv = ["-m", *wanted["arguments"]]
    match wanted["kind"]:
        case "module":
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        case "script":
            sys.path[0] = str(Path(what).resolve().parent)
            _run_main(compile(Path(what).read_bytes(), what, "exec"), what, what)
        case "code":
            sys.path[0] = ""
            _run_main(compile(what, "<string>", "exec"), "-c", None)


def _end(code: object) -> None:
    """As an interpreter ends, but without taking everything apart: that costs more than all the rest."""
    if not isinstance(code, int | None):
        return
    with suppress(OSError):  # then the interpreter says so
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    order = serve(socket.socket(fileno=os.dup(0)))
    while _forks(order) and (control := _served()) is not None:
        order = serve(control)
    try:
        _run(order)
    except SystemExit as end:
        if order["quick"]:
            _end(end.code)
        raise
    if order["quick"]:
        _end(0)
