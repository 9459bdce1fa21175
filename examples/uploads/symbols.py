"""What a Python file defines. Nothing here knows of jobs."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PARSING = threading.Lock()  # two threads in the parser confuse each other in Python 3.11 (SystemError)


class Symbol(NamedTuple):
    kind: str
    name: str
    file: str
    line: int


def python_files(folder: str) -> list[Path]:
    """In the same order everywhere. Raises NotADirectoryError."""
    if not Path(folder).is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    return sorted(path for path in Path(folder).rglob("*.py") if path.is_file())


def read_symbols(file: Path, folder: str) -> list[Symbol]:
    """Raises SyntaxError, UnicodeDecodeError."""
    with _PARSING:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    return list(_walk(tree, "", str(file.relative_to(folder))))


def _walk(node: ast.AST, prefix: str, file: str) -> Iterator[Symbol]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kind = "class" if isinstance(child, ast.ClassDef) else "function"
            yield Symbol(kind, prefix + child.name, file, child.lineno)
            yield from _walk(child, f"{prefix}{child.name}.", file)
        else:
            yield from _walk(child, prefix, file)
