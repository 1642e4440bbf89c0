"""Reads pieces of a corpus as blocks of UTF-8: opens and unpacks files, and cuts only where a segment ends."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from fedalign.errors import UserError
from fedalign.labels.corpus import documents
from fedalign.labels.corpus.documents import LARGEST, Kind, UnreadableError
from fedalign.labels.corpus.segments import Breaks, Segment
from fedalign.labels.corpus.tokens import RECORD

BLOCK = 1 << 20  # bytes scanned at a time
LONGEST = 4 << 20  # bytes, longer than a long novel; a longer segment is cut
LINE_END = (b"\n",)
EMPTY_LINE = (b"\n\n", b"\n\r\n")
BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class Reading:
    """How a corpus is read."""

    segment: Segment
    encoding: str = "utf-8"  # of plain text
    field: str = ""  # of JSON and Parquet; empty: the usual names


@dataclass(frozen=True)
class Item:
    """A document or several, or a part of one: in memory, or to be read from a file."""

    shown: str  # in messages
    kind: Kind
    data: bytes | None = None  # None: in the file at `path`
    path: Path | None = None
    packing: str = ""
    start: int = 0
    stop: int = 0  # bytes of text, rows of Parquet; 0: all
    breaks: Breaks | None = None  # None: decided from the text


def texts(item: Item, reading: Reading) -> Iterator[tuple[bytes, Breaks]]:
    """Yields blocks of UTF-8 with RECORD between documents, and what ends a paragraph in them."""
    try:
        if item.kind == "text":
            yield from _running_text(item, reading)
        else:
            for block in _grouped(_documents(item, reading)):
                yield block, "line"
    except broken() as error:
        raise UnreadableError(f"is damaged or cut short ({reason(error)})") from error


def _running_text(item: Item, reading: Reading) -> Iterator[tuple[bytes, Breaks]]:
    with opened(item) as stream:
        head = stream.read(documents.HEAD)
        breaks = item.breaks or layout(head)
        ends = endings(reading, breaks)
        if item.stop:  # a part of a large file
            head, stream = b"", _between(stream, item, ends, LONGEST)
        for block in blocks(stream, BLOCK, ends, LONGEST, head):
            yield documents.utf8(block, reading.encoding).replace(RECORD, b" "), breaks


def _documents(item: Item, reading: Reading) -> Iterator[bytes]:
    if item.kind == "Parquet" and item.path is not None and not item.packing:
        stop = item.stop or documents.parquet_rows(item.path)
        yield from documents.from_parquet(item.path, reading.field, item.start, stop)
        return
    with opened(item) as stream:
        if item.kind == "JSON":
            yield from documents.from_json(stream, reading.field)
        elif item.kind == "lines of JSON":
            lines = _between(stream, item, LINE_END, LARGEST) if item.stop else stream
            for block in blocks(lines, BLOCK, LINE_END, 0):
                yield from documents.from_lines(block, reading.field)
        else:
            data = _whole(stream)
            if item.kind == "XML":
                yield from documents.from_xml(data)
            else:
                yield from documents.from_parquet(io.BytesIO(data), reading.field, 0, sys.maxsize)


def _whole(stream: IO[bytes]) -> bytes:
    """All bytes, read in blocks: a single call would first allocate as much as may come."""
    found = bytearray()
    while more := stream.read(BLOCK):
        found += more
        if len(found) > LARGEST:
            raise UnreadableError(f"is larger than {LARGEST >> 20} MB")
    return bytes(found)


def _grouped(found: Iterable[bytes]) -> Iterator[bytes]:
    """Yields documents joined into blocks of about `BLOCK` bytes."""
    pending: list[bytes] = []
    size = 0
    for document in found:
        document = document.replace(RECORD, b" ")
        pending += [document] if len(document) <= LONGEST else blocks(io.BytesIO(document), BLOCK, (), LONGEST)
        size += len(document)
        if size >= BLOCK:
            yield RECORD.join(pending)
            pending, size = [], 0
    if pending:
        yield RECORD.join(pending)


def layout(head: bytes) -> Breaks:
    return "blank" if documents.is_wrapped(head) else "line"


def endings(reading: Reading, breaks: Breaks) -> tuple[bytes, ...]:
    """Returns the byte sequences after which running text may be cut, because a segment has ended."""
    if reading.segment == "document":
        return ()
    return EMPTY_LINE if breaks == "blank" and reading.segment != "line" else LINE_END


def blocks(stream: IO[bytes], size: int, ends: tuple[bytes, ...], longest: int, first: bytes = b"") -> Iterator[bytes]:
    """Yields a stream in blocks of about `size` bytes that end where a segment ends. A segment of more than `longest`
    bytes is cut at a space; 0: it must not be cut."""
    rest, ended = first, False
    while not ended:
        data = stream.read(max(size - len(rest), BLOCK))
        rest, ended = rest + data, not data
        at = -1 if ended else max((rest.rfind(end) + len(end) for end in ends if end in rest), default=-1)
        if at < 0 and longest and len(rest) >= longest:
            at = _space(rest[:longest]) or longest
        if at < 0 and len(rest) > LARGEST:
            raise UnreadableError(f"holds a line of more than {LARGEST >> 20} MB")
        if at > 0:
            yield rest[:at]
            rest, ended = rest[at:], False
    if rest:
        yield rest


def _space(data: bytes) -> int:
    """Returns the position after the last space; without a space, that of the last character."""
    at = max(data.rfind(b" "), data.rfind(b"\n")) + 1
    if not at:
        at = len(data) - 1
        while at > len(data) - 4 and data[at] & 0b1100_0000 == 0b1000_0000:  # inside a character of several bytes
            at -= 1
    return at


def cut(stream: IO[bytes], place: int, ends: tuple[bytes, ...], longest: int) -> int:
    """Returns the first position from `place` on where a segment has ended, the same for both neighbours."""
    if place == 0:
        return 0
    stream.seek(place)
    data, size = b"", 1 << 14
    while len(data) < longest and (more := stream.read(size)):
        data, size = data + more, size * 2
        found = [data.find(end) + len(end) for end in ends if end in data]
        if found:
            return place + min(found)
    if len(data) < longest:
        return place + len(data)
    return place + _space(data[:longest])


def _between(stream: IO[bytes], item: Item, ends: tuple[bytes, ...], longest: int) -> IO[bytes]:
    start, stop = (cut(stream, place, ends, longest) for place in (item.start, item.stop))
    stream.seek(start)
    return io.BytesIO(stream.read(stop - start))


@contextmanager
def opened(item: Item) -> Iterator[IO[bytes]]:
    """Opens the item's text, unpacked. Closes the file below it too, which decompressors leave open."""
    assert item.data is not None or item.path is not None
    with (
        open_file(cast("Path", item.path)) if item.data is None else io.BytesIO(item.data) as raw,
        unpacked(raw, item.packing) as stream,
    ):
        yield stream


def open_file(path: Path) -> IO[bytes]:
    try:
        return sys.stdin.buffer if str(path) == "-" else path.open("rb")
    except OSError as error:
        raise UnreadableError(f"cannot be opened ({error.strerror or error})") from error


def unpacked(raw: IO[bytes], packing: str) -> IO[bytes]:
    if packing == "gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if packing == "bz2":
        return bz2.BZ2File(raw)
    if packing == "xz":
        return lzma.LZMAFile(raw)
    return _zstandard(raw) if packing == "zst" else raw


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError("reading .zst needs the package zstandard; run: pip install 'fedalign[corpus]'") from error
    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def broken() -> tuple[type[Exception], ...]:
    """Returns the exceptions that decompressors raise for a damaged file."""
    zstandard = sys.modules.get("zstandard")
    return BROKEN if zstandard is None else (*BROKEN, zstandard.ZstdError)


def reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
