"""The dashboard: pages that show and change jobs. docs/internals.md lists its modules."""

from __future__ import annotations

try:
    from stowhand.web.asgi import dashboard
    from stowhand.web.request import Right, Visitor
except ImportError as error:
    raise ImportError(f"the dashboard needs more packages: pip install 'stowhand[web]' ({error})") from error

__all__ = ["Right", "Visitor", "dashboard"]
