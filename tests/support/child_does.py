"""For the text of a program that forks: ``child_does(what)``, which fails as the child does."""

from __future__ import annotations

CHILD_DOES = """
import os

def child_does(what):
    if (pid := os.fork()) == 0:
        try:
            what()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
