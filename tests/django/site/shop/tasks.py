"""Tasks, as an application has them."""

from django.tasks import TaskContext, task

from stowhand.django import task as our_task


@task
def add(one: int, other: int = 0) -> int:
    return one + other


@task
async def add_later(one: int, other: int = 0) -> int:
    return one + other


@our_task(key="the report", max_attempts=3, timeout="10s", queue_name="heavy")
def report(text: str = "") -> str:
    return text


@task(takes_context=True)
def attempt(context: TaskContext) -> int:
    return int(context.attempt)


@our_task(max_attempts=1)
def refuse(words: str) -> None:
    raise ValueError(words)
