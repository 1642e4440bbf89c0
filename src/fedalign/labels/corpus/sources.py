"""Divides a corpus on disk (files, folders and archives of any size) into pieces of some megabytes for many processes.

Large plain files are divided by byte position, so that one file keeps all cores busy. Compressed files are unpacked as
they are read. Small files are grouped. No segment is cut unless it is longer than `LONGEST`, so the counts do not
depend on how a corpus is divided.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, cast

from fedalign.errors import UserError
from fedalign.labels.corpus import documents
from fedalign.labels.corpus.documents import LARGEST, Kind, UnreadableError
from fedalign.labels.corpus.reading import (
    LINE_END,
    LONGEST,
    Item,
    Reading,
    blocks,
    broken,
    endings,
    layout,
    open_file,
    reason,
    unpacked,
)

PIECE = 2 << 20  # bytes handed to a worker at a time
MOST_ITEMS = 500  # small files handed to a worker at a time
KINDS: dict[str, Kind] = {
    ".jsonl": "lines of JSON",
    ".ndjson": "lines of JSON",
    ".json": "JSON",
    ".xml": "XML",
    ".nxml": "XML",
    ".parquet": "Parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    "": "text",
}
# files about a corpus rather than of it; one that is named explicitly is read
ABOUT = {"readme", "license", "licence", "copying", "changelog", "authors", "contributing", "citation", "notice"}
PACKED = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst"}
SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".tbz": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}


@dataclass(frozen=True)
class File:
    """One file of a corpus. `shown` is its name in messages."""

    path: Path
    shown: str
    size: int
    kind: Kind | None  # None: not text
    packing: str = ""
    archive: bool = False


@dataclass(frozen=True)
class Work:
    """What one worker does at a time: complete items, or a part of one that counts only if all its parts do."""

    items: tuple[Item, ...]
    read: int  # bytes on disk, for progress
    file: int | None = None  # results are kept separately until all of this file is read
    member: int = 0  # 0: complete items; else the member of the file that this is a part of


@dataclass(frozen=True)
class Failure:
    """A file, or one member of it, that could not be read while it was divided."""

    shown: str
    reason: str
    file: int | None = None
    member: int | None = None  # None: nothing of the file counts


@dataclass(frozen=True)
class FileEnd:
    """All of a file has been divided."""

    file: int


Step = Work | Failure | FileEnd


def kind_of(name: str) -> tuple[Kind | None, str, bool]:
    """Returns what a file's name shows: the kind of text, the compression, whether it is an archive."""
    name = name.lower()
    for short, long in SHORT.items():
        name = name.removesuffix(short) + long if name.endswith(short) else name
    suffix = PurePosixPath(name).suffix
    packing = PACKED.get(suffix, "")
    name = name.removesuffix(suffix) if packing else name
    suffix = PurePosixPath(name).suffix
    if suffix == ".tar":
        return None, packing, True
    return None if describes_corpus(name) else KINDS.get(suffix), packing, False


def describes_corpus(name: str) -> bool:
    """Returns whether a file is about the corpus, by its name: a README, a licence and the like."""
    return PurePosixPath(name.lower()).name.partition(".")[0] in ABOUT


def find(paths: Iterable[Path]) -> list[File]:
    """Returns the files of a corpus in a fixed order. Folders are searched, hidden files ignored; `-` is standard
    input."""
    found: list[File] = []
    for path in paths:
        if str(path) == "-":
            found.append(File(path, "standard input", 0, "text"))
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            hidden = [any(part.startswith(".") for part in p.relative_to(path).parts) for p in inside]
            found += [_file(p, str(p.relative_to(path.parent))) for p, h in zip(inside, hidden, strict=True) if not h]
        elif path.exists():
            known = _file(path, path.name)
            # a file that is named explicitly is read, whatever its suffix
            found.append(known if known.kind or known.archive else replace(known, kind="text"))
        else:
            raise UserError(f"there is no file or folder {path} to count; --corpus takes files, folders and archives")
    seen: set[Path] = set()
    for file in found:
        if (path := file.path.resolve()) in seen:
            raise UserError(f"{file.shown} is in the corpus twice; give each file once")
        seen.add(path)
    if not found:
        raise UserError("the corpus holds no file; --corpus takes files, folders and archives")
    return found


def _file(path: Path, shown: str) -> File:
    kind, packing, archive = kind_of(path.name)
    return File(path, printable(shown), path.stat().st_size, kind, packing, archive)


def printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


