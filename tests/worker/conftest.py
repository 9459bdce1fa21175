"""A coroutine is a test here: it runs in a loop of its own, and must end soon."""

from __future__ import annotations

import asyncio
import inspect

import pytest

DEADLINE = 90.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def story() -> None:
        async with asyncio.timeout(DEADLINE):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(story())
    return True
