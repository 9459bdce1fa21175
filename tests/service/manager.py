"""A service manager's end of the notify socket."""

from __future__ import annotations

import queue
import socket
import threading
import time


class Manager:
    """Listens as a service manager would."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._door.bind("\0" + address[1:] if address.startswith("@") else address)
        self._heard: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while output := self._door.recv(4096):
            self._heard.put(output.decode())

    def wait_for(self, word: str, seconds: float = 60.0) -> list[str]:
        """Everything up to the datagram that begins so, that one included."""
        heard: list[str] = []
        deadline = time.monotonic() + seconds
        while not (heard and heard[-1].startswith(word)):
            try:
                heard.append(self._heard.get(timeout=max(deadline - time.monotonic(), 0.01)))
            except queue.Empty:
                raise AssertionError(f"never heard {word}: {heard}") from None
        return heard

    def hear(self, seconds: float) -> list[str]:
        """Wait, and return all datagrams received so far."""
        time.sleep(seconds)
        heard = []
        while not self._heard.empty():
            heard.append(self._heard.get())
        return heard
