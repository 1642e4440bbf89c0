"""Rows handed over in Python. A run's configuration names them so that resuming says where they must come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedalign.data.downloads import About
from fedalign.errors import UserError
from fedalign.types import Federation


@dataclass(frozen=True)
class Arrays:
    about: ClassVar[About] = About("Rows handed over in Python", "any", "yours", "yours", "", "Federation.from_arrays")

    def present(self, folder: Path) -> bool:
        return True

    def fetch(self, folder: Path) -> None:
        pass

    def load(self, folder: Path) -> Federation:
        raise UserError(
            "this run's rows were handed over in Python; go on with train(..., resume=True) and the same rows"
        )


dataset = Arrays
