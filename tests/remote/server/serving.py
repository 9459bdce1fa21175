"""Process of ``stowhand serve``, which a test may kill and start again on the same port."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support import subprocesses
from tests.support.valkey import free_port

TIMEOUT_SECONDS = 60.0


class Serving:
    """Context manager of the process."""

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
        """Start the process, and wait until it answers."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STOWHAND_") and name != "DATABASE_URL"
        }
        command = [sys.executable, "-m", "stowhand.cli", "serve", "-c", self._store_url, "--port", str(self._port)]
        with (self._folder / "serve.log").open("ab") as log:
            self._process = subprocesses.Popen(
                [*command, "--tokens", str(self._tokens)], stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill the process, and start it again."""
        self.kill()
        self.start()

    def output(self) -> str:
        """Return the output of the process."""
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
