"""Tasks, as an application has them."""

import asyncio
import threading
import time

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.tasks import TaskContext, task

from stowhand import Cancel, Fail, Retry, Snooze
from stowhand.django import task as our_task
from tests.django.site.shop.models import Order


@task
def add(one: int, other: int = 0) -> int:
    return one + other


@task
async def add_later(one: int, other: int = 0) -> int:
    return one + other


@our_task(key="the report", max_attempts=3, timeout="10s", queue_name="heavy")
def report(text: str = "") -> str:
    return text


@task
async def where() -> list[int]:
    """The thread of its queries, and the process of the server that its connection is."""

    def look() -> list[int]:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return [threading.get_ident(), int(cursor.fetchone()[0])]

    first = await sync_to_async(look)()
    await asyncio.sleep(0.1)
    assert await sync_to_async(look)() == first
    return [*first]


@task(takes_context=True)
def attempt(context: TaskContext) -> int:
    return int(context.attempt)


@our_task(max_attempts=1)
def refuse(words: str) -> None:
    raise ValueError(words)


@task
def place(name: str) -> int:
    """Writes a row, and enqueues in the same transaction."""
    with transaction.atomic():
        order = Order.objects.create(name=name)
        add.enqueue(order.pk)
    return int(order.pk)


@task
async def place_later(name: str) -> int:
    """The same from a coroutine."""
    order = await Order.objects.acreate(name=name)
    return int(order.pk)


@our_task(max_attempts=2)
def fail_once(marker: str) -> str:
    """Its second attempt succeeds."""
    if not Order.objects.filter(name=marker).exists():
        Order.objects.create(name=marker)
        raise ConnectionError("not yet")
    return "done"


@our_task(max_attempts=1, timeout="200ms")
def too_long() -> None:
    time.sleep(1)


@our_task(max_attempts=1, timeout="10ms")
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@our_task(max_attempts=1)
def leave() -> None:
    raise SystemExit("no more")


@our_task(max_attempts=1)
async def leave_later() -> None:
    raise SystemExit("no more")


@our_task(max_attempts=1)
def return_what_is_no_json() -> object:
    return object()


@task
def return_a_list() -> list[int]:
    return [1, 2]


@task
def snooze() -> Snooze:
    return Snooze(3600)


OUTCOMES = {"retry": Retry("busy"), "fail": Fail("never"), "snooze": Snooze(3600), "cancel": Cancel("no longer")}


@our_task(max_attempts=1)
def end_as(outcome: str, raises: bool) -> object:
    if raises:
        raise OUTCOMES[outcome]
    return OUTCOMES[outcome]


@our_task(max_attempts=1)
async def end_later_as(outcome: str, raises: bool) -> object:
    return end_as.func(outcome, raises)


@task
def hang(marker: str) -> str:
    """The first worker is killed while it runs this."""
    if not Order.objects.filter(name=marker).exists():
        Order.objects.create(name=marker)
        time.sleep(60)
    return "recovered"


@our_task(max_attempts=2)
def lose_connection() -> str:
    """Its first attempt finds the connection of its thread cut by the server."""
    connection = connections["postgres"]
    with connection.cursor() as cursor:
        if not Order.objects.filter(name="lost").exists():
            Order.objects.create(name="lost")
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")
        cursor.execute("select 'there'")
        return str(cursor.fetchone()[0])


@our_task(max_attempts=1)
def break_the_rules(alias: str) -> None:
    Order.objects.using(alias).create(pk=-1, name="first")
    Order.objects.using(alias).create(pk=-1, name="second")
