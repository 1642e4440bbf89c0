"""Chooses where class vectors start when the configuration leaves it open (`labels.source = "auto"`).

The order is fixed: counts shipped with the package that know most of the names, a sentence model if one is installed,
random vectors. A run stores the source that was chosen, so that resuming it does not depend on what is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from pathlib import Path

from fedalign.errors import UserError
from fedalign.labels import counts, sentence
from fedalign.labels import names as label_names
from fedalign.labels.settings import Labels, Source

MOST = 0.5  # counts are taken if they know more than this share of the names
SHOWN = 8  # names in a message


class Reason(Enum):
    """Why a source was chosen."""

    CONFIGURED = auto()  # the configuration names it
    COUNTS = auto()  # shipped counts know most of the names
    SENTENCE = auto()  # no shipped counts do, and a sentence model is installed
    NOTHING = auto()  # neither is available


@dataclass(frozen=True)
class Chosen:
    """A source of class vectors, and why it was chosen."""

    source: Source
    file: str
    reason: Reason
    names: int = 0
    unknown: tuple[str, ...] = ()  # names that the counts do not know

    @property
    def uses_names(self) -> bool:
        return self.source != "random"

    @property
    def automatic(self) -> bool:
        return self.reason is not Reason.CONFIGURED

    def __str__(self) -> str:
        """One sentence for users. It names the fix where label names are not used."""
        if self.reason is Reason.COUNTS:
            known = self.names - len(self.unknown)
            missing = f"; random vectors for {_listed(self.unknown)}" if self.unknown else ""
            return (
                f"class vectors start from the shipped counts {self.file!r}, which know {known} of {self.names} label "
                f"names{missing}"
            )
        if self.reason is Reason.SENTENCE:
            return f"class vectors start from the label names, read by the sentence model {sentence.PACKAGE}"
        if self.reason is Reason.NOTHING:
            return (
                "label names are not used: no shipped counts know most of them and no sentence model is installed, so "
                f"class vectors start at random; install a sentence model with {sentence.INSTALL}, or count the names "
                "in your own text with `fedalign labels count --names NAMES --corpus TEXT --out counts.json`"
            )
        if self.uses_names:
            return f"class vectors start from {description(Labels(source=self.source, file=self.file))}"
        return (
            'label names are not used: labels.source is "random", so class vectors start at random; set labels.source '
            'to "auto" to use the names'
        )


def choose_source(names: Sequence[str], settings: Labels) -> Chosen:
    """Returns the source that is configured or, for "auto", the best one available for these names."""
    if settings.source != "auto":
        return Chosen(settings.source, settings.file, Reason.CONFIGURED, len(names))
    if settings.file:
        raise UserError(
            f'labels.source = "auto" takes no labels.file ({settings.file}); set labels.source to what the file holds: '
            "counts, vectors or table"
        )
    shipped = _best_counts(names)
    if shipped is not None:
        return shipped
    if sentence.installed():
        return Chosen("sentence", "", Reason.SENTENCE, len(names))
    return Chosen("random", "", Reason.NOTHING, len(names))


def resolved(names: Sequence[str], settings: Labels) -> Labels:
    """Returns the settings with "auto" replaced by the source chosen for these names."""
    if settings.source != "auto":
        return settings
    chosen = choose_source(names, settings)
    return settings.model_copy(update={"source": chosen.source, "file": chosen.file})


def description(settings: Labels) -> str:
    """Returns a source in a few words, for tables and pages. Of a path only its last part: pages are passed on."""
    if settings.source == "random":
        return "random vectors; label names are not used"
    if settings.source == "sentence":
        return f"a sentence model ({Path(settings.file).name or sentence.PACKAGE})"
    return f"{settings.source} ({Path(settings.file).name})"


def _best_counts(names: Sequence[str]) -> Chosen | None:
    """Returns the shipped counts that know the most names, the first by name among equals; None if none knows most."""
    best: Chosen | None = None
    for file in counts.shipped():
        known = _well_counted(file)
        places = label_names.places(names, known)
        unknown = tuple(name for name, place in zip(names, places, strict=True) if place is None)
        found = len(names) - len(unknown)
        if found >= 2 and found > MOST * len(names) and (best is None or len(unknown) < len(best.unknown)):
            best = Chosen("counts", file, Reason.COUNTS, len(names), unknown)
    return best


@cache
def _well_counted(file: str) -> tuple[str, ...]:
    """Returns the names in shipped counts that occur often enough for a vector."""
    found = counts.read(file)
    little = set(found.little())
    return tuple(name for name in found.rule.names if name not in little)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
