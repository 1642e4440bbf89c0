"""A party's receipts as a chain: each line holds the digest of the line before it and the party's signature.

A line that is removed, changed or moved breaks the chain. The newest digest is kept in a second file, so lines missing
at the end are noticed too, unless both files are put back to an earlier state: only somebody else who has seen a later
digest can notice that. Whoever has the party's key can write another chain.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.errors import UserError
from fedalign.privacy.secure_sums.identity import Identity, signed_by
from fedalign.system.files import PRIVATE, write_atomically

FILE = "receipt.jsonl"
HEAD = "receipt.head"  # number, digest and signature of the newest line
CHAIN = ("number", "previous", "digest", "signature")  # what the chain adds to a line

BLOCK = 1 << 16  # bytes read at once


def add(folder: Path, line: Mapping[str, Any], identity: Identity | None) -> None:
    """Adds a line to a folder's receipts. Without an identity it is not signed."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        number, previous = _newest(folder)
        linked: dict[str, Any] = {**line, "number": number + 1, "previous": previous}
        linked["digest"] = digest(linked)
        linked["signature"] = identity.sign(linked["digest"].encode()).hex() if identity else ""
        with (folder / FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(linked) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        write_atomically(folder / HEAD, json.dumps({key: linked[key] for key in CHAIN}) + "\n")


def digest(line: Mapping[str, Any]) -> str:
    """SHA-256 of a line without its digest and signature."""
    content = {key: value for key, value in line.items() if key not in ("digest", "signature")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _newest(folder: Path) -> tuple[int, str]:
    """Number and digest of the line that the next one follows: what `receipt.head` says, so that a chain which was cut
    stays cut, or the last line if a crash came between the two files."""
    head, path = _json(folder / HEAD), folder / FILE
    if not path.is_file():
        return (head["number"], head["digest"]) if head else (0, "")
    last = parsed(_last_line(path))
    if last is not None and _linked(last) and (head is None or last["previous"] == head["digest"]):
        return int(last["number"]), str(last["digest"])
    if head is not None:
        return int(head["number"]), str(head["digest"])
    data = path.read_bytes()  # lines of an earlier version, as a whole
    return len(data.splitlines()), hashlib.sha256(data).hexdigest()


def _last_line(path: Path) -> bytes:
    """Without reading the lines before it, since a record grows for years."""
    with path.open("rb") as stream:
        end, found = stream.seek(0, os.SEEK_END), b""
        while end and b"\n" not in found[:-1]:
            start = max(end - BLOCK, 0)
            stream.seek(start)
            found, end = stream.read(end - start) + found, start
    return found.rstrip(b"\n").rpartition(b"\n")[2]


@dataclass(frozen=True)
class Verified:
    """What was found in a file of receipts."""

    lines: int
    signed: int
    unchained: int  # lines of an earlier version at the start, covered as a whole
    problems: tuple[str, ...]  # one sentence each, the first first
    newest: str  # digest of the last line: note it elsewhere, and later shortening can be noticed


def verify(path: Path, key: bytes | None = None, noted: str = "") -> Verified:
    """Checks every line. `key`: the party's public key. `noted`: a digest that must still be in the file."""
    path = path / FILE if path.is_dir() else path
    try:
        raw = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"there are no receipts at {path}; give the folder that holds {FILE}") from error
    found = [parsed(line) for line in raw]
    first = next((i for i, line in enumerate(found) if line is not None and "previous" in line), len(found))
    previous = hashlib.sha256(b"".join(raw[:first])).hexdigest() if first else ""
    problems, number, signed, digests = [], first, 0, set[str]()
    for place, line in enumerate(found[first:], start=first + 1):
        problem = _problem(line, number + 1, previous, key)
        if problem:
            problems.append(f"line {place} {problem}")
        if line is not None and _linked(line):
            number, previous = line["number"], line["digest"]
            signed += bool(line["signature"])
            digests.add(previous)
        else:
            number += 1
    head = _json(path.with_name(HEAD))
    if head is None:
        problems.append(f"{HEAD} is missing, so lines that were removed at the end cannot be noticed")
    elif head["digest"] != previous:
        problems.append(f"the last line is not the one that {HEAD} names: lines were removed or added at the end")
    if noted and noted not in digests:
        problems.append("the line with the noted digest is not there: lines were removed, or it is another chain")
    return Verified(len(found), signed, first, tuple(problems), previous)


def _linked(line: Mapping[str, Any] | None) -> bool:
    """Whether a line has its place in a chain: a number and three texts."""
    return line is not None and type(line.get("number")) is int and all(isinstance(line.get(k), str) for k in CHAIN[1:])


def _problem(line: dict[str, Any] | None, number: int, previous: str, key: bytes | None) -> str:
    if line is None:
        return "is no line of receipts"
    if not _linked(line):
        return "is not linked to the line before it"
    if digest(line) != line["digest"]:
        return "was changed"
    if key is not None and not _signed(line, key):
        return "is not signed with the party's key"
    if line["previous"] != previous:
        place = f"number {line['number']} instead of {number}"
        return f"does not follow the line before it ({place}): lines were removed or moved"
    if line["number"] != number:
        return f"has number {line['number']} instead of {number}"
    return ""


def _signed(line: Mapping[str, Any], key: bytes) -> bool:
    try:
        return signed_by(key, bytes.fromhex(str(line["signature"])), str(line["digest"]).encode())
    except ValueError:
        return False


def parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _json(path: Path) -> dict[str, Any] | None:
    found = parsed(path.read_bytes()) if path.is_file() else None
    good = found is not None and isinstance(found.get("number"), int) and isinstance(found.get("digest"), str)
    return found if good else None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / f".{FILE}.lock", os.O_CREAT | os.O_RDWR, PRIVATE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
