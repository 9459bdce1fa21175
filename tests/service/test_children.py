"""Processes that a process keeps running: they are replaced, get their orders, and end within a bounded time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stowhand.service.children import Child, Children, NextStep, Slot
from stowhand.worker.host import Timings
from tests.conftest import Run

QUICK = Timings(same_signal_window=0.0, exit_timeout=0.3, kill_margin=0.1)
ECHO = "tests.service.echoing"
PATIENCE = 30


class Family:
    """Children that run the program ``echoing`` and are replaced a given number of times."""

    def __init__(self, *arguments: str, restarts: int = 0, count: int = 1) -> None:
        self.started: asyncio.Queue[Child] = asyncio.Queue()
        self.codes: list[int] = []
        self.children = Children(count, self._start, self._on_end, grace=0.0, timings=QUICK)
        self._arguments, self._restarts = arguments, restarts

    async def _start(self, slot: Slot) -> Child:
        child = await Child.start(ECHO, *self._arguments, order=b"hello", stdout=asyncio.subprocess.PIPE)
        self.started.put_nowait(child)
        return child

    async def _on_end(self, slot: Slot, code: int) -> NextStep:
        self.codes.append(code)
        return NextStep.RESTART if slot.restarts < self._restarts else NextStep.NONE


async def said(child: Child) -> str:
    assert child.process.stdout is not None
    return (await child.process.stdout.readline()).decode().strip()


def test_a_child_that_dies_is_replaced_and_the_pauses_grow(run: Run) -> None:
    async def scenario() -> None:
        family = Family("exit 7", restarts=2)
        await family.children.run()
        assert family.codes == [7, 7, 7]
        (slot,) = family.children.slots
        assert (slot.restarts, slot.quick_deaths, slot.is_done) == (2, 2, True)
        assert family.children.health(None) == [], "nobody misses it"

    run(scenario(), PATIENCE)


def test_children_receive_orders_even_if_they_start_later(run: Run) -> None:
    async def scenario() -> None:
        family = Family(restarts=1)
        running = asyncio.create_task(family.children.run())
        first = await family.started.get()
        assert await said(first) == "hello"
        family.children.order(b"quiet")
        assert await said(first) == "quiet"
        first.kill()
        second = await family.started.get()
        assert [await said(second), await said(second)] == ["hello", "quiet"]
        family.children.request_stop()
        assert await said(second) == "drain"
        await running
        assert family.codes == [-9, 0]
        assert not family.children.has_killed

    run(scenario(), PATIENCE)


@pytest.mark.parametrize("requests", [1, 3], ids=["when its time is over", "at the third request"])
def test_a_child_that_does_not_exit_is_killed_with_its_processes(run: Run, requests: int) -> None:
    async def scenario() -> None:
        family = Family("stay")
        running = asyncio.create_task(family.children.run())
        child = await family.started.get()
        assert await said(child) == "hello"
        grandchild = psutil.Process(int(await said(child)))
        for _ in range(requests):
            family.children.request_stop()
        await running
        grandchild.wait(PATIENCE)
        assert family.children.has_killed

    run(scenario(), PATIENCE)


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio\nfrom stowhand.service.children import Child\n"
        "async def main():\n"
        f"    child = await Child.start({ECHO!r})\n    print(child.pid, flush=True)\n    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(PATIENCE)
