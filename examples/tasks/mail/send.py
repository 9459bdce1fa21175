"""The task ``mail/send``: a plain function, which runs in a thread."""

from __future__ import annotations

from typing import TypedDict

from stowhand.runner import BlockingHelpers


class Mail(TypedDict):
    to: str


def send(payload: Mail, helpers: BlockingHelpers) -> None:
    helpers.logger.info(f"A letter to {payload['to']}", job=helpers.job.id)
