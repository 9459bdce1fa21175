"""Ways to enqueue from asynchronous code. Run it anywhere: jobs are kept in the file stowhand.db."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stowhand import App, Context

app = App()


@dataclass
class Address:
    street: str
    town: str


@app.task
async def send_letter(to: Address, text: str, *, copies: int = 1) -> str:
    return f"{copies} x {text!r} to {to.town}"


@app.task(serial="reports", timeout=timedelta(minutes=5))
def write_report(context: Context, day: str) -> None:
    """A plain function runs in a thread. The context is given by the worker and is not an argument of the job."""
    context.log(f"writing the report for {day}, attempt {context.attempt}")
    context.enqueue_after(send_letter, Address("Main SharedServer", "Springfield"), f"Report for {day}")


async def main() -> None:
    home = Address("Hill Road", "Oxford")
    await app.open(install=True)
    try:
        await send_letter.enqueue(home, "Hello")
        await send_letter.options(priority=-1).enqueue(home, "Before the others", copies=2)
        await send_letter.options(delay=timedelta(hours=1)).enqueue(home, "Not yet")
        await send_letter.options(run_at=datetime.now(UTC), key="greeting").enqueue(home, "First draft")
        await send_letter.options(key="greeting").enqueue(home, "Second draft")  # replaces the first, which still waits
        await write_report.enqueue("2026-01-01")
        await app.add_job("send_letter", {"to": {"street": "By name", "town": "Rome"}, "text": "Ciao"})
        ids = await app.enqueue_many(send_letter.new_job(home, f"Newsletter {number}") for number in range(100))

        await app.worker(once=True).run()  # until nothing is due; a service would run `stowhand worker`
        last = await app.get(ids[-1])
        print(f"{len(ids)} newsletters sent; the last one: {last.result if last else None}")
    finally:
        await app.close()


if __name__ == "__main__":
    asyncio.run(main())
