"""Which of two runs on the same data to keep, decided on the parties' validation rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from fedalign.errors import UserError
from fedalign.system.files import write_atomically

FORMAT = 1
NAME = "kept.json"


class Reason(Enum):
    """Why a run is kept."""

    HIGHER_F1 = auto()
    EQUAL = auto()
    NO_VALIDATION = auto()


@dataclass(frozen=True)
class Kept:
    """The run that is kept, and the runs it was compared with."""

    folder: Path
    reason: Reason
    scores: dict[str, float | None]  # name of the run's folder -> F1 on validation rows

    def __str__(self) -> str:
        name = self.folder.name
        shown = ", ".join(f"{run} {100 * f1:.2f}" for run, f1 in self.scores.items() if f1 is not None)
        return {
            Reason.HIGHER_F1: f"{name} has the higher F1 on validation rows ({shown})",
            Reason.EQUAL: f"{name} is the simpler model, with the same F1 on validation rows ({shown})",
            Reason.NO_VALIDATION: f"{name} is the simpler model; no validation rows decide (set dataset.validation)",
        }[self.reason]


def keep_better(folders: Sequence[Path]) -> Kept:
    """The run with the higher F1 on validation rows, the first among equals; noted as kept.json in every folder."""
    scores = {folder.name: _validation(folder) for folder in folders}
    known = [value for value in scores.values() if value is not None]
    if len(known) < len(folders):
        kept = Kept(folders[0], Reason.NO_VALIDATION, scores)
    else:
        best = known.index(max(known))
        reason = Reason.EQUAL if known.count(max(known)) > 1 else Reason.HIGHER_F1
        kept = Kept(folders[best], reason, scores)
    table = {"format": FORMAT, "kept": kept.folder.name, "why": str(kept), "validation": scores}
    for folder in folders:
        write_atomically(folder / NAME, json.dumps(table, indent=1))
    return kept


def _validation(folder: Path) -> float | None:
    """F1 on validation rows, as in result.json."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} holds no result; finish the run first") from error
    found = result.get("validation")
    return float(found["f1"]) if isinstance(found, dict) else None
