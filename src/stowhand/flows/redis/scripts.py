"""The scripts of the Redis store: one per transition, each atomic on the server. They are files in ``lua/``.

A script is called by the digest of its text; a server that does not know it (restarted, failed over, flushed) is sent
the text. So nothing has to be loaded first, and every node of a cluster learns what it is asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

_PARTS = re.compile(r"^-- with: (.+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """One of them."""

    name: str
    text: str
    sha: str


async def run(client: Any, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
    """Call it. The first key says which node of a cluster; all must lie in its slot."""
    try:
        return await client.evalsha(script.sha, len(keys), *keys, *args)
    except NoScriptError:
        return await client.eval(script.text, len(keys), *keys, *args)


def _load() -> dict[str, Script]:
    folder = resources.files(__package__) / "lua"
    texts = {
        file.name.removesuffix(".lua"): file.read_text() for file in folder.iterdir() if file.name.endswith(".lua")
    }
    return {name: _script(name, texts) for name in texts if not name.startswith("_")}


def _script(name: str, texts: dict[str, str]) -> Script:
    """``-- with: a b`` in a script puts the shared files ``_a.lua`` and ``_b.lua`` before it."""
    named = _PARTS.search(texts[name])
    parts = [texts[f"_{part}"] for part in named[1].split()] if named else []
    text = "\n".join((*parts, texts[name]))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SCRIPTS: dict[str, Script] = _load()
"""By name."""
