"""The source files of the project, parsed, for the tests of the house rules.

Files of tests that look at trees are of one group ("sources"): a process of a distributed run parses the package once.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stowhand"


@dataclass(frozen=True)
class Source:
    """One Python file. `name` is its path inside the package, `stores/sqlite/claim.py`."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """It is kept to the end of the run: garbage is not looked for in it, as in what pytest collects."""
        gc.disable()
        try:
            return ast.parse(self.text)
        finally:
            gc.freeze()
            gc.enable()

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Every imported module, absolute, with its line; `from a import b` counts as `a` and as `a.b`."""
        return list(self._imports())

    def _imports(self) -> Iterator[tuple[str, int]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield base, node.lineno
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call by its full name: after `from time import sleep as nap`, `nap(1)` is `time.sleep`."""
        known = self._names()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (dotted := _dotted(node.func)):
                head, _, rest = dotted.partition(".")
                yield f"{known.get(head, head)}{'.' if rest else ''}{rest}", node

    def _names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                # `import a.b` binds `a`; `import a.b as c` binds `c` to a.b.
                names |= {alias.asname or alias.name.split(".")[0]: _bound(alias) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                names |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
        return names

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        room = ("stowhand", *Path(self.name).parts[:-1])
        parts = room[: len(room) - node.level + 1]
        return ".".join((*parts, node.module) if node.module else parts)


@cache
def package_sources() -> list[Source]:
    """Every module of the package."""
    return [Source(path, path.relative_to(PACKAGE).as_posix()) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def sources_of_tests() -> list[Source]:
    """Every module of the tests, named by its path inside tests/."""
    folder = ROOT / "tests"
    return [Source(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.py"))]


def _bound(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.split(".")[0]


def _dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text; None for what is not a plain name, as `f().x`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := _dotted(node.value)):
        return f"{left}.{node.attr}"
    return None
