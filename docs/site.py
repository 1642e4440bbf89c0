"""Hooks of the documentation site: links to files outside of docs/ become plain text, and pages name the version.

The pages are read on a repository host too, where links such as ../CONTRIBUTING.md lead somewhere.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_config(config: Any) -> Any:
    """Name the version on every page."""
    project = tomllib.loads((Path(config.config_file_path).parent / "pyproject.toml").read_text(encoding="utf-8"))
    config.copyright = f"fedalign {project['project']['version']}, Apache-2.0"
    return config


def on_page_markdown(markdown: str, **more: Any) -> str:
    """The page without links that leave the site."""
    return OUTSIDE.sub(r"`\1`", markdown)
