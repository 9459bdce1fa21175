"""Pages of health and metrics of a worker process, requested over HTTP as a probe does."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.service.processes import Workers


class Pages:
    """Pages of one worker that was started with ``--http 0``. Its log contains the port."""

    def __init__(self, workers: Workers, number: int = 0) -> None:
        workers.wait_for("/readyz", number)
        self._workers, self._number = workers, number
        port_match = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", workers.output(number))
        assert port_match is not None
        self.port = int(port_match[1])

    def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Return status and body. A connection error shows what the worker has logged: it may have exited."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionError as error:
            error.add_note(f"{path}: the worker has logged:\n{self._workers.output(self._number)}")
            raise
        finally:
            connection.close()

    def json(self, path: str) -> tuple[int, Any]:
        """Return status and decoded body."""
        status, body = self.get(path)
        return status, msgspec.json.decode(body)

    def metrics(self) -> dict[str, float]:
        """Return the value of each metric by name and labels."""
        status, body = self.get("/metrics")
        assert status == 200
        return samples(body)

    def wait(self, condition: Callable[[Pages], bool], seconds: float = 60.0) -> None:
        """Wait until the condition is true."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < deadline, (self.get("/healthz"), self.get("/readyz"))
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        self.wait(lambda pages: pages.get("/readyz")[0] == 200)


def samples(text: bytes) -> dict[str, float]:
    """``stowhand_worker_in_flight{kind="a"}`` -> 1.0"""
    values = {}
    for line in text.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values
