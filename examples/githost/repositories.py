"""Make repositories: a bare one on disk, with the hook, and its row.

DATABASE_URL=postgresql:///githost python examples/githost/repositories.py FOLDER NAME …
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

HOOK = Path(__file__).resolve().with_name("hook.py")


def add(connection: psycopg.Connection[Any], folder: Path, name: str) -> Path:
    """The bare repository ``folder/name.git``. Raises ValueError, psycopg.Error, CalledProcessError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"{name!r} is not a name for a repository: letters, digits, - and _")
    path = folder.resolve() / f"{name}.git"
    with connection.transaction():
        row = connection.execute(
            "INSERT INTO githost.repositories (name, path) VALUES (%s, %s) RETURNING id", [name, str(path)]
        ).fetchone()
        assert row is not None
        # --template= : no sample hooks.
        init = ["git", "init", "--quiet", "--bare", "--template=", "--object-format=sha1", "--initial-branch=main"]
        subprocess.run([*init, str(path)], check=True)
        install_hook(path, row[0])
    return path


def install_hook(path: Path, repository: int) -> None:
    """A hook is a program; this one starts hook.py with the interpreter that has the host's packages."""
    hook = path / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, str(HOOK), str(repository)])}\n")
    hook.chmod(0o755)


if __name__ == "__main__":
    with psycopg.connect(os.environ.get("DATABASE_URL", "postgresql:///githost"), autocommit=True) as database:
        for wanted in sys.argv[2:]:
            print(add(database, Path(sys.argv[1]), wanted))
