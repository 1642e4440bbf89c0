"""The two forms of a log."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """Lines for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"
