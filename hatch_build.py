"""Metadata of the package that depends on its public addresses: links of the README, and project URLs.

The addresses are in pyproject.toml, [tool.hatch.metadata.hooks.custom]. While they are empty, the links of the README
stay relative, and the package has no project URLs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


class AddressHook(MetadataHookInterface):
    """Sets the fields ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields from the addresses in pyproject.toml."""
        repository = self.config["repository"].rstrip("/")
        documentation = self.config["documentation"].rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository, metadata["version"]) if repository else text,
        }
        metadata["urls"] = urls(repository, documentation)


def urls(repository: str, documentation: str) -> dict[str, str]:
    """Return the project URLs by their label, without those that have no address."""
    addresses = {"Documentation": documentation, "Repository": repository}
    if repository:
        addresses |= {"Changelog": f"{repository}/blob/main/CHANGELOG.md", "Issues": f"{repository}/issues"}
    return {label: address for label, address in addresses.items() if address}


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return Markdown whose links and pictures lead to the files of this version in the repository."""

    def absolute(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        label = _LINK.sub(absolute, label)
        return f"{picture}[{label}]({repository}/{'raw' if picture else 'blob'}/v{version}/{target})"

    return _LINK.sub(absolute, text)
