"""Jobs that run commands, with their output in the record's execution log."""

from __future__ import annotations

from stowhand.commands.command import Command
from stowhand.commands.handler import CommandHandler
from stowhand.commands.steps import Step, step

__all__ = ["Command", "CommandHandler", "Step", "step"]
