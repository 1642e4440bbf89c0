"""What a party reports before the first round, and what the parties agree on. `agree` computes both.

This module does not import the code that reads files: a deployed party needs these messages often, its files once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedalign.errors import UserError
from fedalign.ingest.aliases import Aliases
from fedalign.inputs import InputKind, Inputs, Moments, find_kind
from fedalign.labels.names import normalised
from fedalign.types import Task


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offer(_Message):
    """All that a party reports before the first round."""

    party: str
    task: Task
    kind: str  # of its rows
    classes: tuple[str, ...]  # the names of the classes it annotates
    columns: tuple[str, ...] = ()  # of its features or channels, where they have names
    moments: Moments | None = None  # of columns of numbers
    words: dict[str, int] | None = None  # with their counts
    other: dict[str, Any] = Field(default_factory=dict)  # what another kind of input needs

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        try:
            find_kind(kind)
        except UserError as error:
            raise ValueError(str(error)) from error
        return kind

    @property
    def input(self) -> type[InputKind]:
        return find_kind(self.kind)


class Agreement(_Message):
    """How every party reads its rows and labels."""

    task: Task
    label_names: tuple[str, ...]
    inputs: Inputs
    aliases: dict[str, str] = Field(default_factory=dict)

    def places(self, names: Sequence[str]) -> list[int]:
        """The positions of a party's own names in the common list."""
        aliases = Aliases(self.aliases)
        keys = [normalised(aliases.resolve(name)) for name in names]
        place = _places(self.label_names)
        for key, name in zip(keys, names, strict=True):
            if key not in place:
                raise UserError(f"{name!r} is not among the agreed label names; ask for it to be added")
        return [place[key] for key in keys]


@lru_cache(maxsize=8)  # one party after another asks; not kept in the agreement, whose copies may have other names
def _places(label_names: tuple[str, ...]) -> dict[str, int]:
    return {normalised(name): i for i, name in enumerate(label_names)}
