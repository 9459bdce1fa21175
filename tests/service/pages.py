"""What a worker shows over HTTP, asked as a probe would."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.service.processes import Workers


class Pages:
    """Of one worker that was started with ``--http 0``: it says itself where."""

    def __init__(self, workers: Workers, number: int = 0) -> None:
        workers.wait_for("/readyz", number)
        found = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", workers.said(number))
        assert found is not None
        self.port = int(found[1])

    def ask(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> tuple[int, Any]:
        """Status and what was said."""
        status, body = self.ask(path)
        return status, msgspec.json.decode(body)

    def metrics(self) -> dict[str, float]:
        """By name and labels, as they are written."""
        status, body = self.ask("/metrics")
        assert status == 200
        return samples(body)

    def wait(self, reached: Callable[[Pages], bool], seconds: float = 60.0) -> None:
        """Until it shows that."""
        deadline = time.monotonic() + seconds
        while not reached(self):
            assert time.monotonic() < deadline, (self.ask("/healthz"), self.ask("/readyz"))
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        self.wait(lambda pages: pages.ask("/readyz")[0] == 200)


def samples(text: bytes) -> dict[str, float]:
    """``stowhand_worker_in_flight{kind="a"}`` -> 1.0"""
    found = {}
    for line in text.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found
