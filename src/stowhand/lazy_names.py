"""Names of a package that are loaded from their modules when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, modules: Mapping[str, str], on_unknown_name: Callable[[str], None] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: ``__name__`` of the package.
        modules: names by their module below ``stowhand``, separated by spaces.
        on_unknown_name: called with an unknown name; may raise an error with a hint.

    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    public = sys.modules[package]

    def load(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            if on_unknown_name is not None:
                on_unknown_name(name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"stowhand.{module}"), name)
        setattr(public, name, value)
        return value

    return load, lambda: list(public.__all__)
