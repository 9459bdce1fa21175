"""The files that the demo works on, and their checksums. Knows nothing of jobs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

SKIPPED = frozenset({"__pycache__", "node_modules", "venv", "dist", "build"})
"""Folders of things that were made from other things; so is whatever begins with a dot."""


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file below ``folder`` that may be read, in a fixed order; no links, and no names that cannot be
    printed."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if str(path).isprintable() and path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path


def checksum_of(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
