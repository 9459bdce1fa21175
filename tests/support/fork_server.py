"""A process that has imported what programs of ours import, and forks one for each request: a start in milliseconds.

Run as a program by `subprocesses.py`, with one end of a socket pair as its standard input. A request is one byte with
file descriptors: of a file in memory with a JSON object, however long, and the program's. The answer is the process's
id as text, or what went wrong.
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
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PRELOADED = (
    *("stowhand.cli.program", "stowhand.cli.worker", "stowhand.cli.jobs", "stowhand.cli.options", "stowhand.app.app"),
    *("stowhand.service.run", "stowhand.service.supervisor", "stowhand.service.health", "stowhand.runner.runner"),
    *("stowhand.stores.sqlite.queue.store", "stowhand.stores.postgres.queue.store", "stowhand.stores.table.store"),
    *("stowhand.stores.postgres.table.table", "stowhand.stores.sqlite.table.table", "stowhand.observe.listener"),
    *("stowhand.flows.flow", "psycopg", "redis.asyncio", "click"),
)
COMMANDS = "django.core.management.commands"
WITH = {
    "httpx": ("stowhand.remote.client.store",),
    "psycopg_pool": ("psycopg_pool",),
    "opentelemetry": ("stowhand.observe.traces", "opentelemetry.sdk.trace.export"),
    "django": (
        *(f"{COMMANDS}.check", f"{COMMANDS}.makemigrations", f"{COMMANDS}.migrate", f"{COMMANDS}.runserver"),
        *(f"{COMMANDS}.shell", f"{COMMANDS}.test", "django.db.backends.sqlite3.base", "django.views.defaults"),
        *("django.db.backends.postgresql.base", "django.contrib.staticfiles.handlers", "django.middleware.csrf"),
        *("stowhand.django.project", "stowhand.django.testing", "stowhand.django.checks", "stowhand.django.apps"),
    ),
}
"""What is imported where this package is there: that of Django needs no settings for it."""
MOST = 64
"""Descriptors of a request."""
INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A new interpreter goes on ignoring what the process ignored that started it."""
HIGH = 256
"""No descriptor that a program is given has this number, or a higher one."""
FORKS_TOO = "FORKS_TOO"
"""Set in the environment of a program whose own children are to be forked as well."""
SERVES = "forks"
"""What a process is called that serves such a program: the program sees it among its children."""


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork until the other end is closed; returns, in a forked process alone, what that is to run."""
    there = [names for package, names in WITH.items() if importlib.util.find_spec(package)]
    for name in chain(PRELOADED, *there):
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # this one ends with the one that asks
    control.sendall(b"ready")
    while True:
        given, descriptors, _, _ = socket.recv_fds(control, 1, MOST)
        if not given:
            os._exit(0)
        try:
            request = _read(descriptors[0])
            here = _forked(control)
        except (OSError, ValueError, LookupError) as error:
            control.sendall(f"{type(error).__name__}: {error}".encode())
            request, here = {}, False
        if here:
            control.close()
            _wear(request, descriptors[1:])
            return request
        for one in descriptors:
            os.close(one)


def _read(order: int) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(os.pread(order, os.fstat(order).st_size, 0))
    Path(request["folder"]).stat()
    return request


def _forked(control: socket.socket) -> bool:
    """True in the new process. Its parent ends at once, so that it becomes a child of the one that asked."""
    said, says = os.pipe()
    between = os.fork()
    if between:
        os.close(says)
        instance = os.read(said, 1024)
        os.close(said)
        os.waitpid(between, 0)
        # Only now: the one that asked takes over what has lost its parent while it waits.
        control.sendall(instance or b"the process between has ended")
        return False
    mine = os.getpid()
    try:
        made_id = os.fork()
    except OSError as error:
        os.write(says, str(error).encode())
        os._exit(1)
    if made_id:
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
    for one in INHERITED:
        usual = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
        signal.signal(one, signal.SIG_IGN if one in request["ignored"] else usual)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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
    spec = importlib.util.spec_from_file_location("subprocesses", Path(__file__).with_name("subprocesses.py"))
    assert spec is not None
    assert spec.loader is not None
    subprocesses = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(subprocesses)
    subprocesses.ask(mine)
    vars(subprocess)["Popen"] = subprocesses.Popen
    return None


def _forks(request: dict[str, Any]) -> bool:
    """Whether it is to fork its children; the last one of all has none."""
    return FORKS_TOO in request["environ"] and not request["what"].endswith("quarantine_child")


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


def _run(request: dict[str, Any]) -> None:
    what = request["what"]
    sys.argv = ["-m", *request["arguments"]]
    match request["kind"]:
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
