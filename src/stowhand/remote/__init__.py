"""A store over HTTP: the messages, the server that lends a store, and the client of a lent store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowhand.lazy_names import lazy_names

if TYPE_CHECKING:
    from stowhand.remote.client.options import HttpOptions
    from stowhand.remote.client.store import HttpStore

_NAMES_BY_MODULE = {"remote.client.options": "HttpOptions", "remote.client.store": "HttpStore"}

__all__ = ["HttpOptions", "HttpStore"]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _NAMES_BY_MODULE)
