"""Documents as word numbers, before the vocabulary is chosen: shared by MIMIC-III and OHSUMED."""

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
    """The list of all words, and the documents as positions in it."""
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
    """The documents' first `max_tokens` words as token ids. Words that occur less than `min_count` times in the part of
    the training documents that is read become one unknown token. `left_out` words are also removed from new texts."""
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
    """The chosen documents with all their labels known."""
    labels = y[rows].float()
    everything = torch.ones(y.shape[1], dtype=torch.bool)
    return Examples(documents.take(rows), labels, torch.ones_like(labels, dtype=torch.bool), everything)
