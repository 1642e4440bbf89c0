"""Shell completion: presets, runs and methods. It reads names only, because it runs at every press of a key."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

DEEP = 3  # folders below runs/ in which runs are looked for


def presets(incomplete: str) -> list[str]:
    """Presets that begin like this; a shell adds files by itself where it has nothing else."""
    names = [entry.name.removesuffix(".toml") for entry in files("fedalign.presets").iterdir()]
    return sorted(name for name in names if not name.startswith("_") and name.startswith(incomplete))


def runs(incomplete: str) -> list[str]:
    """Folders of runs below runs/ or below the folder that is being typed."""
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    start = place if place != Path() else Path("runs")
    found = [path.parent for depth in range(DEEP) for path in start.glob("*/" * depth + "config.toml")]
    return sorted(str(path) for path in found if str(path).startswith(incomplete))


def presets_and_runs(incomplete: str) -> list[str]:
    """What `fedalign run` takes besides files and folders."""
    return [*presets(incomplete), *(runs(incomplete) if incomplete else [])]


def methods(incomplete: str) -> list[str]:
    """Methods, groups and algorithms; the last of a list that is separated by commas."""
    from fedalign.registry import names
    from fedalign.runs.methods import GROUPS, METHODS

    done, comma, word = incomplete.rpartition(",")
    known = sorted({*METHODS, *GROUPS, *names("algorithms")})
    return [f"{done}{comma}{name}" for name in known if name.startswith(word)]


def datasets(incomplete: str) -> list[str]:
    """Public data sets."""
    from fedalign.registry import names

    return [name for name in names("datasets") if name.startswith(incomplete)]
