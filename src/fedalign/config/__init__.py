"""What is a run? One frozen model of every setting, read from TOML files and from `--set a.b=c`.

`tables` makes a configuration from a table, `profiles` says what a profile sets, `sources` reads presets and files,
`changes` applies single settings and `paths` completes relative paths. Each section of a configuration is defined next
to the code that it configures.
Imports `registry`, `data.settings`, `labels.settings` and `learning.settings`.
"""

from __future__ import annotations

from fedalign.config.changes import RENAMED, parse
from fedalign.config.paths import program
from fedalign.config.profiles import PROFILES, contradictions, profile_settings
from fedalign.config.sources import OWN, load, presets, printed, read_table, settings_for
from fedalign.config.tables import (
    Config,
    as_table,
    changed,
    complete,
    from_table,
    overlaid,
    sections,
    to_toml,
)

__all__ = [
    "OWN",
    "PROFILES",
    "RENAMED",
    "Config",
    "as_table",
    "changed",
    "complete",
    "contradictions",
    "from_table",
    "load",
    "overlaid",
    "parse",
    "presets",
    "printed",
    "profile_settings",
    "program",
    "read_table",
    "sections",
    "settings_for",
    "to_toml",
]