@dataclass
class WorkPlan:
    """The work of a corpus: one sequence for files that workers read themselves, one per file unpacked here."""

    files: list[File]
    reading: Reading
    ignored: Counter[str] = field(default_factory=Counter)  # files that are not text, by suffix

    @property
    def has_streams(self) -> bool:
        return any(map(self._is_stream, self.files))

    def sequences(self) -> Iterator[Iterator[Step]]:
        yield self._plain()
        for number, file in enumerate(self.files):
            if self._is_stream(file):
                yield self._stream(number, file)

    def _divisible(self, kind: Kind) -> bool:
        return kind == "lines of JSON" or (kind == "text" and self.reading.segment != "document")

    def _is_stream(self, file: File) -> bool:
        packed = bool(file.packing) and file.kind is not None and self._divisible(file.kind)
        return file.archive or str(file.path) == "-" or (packed and file.size > PIECE // 4)

    def _ignore(self, name: str) -> None:
        path = PurePosixPath(name)
        self.ignored[printable(path.name) if describes_corpus(name) else path.suffix.lower() or printable(name)] += 1

    def _plain(self) -> Iterator[Step]:
        pending: list[Item] = []
        size = 0
        for number, file in enumerate(self.files):
            if self._is_stream(file):
                continue
            if file.kind is None:
                self._ignore(file.path.name)
                continue
            whole = Item(file.shown, file.kind, path=file.path, packing=file.packing)
            if file.size > PIECE and not file.packing and (file.kind == "Parquet" or self._divisible(file.kind)):
                yield from self._parts(number, file)
            elif file.size > PIECE:
                yield Work((whole,), file.size)
            else:
                pending.append(whole)
                size += file.size
            if size >= PIECE or len(pending) >= MOST_ITEMS:
                yield Work(tuple(pending), size)
                pending, size = [], 0
        if pending:
            yield Work(tuple(pending), size)

    def _parts(self, number: int, file: File) -> Iterator[Step]:
        """Divides a large file by position: bytes of text, rows of Parquet."""
        assert file.kind is not None
        length, step = file.size, PIECE
        if file.kind == "Parquet":
            try:
                length = documents.parquet_rows(file.path)
            except UnreadableError as error:
                yield Failure(file.shown, str(error))
                return
            step = max(1, length * PIECE // file.size)
        for start in range(0, length, step):
            stop = min(start + step, length)
            part = Item(file.shown, file.kind, path=file.path, start=start, stop=stop)
            yield Work((part,), file.size * (stop - start) // length, number, 1)
        yield FileEnd(number)

    def _stream(self, number: int, file: File) -> Iterator[Step]:
        """Divides a file that is unpacked here, because it can only be read from its beginning."""
        try:
            with open_file(file.path) as raw:
                meter = Meter(raw)
                with unpacked(raw, file.packing) as stream:
                    if file.archive:
                        yield from self._members(number, file, stream, meter)
                    else:
                        assert file.kind is not None
                        yield from self._pieces(file.shown, file.kind, stream, meter, number, 1)
        except UnreadableError as error:
            yield Failure(file.shown, str(error), number)
        except broken() as error:
            yield Failure(file.shown, f"is damaged or cut short ({reason(error)})", number)
        yield FileEnd(number)

    def _pieces(
        self, shown: str, kind: Kind, stream: IO[bytes], meter: Meter, number: int, member: int
    ) -> Iterator[Work]:
        if kind == "text":
            head = stream.read(documents.HEAD)
            breaks = layout(head)
            parts = blocks(stream, PIECE, endings(self.reading, breaks), LONGEST, head)
        else:
            breaks, parts = "line", blocks(stream, PIECE, LINE_END, 0)
        for data in parts:
            yield Work((Item(shown, kind, data, breaks=breaks),), meter.advance(), number, member)

    def _members(self, number: int, file: File, stream: IO[bytes], meter: Meter) -> Iterator[Step]:
        pending: list[Item] = []
        size = 0
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member, entry in enumerate(archive, start=1):
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every entry in memory
                if not entry.isreg():
                    continue
                kind, packing, nested = kind_of(PurePosixPath(entry.name).name)
                if kind is None or nested or PurePosixPath(entry.name).name.startswith("."):
                    self._ignore(PurePosixPath(entry.name).name)
                    continue
                shown = f"{file.shown}: {printable(entry.name)}"
                content = cast("IO[bytes]", archive.extractfile(entry))
                if entry.size > PIECE and not packing and self._divisible(kind):
                    try:
                        yield from self._pieces(shown, kind, content, meter, number, member)
                    except UnreadableError as error:
                        yield Failure(shown, str(error), number, member)
                    continue
                if entry.size > LARGEST:
                    yield Failure(shown, f"is larger than {LARGEST >> 20} MB", number, member)
                    continue
                data = content.read()
                if len(data) < entry.size:
                    raise EOFError("a member ends early")
                pending.append(Item(shown, kind, data, packing=packing))
                size += len(data)
                if size >= PIECE or len(pending) >= MOST_ITEMS:
                    yield Work(tuple(pending), meter.advance(), number)
                    pending, size = [], 0
        if pending:
            yield Work(tuple(pending), meter.advance(), number)


class Meter:
    """Measures how far a file has been read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.before = raw, 0

    def advance(self) -> int:
        """Returns the bytes read since the last call."""
        now = self.raw.tell() if self.raw.seekable() else 0
        step, self.before = now - self.before, now
        return step
