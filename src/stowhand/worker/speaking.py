"""Whoever is given no events says what happens in the log; who is given some, even without listeners, is silent."""

from __future__ import annotations

from importlib import import_module

from stowhand.events import Events, WorkerStarted


def speak(events: Events) -> None:
    """Lines for what happens, unless somebody listens already. To stderr, where the program has not said where to."""
    if not events.wants(WorkerStarted):
        # By name: what formats lines stands above the core, which knows nothing of it.
        import_module("stowhand.observe.logs").configure_if_nobody_has()
        import_module("stowhand.observe.listener").LogListener(events)
