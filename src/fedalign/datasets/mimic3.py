"""MIMIC-III: discharge summaries and the 50 commonest ICD-9 codes, in CAML's split (the paper's MIMIC-III-10)."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import polars as pl
import torch
from pydantic import Field

from fedalign.data import vocabulary
from fedalign.data.cache import Prepared, prepared
from fedalign.data.downloads import About
from fedalign.data.matrix import contents
from fedalign.errors import UserError
from fedalign.types import Pool, Sequences

FILES = ("train_50.csv", "dev_50.csv", "test_50.csv")  # of CAML's preprocessing
COUNTS = (8066, 1573, 1729)
TITLES = ("ICD9_descriptions", "D_ICD_DIAGNOSES.csv", "D_ICD_PROCEDURES.csv")  # optional; the first wins
LEFT_OUT = frozenset(["admission", "discharge", "date", "birth"])  # in the head of every summary
CODE = re.compile(r"(V\d\d|E\d{3}|\d{2,3})(\.\d{1,2})?")
CHAPTERS = (  # of ICD-9, by the first number after the chapter
    (140, "infectious and parasitic diseases"),
    (240, "neoplasms"),
    (280, "endocrine, nutritional and metabolic diseases"),
    (290, "diseases of the blood"),
    (320, "mental disorders"),
    (390, "diseases of the nervous system and sense organs"),
    (460, "diseases of the circulatory system"),
    (520, "diseases of the respiratory system"),
    (580, "diseases of the digestive system"),
    (630, "diseases of the genitourinary system"),
    (680, "pregnancy and childbirth"),
    (710, "diseases of the skin"),
    (740, "diseases of the musculoskeletal system"),
    (760, "congenital anomalies"),
    (780, "conditions of the perinatal period"),
    (800, "symptoms and ill-defined conditions"),
    (1000, "injury and poisoning"),
)
STEPS = """MIMIC-III holds notes of patients, so its owners give it to trained people only:
  1. Take the course named at https://physionet.org/content/mimiciii/ and sign
     the data use agreement there.
  2. Download NOTEEVENTS, DIAGNOSES_ICD, PROCEDURES_ICD, D_ICD_DIAGNOSES and
     D_ICD_PROCEDURES of version 1.4.
  3. Run CAML's preprocessing (https://github.com/jamesmullenbach/caml-mimic);
     it makes train_50.csv, dev_50.csv and test_50.csv.
  4. Put these three into
     {folder}
     together with CAML's ICD9_descriptions, or the two D_ICD files, for the
     names of the codes. Without them classes are called by their codes.
