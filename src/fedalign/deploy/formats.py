"""The two forms of a log, and an option that both sides have."""

from __future__ import annotations

from enum import StrEnum

PAGE = "Where to show the live page, health and metrics; port 0 is any free one; empty for none."


class Format(StrEnum):
    """Lines for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"
