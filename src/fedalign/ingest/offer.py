"""What parties tell each other before the first round, and what they agree on; how is in `agreement`.

Reading files is not imported here: a party of a deployment needs these for every message, its files only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedalign.errors import UserError
from fedalign.inputs import Inputs, Moments, Text
from fedalign.labels.names import normalised
from fedalign.types import Kind, Task


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextSettings(_Message):
    """How documents become tokens."""

    vocabulary: Literal["hashed", "counted"] = "hashed"
    words: Literal["words", "stems", "none"] = "words"
    buckets: int = Field(4096, ge=2)  # hash values
    min_count: int = Field(3, ge=1)  # uses at a party before a word leaves it
    min_clients: int = Field(2, ge=1)  # parties that must offer a word
    max_tokens: int = Field(1000, ge=1)

    def reader(self, vocabulary: Sequence[str] = ()) -> Text:
        buckets = self.buckets if self.vocabulary == "hashed" else 0
        return Text(preparation=self.words, vocabulary=tuple(vocabulary), buckets=buckets, max_tokens=self.max_tokens)


class Offer(_Message):
    """All that a party tells before the first round."""

    party: str
    task: Task
    kind: Kind
    classes: tuple[str, ...]  # the names of what it annotates
    columns: tuple[str, ...] = ()  # of its features or channels, where they have names
    moments: Moments | None = None
    words: dict[str, int] | None = None


class Agreement(_Message):
    """What every party reads its rows with."""

    task: Task
    label_names: tuple[str, ...]
    inputs: Inputs = Field(discriminator="kind")
    aliases: dict[str, str] = Field(default_factory=dict)

    def places(self, names: Sequence[str]) -> list[int]:
        """Where a party's own names stand in the common list."""
        place = {normalised(name): i for i, name in enumerate(self.label_names)}
        other = {normalised(old): new for old, new in self.aliases.items()}
        keys = [normalised(other.get(normalised(name), name)) for name in names]
        for key, name in zip(keys, names, strict=True):
            if key not in place:
                raise UserError(f"{name!r} is not among the agreed label names; ask for it to be added")
        return [place[key] for key in keys]
