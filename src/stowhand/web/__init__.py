"""The dashboard: see every job.

asked                  a request and a reply, plain values
access                 who may what
board                  the pages by path, and what goes wrong
reading                the only door to the store
overview, jobs, job    a function for each page
asgi                   what a server runs
"""

from __future__ import annotations

from stowhand.web.asgi import dashboard

__all__ = ["dashboard"]
