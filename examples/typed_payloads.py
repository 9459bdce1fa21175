"""Payloads by annotation: a dataclass, a TypedDict, a msgspec Struct, a pydantic model. What does not fit is refused
when it is enqueued, and a row that somebody else wrote fails alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import TypedDict

import msgspec
import pydantic

from stowhand import App
from stowhand.errors import InvalidJob

app = App()


@dataclass
class Line:
    item: str
    count: int = 1


class Address(TypedDict):
    street: str
    town: str


class Payment(msgspec.Struct):
    cents: int


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    born: date


@app.task
async def ship(lines: list[Line], to: Address, payment: Payment, customer: Customer) -> str:
    things = sum(line.count for line in lines)
    return f"{things} things to {to['town']} for {customer.name}, paid {payment.cents / 100:.2f}"


@app.task
async def audit(payload: dict[str, list[int]]) -> int:
    """The parameter called ``payload`` takes it whole."""
    return sum(map(sum, payload.values()))


async def main() -> None:
    await app.open(install=True)
    ada = Customer(name="Ada", born=date(1815, 12, 10))
    home: Address = {"street": "Square", "town": "London"}
    shipped = await ship.enqueue([Line("book", 2), Line("pen")], home, Payment(1250), ada)
    audited = await audit.enqueue({"a": [1, 2], "b": [3]})
    try:
        await ship.enqueue([], home, Payment(1), Customer.model_construct(name=""))
    except InvalidJob as error:
        print(f"refused: {error}")

    await app.worker(once=True).run()
    for one in (shipped, audited):
        job = await app.get(one.id)
        print(job.result if job else "gone")
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
