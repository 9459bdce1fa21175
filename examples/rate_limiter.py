"""At most so many jobs of one flag in so many seconds: a rate limiter made of flags, and a function that forbids some.

A job counts itself with its first statement, before anything waits; the worker asks the function before each claim.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from stowhand import App, Context


class RateLimiter:
    """For one process: ``limits`` says how many may start in how many seconds, by flag."""

    def __init__(self, limits: dict[str, tuple[int, float]]) -> None:
        self._limits = limits
        self._starts = {flag: deque[float](maxlen=count) for flag, (count, _) in limits.items()}
        self.on_free: Callable[[], object] = lambda: None
        """Called when a flag is allowed again, so that nobody waits for a poll."""

    def count(self, flags: Iterable[str]) -> float:
        """A job with these flags starts now; when that is."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for flag in self._limits.keys() & set(flags):
            starts, (count, seconds) = self._starts[flag], self._limits[flag]
            starts.append(now)
            if len(starts) == count:
                loop.call_at(starts[0] + seconds + 0.001, self.on_free)
        return now

    def forbidden(self) -> list[str]:
        """Flags of which as many have started lately as may."""
        now = asyncio.get_running_loop().time()
        return [
            flag
            for flag, (count, seconds) in self._limits.items()
            if len(self._starts[flag]) == count and self._starts[flag][0] > now - seconds
        ]


WINDOW = 0.5
app = App("sqlite:///rate_limiter.db")
limiter = RateLimiter({"customer:1": (2, WINDOW)})
delivered: list[tuple[str, float]] = []
LAST = 7
done = asyncio.Event()


@app.task
async def deliver(ctx: Context, number: int) -> None:
    now = limiter.count(ctx.job.flags)
    delivered.append((ctx.job.flags[0] if ctx.job.flags else "no flag", now))
    if number == LAST and ctx.job.flags:
        done.set()


async def main() -> None:
    await app.open(install=True)
    for number in range(LAST + 1):
        await deliver.options(flags=["customer:1"]).enqueue(number)
        await deliver.enqueue(number)
    async with app.run_in_background(forbidden_flags=limiter.forbidden) as worker:
        limiter.on_free = worker.wake
        await done.wait()
    await app.close()

    limited = [moment for flag, moment in delivered if flag == "customer:1"]
    others = [moment for flag, moment in delivered if flag == "no flag"]
    most = max(sum(start <= moment < start + WINDOW for moment in limited) for start in limited)
    print(f"{len(limited)} for customer 1, never more than {most} in {WINDOW} s")
    print(f"{len(others)} others waited for none of them: {max(others) < limited[-1]}")


asyncio.run(main())
