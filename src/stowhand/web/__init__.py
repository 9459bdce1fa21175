"""The dashboard: see every job.

asked                  a request and a reply, plain values
access                 who may what
board                  the pages by path, and what goes wrong
reading                the only door to the store
overview, jobs, job, lists  a function for each page
charts                 numbers in, SVG out
live                   a page's changes, as a stream
asgi                   what a server runs
"""

from __future__ import annotations

try:
    from stowhand.web.asgi import dashboard
    from stowhand.web.asked import Right, Who
except ImportError as error:
    raise ImportError(f"the dashboard needs more packages: pip install 'stowhand[web]' ({error})") from error

__all__ = ["Right", "Who", "dashboard"]
