"""Profiles: which reading of the method a configuration starts from. docs/differences.md lists each difference.

A profile's settings replace those of a preset. Settings that a person writes, in a file or with `--set`, replace those
of the profile, and `warn_contradictions` names them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from fedalign.errors import ProfileWarning

Table = dict[str, Any]

# the methods that train by gradient steps and average weights
GRADIENT = ("fedavg", "fedprox", "moon", "scaffold", "fedrs", "fedpu", "fedalign")
RELEASED = "released"

# The sections that a profile sets, by condition: "every", or "SECTION=NAME" for one algorithm or data set.
# None removes a setting of a preset, so that its default applies.
PROFILES: dict[str, dict[str, dict[str, Table]]] = {
    RELEASED: {},
    "paper": {
        "algorithm=fedalign": {
            "algorithm": {
                "similarity": "cosine",  # Eq. 8
                "gate": 0.0,
                "clamp": "off",
                "far_by": "distance",  # the thresholds above Eq. 9
                "pseudo_weight": 1.0,  # L + L', below Eq. 10
                "renew": "round",  # Sec. 3.3; Algorithm 1 has "epoch"
            }
        },
        **{f"algorithm={name}": {"algorithm": {"weighting": "all"}} for name in GRADIENT if name != "fedalign"},
        "dataset=extrasensory": {"partition": {"rows": "subject"}},  # Sec. 5.1
        "every": {
            "training": {
                "balanced": False,  # Eq. 2
                "over_classes": "sum",  # Eq. 2
                "optimizer": "sgd",  # Eq. 6 and 7
                "momentum": 0.0,
                "lr": 0.3,  # the paper gives no value; chosen on validation rows of R8-8 (docs/differences.md)
                "label_lr": None,  # Eq. 6 and 7 have one rate
            },
            "labels": {
                "normalise": False,  # Eq. 4
                "smoothing": 0.0,  # Appendix A.1
                "reading": "paper",
            },
        },
    },
}
PROFILES["paper"]["algorithm=fedalign"]["algorithm"]["weighting"] = "all"  # Algorithm 1, line 8


def profile_of(table: Mapping[str, Any]) -> str:
    return str(table.get("profile", RELEASED))


def profile_settings(table: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(section, key, value) of each setting that the table's profile makes for its algorithm and data set. Of several
    conditions that set the same key, the first applies."""
    made: set[tuple[str, str]] = set()
    for condition, sections in PROFILES.get(profile_of(table), {}).items():
        section, _, name = condition.partition("=")
        chosen = table.get(section)
        if condition != "every" and not (isinstance(chosen, Mapping) and chosen.get("name") == name):
            continue
        for changed, values in sections.items():
            for key, value in values.items():
                if (changed, key) not in made:
                    made.add((changed, key))
                    yield changed, key, value


def with_profile(table: Table) -> Table:
    """The table with the profile's settings where it has none of its own."""
    result = dict(table)
    for section, key, value in profile_settings(table):
        if value is not None and isinstance(result.setdefault(section, {}), dict):
            result[section] = {key: value, **result[section]}
    return result


def without_profile_settings(preset: Table) -> Table:
    """A preset's table without the settings that the profile makes, so that the profile's apply."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in preset.items()}
    for section, key, _ in profile_settings(preset):
        if isinstance(result.get(section), dict):
            result[section].pop(key, None)
    return result


def contradictions(table: Mapping[str, Any]) -> list[str]:
    """The settings written in the table that differ from its profile's, as `section.key = value (profile: value)`."""
    found = []
    for section, key, value in profile_settings(table):
        written = table.get(section)
        if not isinstance(written, Mapping):
            continue
        given = written.get(key)
        if given is None or given == value:
            continue
        if (section, key, value) == ("training", "label_lr", None) and given == (written or {}).get("lr"):
            continue
        profile = "no value" if value is None else json.dumps(value)
        found.append(f"{section}.{key} = {json.dumps(given)} (profile: {profile})")
    return found


def warn_contradictions(table: Mapping[str, Any]) -> None:
    """Warns about settings that differ from the profile; they apply."""
    found = contradictions(table)
    if found:
        warnings.warn(
            f'these settings differ from profile = "{profile_of(table)}" and apply: {", ".join(found)}',
            ProfileWarning,
            stacklevel=3,
        )


def marked(toml: str, table: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    """A configuration's TOML with a comment beside each setting that comes from its profile."""
    made = {
        (section, key)
        for section, key, value in profile_settings(table)
        if value is not None and key not in (written.get(section) or {})
    }
    lines, section = [], ""
    for line in toml.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        key = line.partition(" = ")[0]
        lines.append(f'{line}  # profile = "{profile_of(table)}"' if (section, key) in made else line)
    return "\n".join(lines) + "\n"
