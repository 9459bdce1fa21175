"""``stowhand serve`` in a process of its own, which a test may kill and start again on the same port."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support import forked
from tests.support.valkey import free_port

PATIENCE = 60.0


class Serving:
    """Use it as a context manager."""

    def __init__(self, store_url: str, folder: Path, tokens: Path) -> None:
        self._store_url, self._folder, self._tokens = store_url, folder, tokens
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Serving:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> None:
        """Until it answers."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STOWHAND_") and name != "DATABASE_URL"
        }
        command = [sys.executable, "-m", "stowhand.cli", "serve", "-c", self._store_url, "--port", str(self._port)]
        with (self._folder / "serve.log").open("ab") as log:
            self._process = forked.Popen(
                [*command, "--tokens", str(self._tokens)], stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Killed, and there again."""
        self.kill()
        self.start()

    def said(self) -> str:
        """Everything it has written."""
        return (self._folder / "serve.log").read_text(errors="replace")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
