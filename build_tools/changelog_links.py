"""Rewrites the changelog's links for the documentation, where they are relative to `docs/` (a hook of mkdocs)."""

from pathlib import Path
from typing import Any

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the changelog into the page that includes it."""
    changelog = CHANGELOG.read_text().replace("](docs/", "](")
    return markdown.replace(f'--8<-- "{CHANGELOG.name}"', changelog)
