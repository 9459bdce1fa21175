"""A folder of tasks: ``tasks/hello.py`` is the task ``hello``, ``tasks/mail/send.py`` is ``mail/send``.

Python files are imported; any other file that may be executed is run as a program (executable.py).

The code in the folder runs with the worker's rights. Files outside the folder, and files that every user of the machine
may write to, are skipped. Skipped files are reported, which explains a missing task.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, Misuse
from stowhand.tasks.executable import define_executable
from stowhand.tasks.loader import describe_failure
from stowhand.tasks.registry import Registry, TaskDefinition, define

_TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MODULE_PREFIX = "stowhand_tasks_"
"""Prefix of the names of task modules."""
_loads = itertools.count(1)


class Folder(msgspec.Struct, frozen=True):
    """The tasks of a folder, and the files that were skipped."""

    root: Path
    tasks: tuple[TaskDefinition, ...]
    skipped_files: tuple[str, ...]
    """Files that are not tasks, each with the reason."""
    load: int
    """Number of the load in this process; part of the module names."""


def load_folder(root: str | Path, registry: Registry, *, may_be_empty: bool = False) -> Folder:
    """Register every task of a folder. Raises ConfigurationError for all broken files at once, or an empty folder."""
    folder = read_folder(root, may_be_empty=may_be_empty)
    for definition in folder.tasks:
        registry.add(definition)
    return folder


def read_folder(root: str | Path, *, may_be_empty: bool = False) -> Folder:
    """Import every file of a folder that is a task. Raises ConfigurationError."""
    folder = Path(root)
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder of tasks; create it, or name another with --tasks")
    folder = folder.resolve()
    skipped_files: list[str] = []
    if (reason := _make_importable(folder.parent)) is not None:
        skipped_files.append(reason)
    broken: list[str] = []
    tasks: dict[str, TaskDefinition] = {}
    load = next(_loads)
    for file in _files(folder, folder, skipped_files):
        name = file.relative_to(folder).with_suffix("").as_posix()
        try:
            if name in tasks:
                other = Path(tasks[name].file or "").name
                raise ConfigurationError(f"{other} is also the task {name!r}; rename one of them")
            tasks[name] = _read_file(name, file, load)
        except Misuse as error:
            broken.append(f"{file.relative_to(folder)}: {error}")
    if broken:
        forget(load)
        raise ConfigurationError("\n".join([f"{folder}: some tasks cannot be loaded", *broken, *skipped_files]))
    if not tasks and not may_be_empty:
        message = f"{folder}: no tasks in this folder; create one, such as hello.py with 'def hello(payload, helpers)'"
        raise ConfigurationError("\n".join([message, *skipped_files]))
    return Folder(folder, tuple(tasks.values()), tuple(skipped_files), load)


def _make_importable(folder: Path) -> str | None:
    """Let tasks import modules beside their folder, as Python does for a script. Return the reason if they may not."""
    if str(folder) in sys.path:
        return None
    if folder.stat().st_mode & stat.S_IWOTH:
        return f"{folder}: tasks cannot import from here, because every user of this machine may write to it"
    sys.path.insert(0, str(folder))
    return None


def forget(load: int) -> None:
    """Drop the modules of one load from ``sys.modules``. Running tasks continue."""
    for name in [name for name in sys.modules if name.startswith(f"{MODULE_PREFIX}{load}.")]:
        del sys.modules[name]


def _files(root: Path, folder: Path, skipped_files: list[str]) -> Iterator[Path]:
    """Yield the files below ``folder`` that are tasks, ordered by name."""
    if reason := _unsafe_reason(root, folder):
        skipped_files.append(f"{_display_path(root, folder)}: skipped: {reason}")
        return
    for path in sorted(folder.iterdir()):
        # Names that begin with _ or . are for shared code, caches and editors.
        if path.name.startswith(("_", ".")):
            continue
        reason = _unsafe_reason(root, path) or _unsuitable_reason(path)
        if reason is not None:
            skipped_files.append(f"{_display_path(root, path)}: skipped: {reason}")
        elif path.is_dir():
            yield from _files(root, path, skipped_files)
        else:
            yield path


def _unsafe_reason(root: Path, path: Path) -> str | None:
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError):
        return "a broken link"
    if not real.is_relative_to(root):
        return f"a link to a file outside the folder, {real}"
    if mode & stat.S_IWOTH:
        return "every user of this machine may write to it; to make it a task, run chmod o-w"
    return None


def _unsuitable_reason(path: Path) -> str | None:
    if path.is_dir():
        if path.is_symlink():
            return "a link to a folder"
        name = path.name
    elif not path.is_file() or not (path.suffix == ".py" or os.access(path, os.X_OK)):
        return "neither a Python file nor executable; to make it a task, run chmod +x"
    else:
        name = path.stem
    if _TASK_NAME.fullmatch(name) is None:
        return f"{name!r} is not a task name; use letters, digits, _ and -, a letter first"
    return None


def _read_file(task: str, file: Path, load: int) -> TaskDefinition:
    if file.suffix != ".py":
        return define_executable(file, task)
    # A new name per load: it cannot clash with an installed module, and a reload gets the new code.
    module = _import(file, f"{MODULE_PREFIX}{load}.{task.replace('/', '.')}")
    definition = define(_function_of(module, file), task, {}, positional=True)
    return msgspec.structs.replace(definition, file=str(file))


class _SourceLoader(SourceFileLoader):
    """Loader without bytecode: Python would use stale bytecode in the second after the file has changed."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _function_of(module: ModuleType, file: Path) -> Callable[..., Any]:
    names = (file.stem.replace("-", "_"), "task", "main")
    for name in names:
        function = getattr(module, name, None)
        if callable(function):
            return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"it has no function named {' or '.join(dict.fromkeys(names))}")


def _import(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    if spec is None or spec.loader is None:
        raise ConfigurationError("cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look up their module in sys.modules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # boundary: a task file may raise anything, which is reported with other errors
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ConfigurationError(describe_failure(error, Path.cwd())) from error
    return module


def _display_path(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path != root else str(root)
