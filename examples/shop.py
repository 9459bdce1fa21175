"""Tasks of a shop, declared with the decorator: retries, poison, a serial key, a follow-up in the same transaction.

python examples/shop.py                            # enqueue two orders and work on them here
stowhand worker examples.shop:app            # or let workers do it
"""

from __future__ import annotations

import asyncio

from stowhand import App, Context, Job, Retry, Snooze
from stowhand.errors import Poison

app = App()

STOCK = {"book": 3, "lamp": 0}
ATTEMPTS_UNTIL_THE_BANK_ANSWERS = 2


@app.task(timeout=30, max_attempts=5, serial="bank")
async def charge(ctx: Context, order: int, item: str, cents: int) -> str:
    """One payment at a time, because all of them have the serial key ``bank``."""
    if cents <= 0:
        raise Poison(f"order {order}: {cents} cents cannot be charged")  # no attempt will ever succeed
    if ctx.attempt < ATTEMPTS_UNTIL_THE_BANK_ANSWERS:
        raise Retry("the bank does not answer", delay=0.1)  # another error would wait 2.7 s, 7.4 s, 20 s, …
    ctx.enqueue_after(pack, order, item)  # is there if and only if this attempt is recorded
    return f"receipt {order}"


@app.task
async def pack(order: int, item: str) -> str:
    """Comes back in an hour while there is no stock; a snooze spends no attempt."""
    if STOCK[item] == 0:
        raise Snooze("1h")
    STOCK[item] -= 1
    return f"order {order}: one {item} on its way"


async def main() -> None:
    await app.open(install=True)
    orders = [
        await charge.enqueue(1, "book", 1250),
        await charge.enqueue(2, "lamp", 4900),
        await charge.enqueue(3, "book", 0),
    ]
    await app.worker(once=True, concurrency=2).run()
    while any(job.state == "errored" for job in [await _now(order.id) for order in orders]):
        await asyncio.sleep(0.2)
        await app.worker(once=True).run()

    for number in range(1, 6):
        job = await app.get(number)
        if job is not None:
            print(job.id, job.task, job.state, job.result or (job.last_error or "").partition("\n")[0])
    await app.close()


async def _now(job_id: int) -> Job:
    job = await app.get(job_id)
    assert job is not None
    return job


if __name__ == "__main__":
    asyncio.run(main())
