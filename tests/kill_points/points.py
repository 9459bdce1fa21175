"""A fault at a call of a scenario: where, what and when."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Engine = Literal["postgres", "sqlite"]
Kind = Literal["cut", "kill", "restart"]
Moment = Literal["before", "after"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
KINDS: tuple[Kind, ...] = get_args(Kind)
MOMENTS: tuple[Moment, ...] = get_args(Moment)


class Fault(msgspec.Struct, frozen=True):
    """One fault. ``before``: the call never reaches the store. ``after``: its transaction is over, its reply is not."""

    scenario: str
    engine: Engine
    point: str
    """The name of the call: the statement, and how often the scenario has made it, from 1. Or ``#n``: the nth call."""
    kind: Kind
    moment: Moment

    def is_at(self, name: str, number: int) -> bool:
        """Whether it strikes at the call of this name, which is the scenario's nth."""
        return self.point in (name, f"#{number}")

    @property
    def command(self) -> str:
        """The command that repeats it."""
        where = f"--scenario {self.scenario} --engine {self.engine} --point '{self.point}'"
        return f"scripts/kill-points {where} --fault {self.kind} --moment {self.moment}"
