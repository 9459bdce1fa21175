"""Job that records only its start time."""

from __future__ import annotations

from benchmarks.probe import own_probe
from stowhand.app.app import App

app = App()


@app.task(name="noop")
async def noop(number: int = 0, sent: float = 0.0) -> None:  # noqa: ARG001  a payload of the usual size
    """``sent``: when it was about to be enqueued, by the monotonic clock; 0: not measured."""
    own_probe().hit(sent)
