"""What the demo finds out about a file, and which files it looks at. Knows nothing of jobs."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "dist", "build"})
"""Folders of things that were made from other things; so is whatever begins with a dot."""

_UNKEEPABLE = re.compile("[%\udc80-\udcff]")
"""Bytes of a name that are not Unicode (Python writes them as lone surrogates), and the mark shown instead."""
_KEPT = re.compile("%([0-9A-F]{2})")


class Description(msgspec.Struct, frozen=True):
    """One file."""

    path: str
    """As ``name_of`` writes it."""
    digest: str
    """SHA-256, in hexadecimal."""
    kind: str
    size: int
    lines: int
    longest: int
    """Bytes of its longest line."""


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file below ``folder`` that may be read, links not followed, in a fixed order."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path


def name_of(path: Path) -> str:
    """A path as text that any store can keep: a name need not be Unicode. ``path_of`` is its inverse."""
    return _UNKEEPABLE.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", str(path))


def path_of(name: str) -> Path:
    """The path that ``name_of`` wrote."""
    return Path(_KEPT.sub(lambda found: "%" if found[1] == "25" else chr(0xDC00 + int(found[1], 16)), name))


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
    return Description(name_of(path), digest.hexdigest(), kind_of(path, binary), size, lines, longest)


def kind_of(path: Path, binary: bool) -> str:
    """``python``, ``sql``, ``plain text``, ``image/png`` …: what a person would call it."""
    if binary:
        return mimetypes.guess_type(path.name)[0] or "binary"
    known = {".py": "python", ".sql": "sql", ".md": "markdown", ".toml": "toml", ".sh": "shell", ".txt": "plain text"}
    return known.get(path.suffix, name_of(Path(path.suffix.lstrip("."))) if path.suffix.strip(".") else "plain text")
