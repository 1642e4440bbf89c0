"""Finds the parties' files: in a folder, in a table of files, or as one file with a column of parties."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from fedalign.errors import UserError
from fedalign.ingest.formats import called_test, readable, sources_in, stem

# data in a format that is not supported: an error is better than ignoring a party
UNSUPPORTED = re.compile(
    r"\.(xlsx?|ods|json|feather|arrow|orc|avro|h5|hdf5|mat|npy|pkl|rds|sav|dta|sas7bdat|zip|tar|"
    r"(csv|tsv|jsonl|ndjson)\.(bz2|xz|zst|zip))$",
    re.IGNORECASE,
)


def find_sources(path: str, parties: Mapping[str, str], client: str, aside: Collection[str]) -> dict[str, Path]:
    """The parties' files by name; one file with a column of parties is under ''. Files `aside` are no party's."""
    if bool(path) == bool(parties):
        problem = "are missing" if not path else "are given twice"
        raise UserError(f"the files {problem}; set dataset.path to a folder or a file, or list dataset.parties")
    if parties:
        if client:
            raise UserError("dataset.client is for one file with all parties; with dataset.parties leave it out")
        return {name: Path(file) for name, file in parties.items()}
    place = Path(path)
    if place.is_dir():
        if client:
            raise UserError(
                f"{place} is a folder with one file per party; dataset.client is for one file with all of them"
            )
        return _in_folder(place, {Path(file).resolve() for file in aside if file})
    if not place.exists():
        raise UserError(f"there is no file or folder {place}; check dataset.path")
    if not client:
        raise UserError(f"{place} is one file; name the column that holds the party in dataset.client")
    return {"": place}


def _in_folder(folder: Path, aside: Collection[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir() or path.resolve() in aside:
            continue
        if UNSUPPORTED.search(path.name):
            raise UserError(f"the format of {path} is not supported; save it as CSV or Parquet, or move it away")
        if not readable(path):
            continue
        if stem(path) in found:
            raise UserError(f"{found[stem(path)].name} and {path.name} would be one party; rename one of them")
        found[stem(path)] = path
    if not found:
        found = {path.name: path for path in sources_in(folder) if path.resolve() not in aside and path.is_dir()}
    if not found:
        raise UserError(
            f"{folder} holds no CSV, TSV, JSONL, Parquet or NPZ file and no folder of images; put one file or "
            "folder per party there"
        )
    return found


def find_test_file(folder: Path) -> str:
    """The file or folder called test in a folder of parties' files; '' if there is none."""
    found = called_test(sources_in(folder)) if folder.is_dir() else None
    return str(found or "")
