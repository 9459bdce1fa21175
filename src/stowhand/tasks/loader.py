"""Import of ``module:name`` from a command line, with errors that suggest a correction."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from stowhand.errors import ConfigurationError, a_type, hint

T = TypeVar("T")


def load_object(where: str, kind: type[T], *, default: str = "app", or_else: str | None = None) -> T:
    """Import ``module:name``. The current folder comes first on the import path.

    ``module`` alone means its attribute ``default``, or ``or_else`` if that is absent. Raises ConfigurationError, whose
    cause is the error that the import of a module raised.
    """
    module_name, _, path = where.partition(":")
    path = path or default
    if module_name.endswith(".py") or "/" in module_name:
        name = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise ConfigurationError(f"{where!r}: use a module, not a file; did you mean '{name}:{path}'?")
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        if module_name and path.endswith(")"):
            raise ConfigurationError(
                f"{where!r}: a call is not allowed; write app = {path} in {module_name}, and use {module_name}:app"
            )
        raise ConfigurationError(f"{where!r}: write it as module:name, as in myproject.jobs:app")
    value: object = _import(module_name, where, names_attribute=True)
    if or_else is not None and path == default and not hasattr(value, path):
        path = or_else
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise ConfigurationError(
                f"{where!r}: {module_name} has no {name!r}{_suggestion(value, name, kind)}"
            ) from None
    if not isinstance(value, kind):
        suggestion = _suggestion(sys.modules[module_name], path, kind)
        raise ConfigurationError(f"{where!r}: {a_type(value)}, not {kind.__qualname__}{suggestion}")
    return value


def read_modules(modules: Iterable[str], option: str = "include") -> tuple[str, ...]:
    """Check names of modules; ``package.*`` means all modules of a package. Raises ConfigurationError."""
    value: object = modules
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{option}: got {a_type(value)}; use a list: ['shop.tasks']")
    names: tuple[object, ...] = tuple(value)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.removesuffix(".*").split(".")):
            raise ConfigurationError(f"{option}: {name!r}; write a module as in 'shop.mail', or 'shop.tasks.*'")
    return tuple(str(name) for name in names)


def import_modules(names: Iterable[str]) -> None:
    """Import the modules; those of a package ordered by name. Raises ConfigurationError."""
    for name in names:
        module = _import(name.removesuffix(".*"), name)
        if name.endswith(".*"):
            for submodule in _submodules(module, name):
                _import(submodule, name)


def _submodules(package: ModuleType, where: str) -> list[str]:
    """Return the modules of a package and of its packages, except those whose names begin with ``_``."""
    if not hasattr(package, "__path__"):
        raise ConfigurationError(f"{where!r}: {package.__name__} is not a package; leave out the .*")
    names: list[str] = []
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        if module.name.startswith("_"):
            continue
        name = f"{package.__name__}.{module.name}"
        names.append(name)
        if module.ispkg:
            names += _submodules(_import(name, where), where)
    return names


def _import(name: str, where: str, *, names_attribute: bool = False) -> ModuleType:
    """Import a module. ``names_attribute``: the name is followed by an attribute, which may be written with a dot."""
    current_folder = os.getcwd()  # noqa: PTH109
    if current_folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, current_folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Suggest a spelling only if the module itself is missing, not one that it imports.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            near = _module_suggestion(error.name, current_folder, names_attribute=names_attribute)
            raise ConfigurationError(f"{where!r}: no module named {error.name!r}{near}") from None
        raise ConfigurationError(
            f"{where!r}: importing {name} failed: {error}{_location(error, current_folder)}"
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{where!r}: {error}{_location(error, current_folder)}") from error
    except Exception as error:  # boundary: the application's code, which may fail in any way
        failure = describe_failure(error, Path(current_folder))
        raise ConfigurationError(f"{where!r}: importing {name} failed: {failure}") from error


def describe_failure(error: BaseException, folder: Path) -> str:
    """Return ``ValueError: no (shop/mail.py, line 3)`` for an error that importing a file of this folder raised."""
    message = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}: {message}{_location(error, str(folder))}"


def _location(error: BaseException, folder: str) -> str:
    """Return file and line of the error: the last frame in this folder, or else the last one outside this package."""
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        skipped_prefixes = ("<frozen ", str(Path(__file__).parents[1]) + os.sep, importlib.__file__)
        all_frames = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in all_frames if not frame.filename.startswith(skipped_prefixes)]
        last = ([frame for frame in frames if _is_below(frame.filename, folder)] or frames)[-1:]
        file, line = (last[0].filename, last[0].lineno) if last else (None, None)
    return "" if file is None else f" ({file.removeprefix(folder + os.sep)}, line {line})"


def _is_below(file: str, folder: str) -> bool:
    """Return whether a file is below the folder and not in an environment that is kept there."""
    return file.startswith(folder + os.sep) and f"{os.sep}site-packages{os.sep}" not in file


def _suggestion(holder: object, name: str, kind: type) -> str:
    candidates = (
        sorted(key for key, value in vars(holder).items() if isinstance(value, kind))
        if hasattr(holder, "__dict__")
        else []
    )
    if candidates:
        return hint(name, candidates, 0.5) or f"; did you mean {candidates[0]!r}?"
    return f"; it has no {kind.__qualname__}"


def _module_suggestion(name: str, folder: str, *, names_attribute: bool) -> str:
    parent, _, last = name.rpartition(".")
    parent_module = sys.modules.get(parent)
    is_package = hasattr(parent_module, "__path__")
    if names_attribute and not is_package and hasattr(parent_module, last) and not last.startswith("__"):
        return f"; did you mean '{parent}:{last}'?"
    if parent_module is not None and is_package:
        names = [module.name for module in pkgutil.iter_modules(parent_module.__path__)]
        suggestion = hint(last, names).replace("'", f"'{parent}.", 1)
    else:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        names = [entry.name.removesuffix(".py") for entry in entries if entry.is_dir() or entry.name.endswith(".py")]
        suggestion = hint(name, names)
    return suggestion or f" in {folder} or among the installed packages"
