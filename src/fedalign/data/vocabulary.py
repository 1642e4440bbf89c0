"""Documents as numbers of words, before it is decided which words count: what MIMIC-III and OHSUMED have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedalign.inputs import UNKNOWN, Text
from fedalign.types import Examples, Sequences


def numbered(documents: Iterable[Iterable[str]]) -> tuple[list[str], Sequences]:
    """Every word once, and the documents as positions in that list."""
    ids: dict[str, int] = {}
    flat, offsets = array("i"), [0]
    for document in documents:
        flat.extend([ids.setdefault(word, len(ids)) for word in document])
        offsets.append(len(flat))
    return list(ids), Sequences(torch.from_numpy(np.array(flat, dtype=np.int32)), torch.tensor(offsets))


def limited(
    words: Sequence[str],
    documents: Sequences,
    train: Tensor,
    preparation: Literal["words", "stems", "none"],
    min_count: int,
    max_tokens: int,
    left_out: Iterable[str] = (),
) -> tuple[Text, Sequences]:
    """The documents' first `max_tokens` words as token ids; words rarer than `min_count` in what is read of the
    training documents are one unknown token. Words left out are not in the documents, and new texts lose them too."""
    documents = documents.truncated(max_tokens)
    counts = torch.bincount(documents.take(train).values, minlength=len(words)).tolist()
    frequent = sorted((i for i, count in enumerate(counts) if count >= min_count), key=lambda i: (-counts[i], words[i]))
    token = torch.full((len(words),), UNKNOWN, dtype=torch.int32)
    token[frequent] = torch.arange(len(frequent), dtype=torch.int32) + UNKNOWN + 1
    text = Text(
        preparation=preparation,
        vocabulary=tuple(words[i] for i in frequent),
        max_tokens=max_tokens,
        left_out=tuple(sorted(left_out)),
    )
    return text, Sequences(token[documents.values], documents.offsets)


def examples(documents: Sequences, y: Tensor, rows: Tensor) -> Examples:
    labels = y[rows].float()
    everything = torch.ones(y.shape[1], dtype=torch.bool)
    return Examples(documents.take(rows), labels, torch.ones_like(labels, dtype=torch.bool), everything)