fedalign reads them there and sends them nowhere."""


@dataclass(frozen=True)
class Mimic3:
    """The first words of each summary; classes are codes, named by their titles if a file of titles is there."""

    about: ClassVar[About] = About(
        "MIMIC-III, 50 codes of discharge summaries",
        "multi-label text",
        "11,368 documents, 100 MB",
        "PhysioNet Credentialed Health Data License 1.5.0",
        "https://physionet.org/content/mimiciii/",
        "fedalign datasets fetch mimic3 explains the credentialed way",
    )

    min_count: Annotated[int, Field(ge=1)] = 100
    max_tokens: Annotated[int, Field(ge=1)] = 1000
    min_positives: Annotated[int, Field(ge=0)] = 10  # classes need more documents than this
    # as_numbers: 38.93 counts as a number below 140, so procedures fall among the infectious diseases, as published
    icd_procedures: Literal["as_numbers", "own_group"] = "as_numbers"

    @staticmethod
    def steps(folder: Path) -> str:
        """How a user gets the data; they cannot be downloaded automatically."""
        return STEPS.format(folder=folder / "mimic3")

    def present(self, folder: Path) -> bool:
        return all((folder / "mimic3" / name).is_file() for name in FILES)

    def fetch(self, folder: Path) -> None:
        missing = [name for name in FILES if not (folder / "mimic3" / name).is_file()]
        raise UserError(
            f"{', '.join(missing)} of MIMIC-III not in {folder / 'mimic3'}; `fedalign datasets fetch mimic3` explains "
            "how to get credentialed access and prepare them"
        )

    def load(self, folder: Path) -> Pool:
        here = folder / "mimic3"
        if not self.present(folder):
            self.fetch(folder)
        files = [here / name for name in FILES]
        found = prepared(folder, "mimic3", 1, files, lambda: read(files))
        codes, words = found.notes["codes"], found.notes["words"]
        tokens = Sequences(found.arrays["tokens"], found.arrays["offsets"])
        y, part = found.arrays["y"], found.arrays["part"]
        kept = [c for c, count in enumerate(y.sum(0, dtype=torch.int64).tolist()) if count > self.min_positives]
        if not kept:
            raise UserError(
                f"no code in {here} has more than {self.min_positives} documents; lower dataset.min_positives"
            )
        rows = [(part == p).nonzero().flatten() for p in range(3)]
        text, tokens = vocabulary.limited(words, tokens, rows[0], "none", self.min_count, self.max_tokens, LEFT_OUT)
        train, held, test = (vocabulary.examples(tokens, y[:, kept], chosen) for chosen in rows)
        sizes = tuple(len(chosen) for chosen in rows)
        return Pool(
            "multi",
            names_of([codes[c] for c in kept], titles(here)),
            train,
            test,
            text,
            validation=held if len(held) else None,
            category=[chapter(codes[c], self.icd_procedures == "own_group") for c in kept],
            note="" if sizes == COUNTS else f"{sizes[0]:,} / {sizes[1]:,} / {sizes[2]:,} documents, not CAML's split",
        )


def read(files: list[Path]) -> Prepared:
    """All three files: words, and the codes of each summary, the commonest code first."""
    tables = [read_notes(path) for path in files]
    counts: dict[str, int] = {}
    for _, labels in tables:
        for label in labels:
            for code in label:
                counts[code] = counts.get(code, 0) + 1
    codes = sorted(counts, key=lambda code: (-counts[code], code))
    place = {code: c for c, code in enumerate(codes)}
    y = torch.zeros(sum(len(labels) for _, labels in tables), len(codes), dtype=torch.uint8)
    for row, label in enumerate(label for _, labels in tables for label in labels):
        y[row, [place[code] for code in label]] = 1
    words, tokens = vocabulary.numbered(
        (word for word in text.split() if word not in LEFT_OUT) for texts, _ in tables for text in texts
    )
    part = torch.tensor([p for p, (texts, _) in enumerate(tables) for _ in texts], dtype=torch.uint8)
    arrays = {"tokens": tokens.values, "offsets": tokens.offsets, "y": y, "part": part}
    return Prepared(arrays, {"codes": codes, "words": words})


def read_notes(path: Path) -> tuple[list[str], list[list[str]]]:
    """Texts and codes of one file."""
    data = contents(path)
    try:
        data.decode("utf-8")
        table = pl.read_csv(data, infer_schema_length=0)  # every column as text: 038.9 is a code, not a number
    except (UnicodeDecodeError, OSError, pl.exceptions.PolarsError) as error:
        reason = (str(error).splitlines() or ["empty"])[0]
        raise UserError(f"{path} is not a CSV file with TEXT and LABELS ({reason}); make it again with CAML") from error
    for column in ("TEXT", "LABELS"):
        if column not in table.columns:
            raise UserError(f"{path} has no column {column} but {', '.join(table.columns)[:200]}; make it with CAML")
    texts, labels = table["TEXT"].to_list(), []
    for record, (text, label) in enumerate(zip(texts, table["LABELS"].to_list(), strict=True), start=1):
        if not (text and text.strip() and label):
            missing = "LABELS" if text and text.strip() else "TEXT"
            raise UserError(f"{path}, record {record}, column {missing} is empty; the file is cut off, make it again")
        codes = [code.strip() for code in label.split(";")]
        for code in codes:
            if not CODE.fullmatch(code):
                raise UserError(
                    f"{path}, record {record}, column LABELS: {code[:40]!r} is no ICD-9 code such as 401.9 or V58.61"
                )
        labels.append(list(dict.fromkeys(codes)))
    if not labels:
        raise UserError(f"{path} holds no document; make it again with CAML")
    return texts, labels


def chapter(code: str, own_group: bool) -> str:
    """The group of a code. Procedures have two digits before the point, diagnoses three."""
    if code[0] in "VE":
        return "external causes and supplementary classification"
    if own_group and len(code.split(".")[0]) == 2:
        return "procedures"
    return next(name for end, name in CHAPTERS if float(code) < end)


def names_of(codes: list[str], known: dict[str, str]) -> list[str]:
    """A title for each code, the code itself where there is none, and both where two codes share a title."""
    found = [known.get(code, code) for code in codes]
    return [f"{name} ({code})" if found.count(name) > 1 else name for name, code in zip(found, codes, strict=True)]


def titles(here: Path) -> dict[str, str]:
    """Code -> title, from those of the three files that are there."""
    found: dict[str, str] = {}
    for file in TITLES:
        path = next((path for path in (here / file, here / f"{file}.gz") if path.is_file()), None)
        if path is not None:
            for code, title in _titles(path, file):
                found.setdefault(code, title)
    return found


def _titles(path: Path, file: str) -> Iterator[tuple[str, str]]:
    try:
        text = (gzip.decompress(contents(path)) if path.suffix == ".gz" else contents(path)).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); get it again or remove it") from error
    if file == TITLES[0]:  # code, tab, title
        for number, line in enumerate(text.splitlines(), start=1):
            code, _, title = line.partition("\t")
            if not title.strip():
                raise UserError(f"{path}, line {number}: expected a code, a tab and a title; get it again or remove it")
            yield code.strip(), title.strip()
        return
    rows = csv.DictReader(io.StringIO(text))
    for column in ("ICD9_CODE", "LONG_TITLE"):
        if column not in (rows.fieldnames or []):
            raise UserError(f"{path} has no column {column}; get it again from MIMIC-III or remove it")
    for row in rows:
        code = (row["ICD9_CODE"] or "").strip()
        # these files leave the point out: 4019 is 401.9, a procedure 3893 is 38.93
        head = 2 if "PROCEDURES" in file else 4 if code.startswith("E") else 3
        yield code if len(code) <= head else f"{code[:head]}.{code[head:]}", (row["LONG_TITLE"] or code).strip()


dataset = Mimic3
