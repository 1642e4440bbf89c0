"""Documents as vectors of a frozen sentence model, which must be installed at every party.

Nothing is agreed on beforehand and no word leaves a party. Use it where documents are short and labelled rows are few;
`text` (TF-IDF) is the default.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedalign.inputs.input_kind import InputKind, Reader
from fedalign.inputs.profile import FilesProfile, Guess
from fedalign.inputs.raw import Raw
from fedalign.inputs.shape import Shape
from fedalign.inputs.text import Text, TextReader
from fedalign.system import sentence_model

if TYPE_CHECKING:
    from fedalign.ingest.formats import Table
    from fedalign.ingest.offer import Offer

WIDTH = 384  # of all-MiniLM-L6-v2


@dataclass(frozen=True)
class SentenceColumns:
    """Where documents stand."""

    sentences: str = ""  # column with one document per row, read by a sentence model


class Sentences(InputKind):
    """Documents as vectors of a sentence model."""

    kind: Literal["sentences"] = "sentences"

    order: ClassVar[int] = 25  # after `text`, which reads the same rows by default
    in_memory: ClassVar[bool] = False  # texts in memory are `text`
    rows_called: ClassVar[str] = "texts for a sentence model"
    encoder: ClassVar[str] = "mlp"
    feature_map: ClassVar[str] = "random_features"
    trial_is_prepared: ClassVar[bool] = True
    graph_rows: ClassVar[str] = f"`rows` (n, {WIDTH}) float32, the documents' vectors of the sentence model"
    Columns: ClassVar[type] = SentenceColumns
    about: ClassVar[dict[str, str]] = {"sentences": "the column with the document, read by a sentence model"}

    # --- raw rows -------------------------------------------------------------------------------------------------

    @classmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        return None  # `text` needs nothing installed, so it is the guess

    @classmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        return TextReader([columns.sentences])

    @classmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        return False

    @classmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        return Text.raw(rows, names, missing)

    # --- what parties agree on ------------------------------------------------------------------------------------

    @classmethod
    def describe_offer(cls, offer: Offer) -> list[str]:
        return ["no word: documents are read by the sentence model on this machine"]

    @classmethod
    def agree(cls, offers: Sequence[Offer], settings: Any) -> Sentences:
        return cls()

    # --- tensors --------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return Shape("features", (WIDTH,))

    def rows(self, x: Any, columns: tuple[str, ...] = (), file: str = "") -> Tensor:
        """Vectors whose entries have a variance near 1, as scaled columns of a table have. An empty document is 0."""
        texts = [str(text) for text in x]
        filled = [place for place, text in enumerate(texts) if text.strip()]
        found = torch.zeros(len(texts), WIDTH)
        if filled:
            found[filled] = sentence_model.embed([texts[place] for place in filled], "", option="") * WIDTH**0.5
        return found

    def prepare(self, rows: Any) -> Tensor:
        return self.rows(Text.texts(rows))

    # --- files given for prediction -------------------------------------------------------------------------------

    def default_columns(self) -> dict[str, Any]:
        return {"sentences": "text"}

    # --- an exported graph ----------------------------------------------------------------------------------------

    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        return {"rows": self.prepare(rows).numpy()}

    def graph_example(self) -> dict[str, np.ndarray]:
        return {"rows": np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32)}

    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        rows = rng.normal(size=(count, WIDTH)).astype(np.float32)
        return torch.from_numpy(rows), {"rows": rows}


kind = Sentences
