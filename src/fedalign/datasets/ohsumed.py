"""OHSUMED: medical abstracts under 23 MeSH diseases; a substitute for MIMIC-III."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedalign.data import vocabulary
from fedalign.data.cache import Prepared, prepared
from fedalign.data.downloads import About, Archive
from fedalign.errors import UserError
from fedalign.inputs import words
from fedalign.randomness import numpy_generator
from fedalign.types import Pool, Sequences

CLASSES = {  # name, and a group of classes that one department might annotate
    "C01": ("bacterial infections and mycoses", "infections"),
    "C02": ("virus diseases", "infections"),
    "C03": ("parasitic diseases", "infections"),
    "C04": ("neoplasms", "neoplasms"),
    "C05": ("musculoskeletal diseases", "bones, skin and mouth"),
    "C06": ("digestive system diseases", "digestion and breathing"),
    "C07": ("stomatognathic diseases", "bones, skin and mouth"),
    "C08": ("respiratory tract diseases", "digestion and breathing"),
    "C09": ("otorhinolaryngologic diseases", "nerves and senses"),
    "C10": ("nervous system diseases", "nerves and senses"),
    "C11": ("eye diseases", "nerves and senses"),
    "C12": ("urologic and male genital diseases", "urogenital and birth"),
    "C13": ("female genital diseases and pregnancy complications", "urogenital and birth"),
    "C14": ("cardiovascular diseases", "heart and blood"),
    "C15": ("hemic and lymphatic diseases", "heart and blood"),
    "C16": ("neonatal diseases and abnormalities", "urogenital and birth"),
    "C17": ("skin and connective tissue diseases", "bones, skin and mouth"),
    "C18": ("nutritional and metabolic diseases", "metabolism, hormones and immunity"),
    "C19": ("endocrine diseases", "metabolism, hormones and immunity"),
    "C20": ("immunologic diseases", "metabolism, hormones and immunity"),
    "C21": ("disorders of environmental origin", "general"),
    "C22": ("animal diseases", "general"),
    "C23": ("pathological conditions, signs and symptoms", "general"),
}
PARTS = ("training", "test")
COUNTS = (6286, 7643)


@dataclass(frozen=True)
class Ohsumed:
    """Stemmed words as in R8; an abstract in the folders of several classes is one example with several labels."""

    about: ClassVar[About] = About(
        "OHSUMED, 23 diseases of medical abstracts",
        "multi-label text",
        "13,929 documents, 28 MB",
        "free for research; Hersh et al. 1994",
        "http://disi.unitn.it/moschitti/corpora.htm",
        "fedalign datasets fetch ohsumed",
    )
    archive: ClassVar[Archive] = Archive(
        "http://disi.unitn.it/moschitti/corpora/ohsumed-first-20000-docs.tar.gz",
        r"(?:^|/)((?:training|test)/C\d\d/\d+)$",
    )

    min_count: Annotated[int, Field(ge=1)] = 100
    max_tokens: Annotated[int, Field(ge=1)] = 1000
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of the training abstracts

    def present(self, folder: Path) -> bool:
        return root(folder / "ohsumed") is not None

    def fetch(self, folder: Path) -> None:
        self.archive.explain("ohsumed", self.about, folder)

    def load(self, folder: Path) -> Pool:
        here = root(folder / "ohsumed")
        if here is None:
            self.fetch(folder)
        assert here is not None
        files = sources(here)
        found = prepared(folder, "ohsumed", 1, files, lambda: read(files))
        y, part = found.arrays["y"], found.arrays["part"]
        tokens = Sequences(found.arrays["tokens"], found.arrays["offsets"])
        mine, test = ((part == p).nonzero().flatten() for p in range(2))
        order = torch.from_numpy(numpy_generator("ohsumed", "validation").permutation(len(mine)))
        aside = round(len(mine) * self.validation)
        held, kept = mine[order[:aside].sort().values], mine[order[aside:].sort().values]
        text, tokens = vocabulary.limited(found.notes["words"], tokens, kept, "stems", self.min_count, self.max_tokens)
        sizes = (len(mine), len(test))
        return Pool(
            "multi",
            [name for name, _ in CLASSES.values()],
            vocabulary.examples(tokens, y, kept),
            vocabulary.examples(tokens, y, test),
            text,
            validation=vocabulary.examples(tokens, y, held) if aside else None,
            category=[group for _, group in CLASSES.values()],
            note="" if sizes == COUNTS else f"{sizes[0]:,} / {sizes[1]:,} abstracts instead of 6,286 / 7,643",
        )


def root(here: Path) -> Path | None:
    """The folder that contains training/ and test/."""
    for folder in (here, *sorted(path for path in here.glob("*") if path.is_dir())):
        if all((folder / part).is_dir() for part in PARTS):
            return folder
    return None


def sources(here: Path) -> list[Path]:
    """The abstracts' files."""
    found = []
    for part in PARTS:
        for folder in sorted((here / part).iterdir()):
            if folder.name.startswith("."):
                continue
            if folder.name not in CLASSES or not folder.is_dir():
                raise UserError(f"{folder} is no class folder of OHSUMED (C01 to C23); move it away")
            with os.scandir(folder) as entries:
                found += [folder / entry.name for entry in entries if not entry.name.startswith(".")]
    if not found:
        raise UserError(f"{here} holds no abstract; get it again with `fedalign datasets fetch ohsumed`")
    return sorted(found)


def read(files: list[Path]) -> Prepared:
    """Each abstract once, with all its classes."""
    places: dict[tuple[str, str], int] = {}  # part and number -> row
    texts: list[str] = []
    first: list[Path] = []
    labels: list[list[int]] = []
    column = {name: c for c, name in enumerate(CLASSES)}
    for path in files:
        part, name = path.parent.name, path.name
        key = (path.parent.parent.name, name)
        text = _text(path)
        row = places.setdefault(key, len(texts))
        if row == len(texts):
            texts.append(text)
            labels.append([])
            first.append(path)
        elif text != texts[row]:
            raise UserError(f"{path} and {first[row]} have the same name but different texts; get the data again")
        labels[row].append(column[part])
    y = torch.zeros(len(texts), len(CLASSES), dtype=torch.uint8)
    for row, classes in enumerate(labels):
        y[row, classes] = 1
    documents = [words.prepared(text) for text in texts]
    for path, document in zip(first, documents, strict=True):
        if not document:
            raise UserError(f"{path} holds no words; get it again")
    listed, tokens = vocabulary.numbered(documents)
    part_of = torch.tensor([PARTS.index(part) for part, _ in places], dtype=torch.uint8)
    arrays = {"tokens": tokens.values, "offsets": tokens.offsets, "y": y, "part": part_of}
    return Prepared(arrays, {"words": listed})


def _text(path: Path) -> str:
    if not path.name.isdigit():
        raise UserError(f"{path} is no abstract of OHSUMED, whose files have numbers for names; move it away")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); get it again") from error


dataset = Ohsumed
