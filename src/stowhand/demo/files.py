"""What the demo finds out about a file, and which files it looks at. Knows nothing of jobs."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "dist", "build"})
"""Folders of things that were made from other things; so is whatever begins with a dot."""


class Description(msgspec.Struct, frozen=True):
    """One file."""

    path: str
    digest: str
    """SHA-256, in hexadecimal."""
    kind: str
    size: int
    lines: int
    longest: int
    """Bytes of its longest line."""


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file below ``folder``, links not followed, in a fixed order."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not path.is_symlink():
                yield path


def describe(path: Path) -> Description:
    """Read it once, a line at a time."""
    digest = hashlib.sha256()
    size = lines = longest = 0
    binary = False
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            size += len(line)
            lines += 1
            longest = max(longest, len(line.rstrip(b"\r\n")))
            binary = binary or b"\0" in line
    return Description(str(path), digest.hexdigest(), kind_of(path, binary), size, lines, longest)


def kind_of(path: Path, binary: bool) -> str:
    """``python``, ``sql``, ``plain text``, ``image/png`` …: what a person would call it."""
    if binary:
        return mimetypes.guess_type(path.name)[0] or "binary"
    known = {".py": "python", ".sql": "sql", ".md": "markdown", ".toml": "toml", ".sh": "shell", ".txt": "plain text"}
    return known.get(path.suffix, path.suffix.lstrip(".") or "plain text")
