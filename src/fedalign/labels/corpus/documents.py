"""Reads the text inside files: JSON and JSON lines, JATS XML, Parquet columns, plain text in any encoding.

Documents are returned as UTF-8. Files come from elsewhere, so nothing in them is trusted: no entity is expanded,
nothing is fetched, no stated size is relied on.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal
from xml.parsers import expat

from fedalign.errors import UserError

Kind = Literal["text", "lines of JSON", "JSON", "XML", "Parquet"]

LARGEST = 256 << 20  # bytes of a document that must be held whole
HEAD = 1 << 16  # bytes from which the layout of a text is decided
FIELDS = ("text", "maintext", "body", "content", "abstract")  # where articles are usually kept
LINE_ENDS = re.compile(rb"(\S)[ \t]*\n[\"'(]?([A-Za-z])")  # a line's last character, and the next line's first letter
BETWEEN = re.compile(r"[\[\], \t\r\n]*")  # between the objects of a list
WIDTH = 120  # bytes; wrapped texts rarely have longer lines
WRAPPED = 0.2  # lines are wrapped if a larger share of line ends is inside a sentence
NO_PROSE = {"ref-list", "tex-math", "math", "object-id"}  # elements of JATS


class UnreadableError(Exception):
    """A file, or a member of an archive, cannot be read. The message gives the reason."""


def check_encoding(name: str) -> str:
    """Returns the encoding's canonical name. It must keep ASCII unchanged: lines are split before decoding."""
    try:
        known = codecs.lookup(name).name
        if bytes(range(128)).decode(known) != "".join(map(chr, range(128))):
            raise UserError(f"encoding {name!r} does not keep ASCII unchanged; convert the corpus to UTF-8 first")
    except (LookupError, UnicodeError) as error:
        raise UserError(f"unknown encoding {name!r}; give one such as utf-8, latin-1 or cp1252") from error
    return known


def utf8(data: bytes, encoding: str) -> bytes:
    """Returns the text as UTF-8, checked."""
    try:
        if data.isascii():
            return data
        text = data.decode(encoding)
        return data if encoding == "utf-8" else text.encode()
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"is not {encoding} (byte 0x{data[error.start]:02x}); another --encoding may fit"
        ) from error


def is_wrapped(head: bytes) -> bool:
    """Returns whether lines are wrapped at a width, so that only an empty line ends a paragraph. A lower-case text with
    one sentence per line, such as BookCorpus, is not wrapped."""
    head = head[:HEAD].replace(b"\r", b"")
    ends = LINE_ENDS.findall(head)
    widths = sorted(map(len, head.split(b"\n")))
    narrow = widths[len(widths) * 19 // 20] <= WIDTH
    inside = sum(first.islower() and last not in b".!?\"'`" for last, first in ends)
    return narrow and len(ends) >= 8 and inside > WRAPPED * len(ends)


def field_of(known: Iterable[str], field: str) -> str:
    """Returns the key or column that holds the text."""
    known = list(known)
    for name in (field,) if field else FIELDS:
        if name in known:
            return name
    wanted = repr(field) if field else " or ".join(FIELDS)
    raise UnreadableError(f"holds no {wanted}, only {', '.join(map(str, known[:6])) or 'nothing'}; give --field")


def from_object(thing: Any, field: str) -> str:
    """Returns the text of one JSON value: a string, or the field of an object; empty if it is null."""
    if isinstance(thing, dict):
        thing = thing[field_of(thing, field)]
    if isinstance(thing, list) and all(isinstance(part, str) for part in thing):
        thing = "\n".join(thing)
    if thing is None or isinstance(thing, str):
        return thing or ""
    raise UnreadableError(f"holds {type(thing).__name__} where a text should be; give --field")


def from_lines(block: bytes, field: str) -> Iterator[bytes]:
    """Yields the documents of complete lines of JSON."""
    for line in block.split(b"\n"):
        if line.strip():
            yield encoded(from_object(parsed(line), field))


def from_json(stream: IO[bytes], field: str) -> Iterator[bytes]:
    """Yields the documents of one object, a list of objects, or a sequence of objects."""
    decoder, decode = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8-sig")()
    text, at, step, ended = "", 0, 1 << 16, False
    while True:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        try:
            thing, end = decoder.raw_decode(text, at)
            whole = end < len(text) or ended  # a number at the end may be incomplete
        except (json.JSONDecodeError, RecursionError) as error:
            whole = False
            if ended and at < len(text):
                raise UnreadableError(f"is not JSON ({_first(error)})") from error
        if whole:
            yield encoded(from_object(thing, field))
            at, step = end, 1 << 16
        elif ended:
            return
        elif len(text) - at > LARGEST:
            raise UnreadableError(f"holds a value of more than {LARGEST >> 20} MB")
        else:
            more = stream.read(step)
            ended, step = not more, step * 2
            try:
                text, at = text[at:] + decode.decode(more, ended), 0
            except UnicodeDecodeError as error:
                raise UnreadableError("is not UTF-8, as JSON must be") from error


def parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"has a line that is not JSON ({_first(error)})") from error


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # JSON can hold half of a surrogate pair


def from_xml(data: bytes) -> Iterator[bytes]:
    """Yields the articles of JATS XML with one paragraph per line. Files that declare entities are refused."""
    reader = _Jats()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = reader.refuse
    parser.SkippedEntityHandler = lambda name, parameter: reader.text(" ")
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UnreadableError(f"is not XML ({_first(error)})") from error
    yield from reader.articles()


class _Jats:
    """Collects the text of each <p>; a <p> inside another is a paragraph of its own."""

    def __init__(self) -> None:
        self.done: list[list[str]] = [[]]  # articles of paragraphs
        self.open: list[list[str]] = []
        self.hidden = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        if self.hidden or name in NO_PROSE:
            self.hidden += 1
        elif name == "p":
            self.open.append([])
        elif name == "article":
            self.done.append([])

    def end(self, name: str) -> None:
        if self.hidden:
            self.hidden -= 1
        elif name.rpartition(" ")[2] == "p" and self.open:
            self.done[-1].append(" ".join("".join(self.open.pop()).split()))

    def text(self, data: str) -> None:
        if self.open and not self.hidden:
            self.open[-1].append(data)

    def refuse(self, name: str, *_: object) -> None:
        raise UnreadableError(f"declares the entity {name!r}; files with entities of their own are not read")

    def articles(self) -> Iterator[bytes]:
        for paragraphs in self.done:
            if any(paragraphs):
                yield encoded("\n".join(paragraphs))


def from_parquet(path: Path | IO[bytes], field: str, start: int, stop: int) -> Iterator[bytes]:
    """Yields the documents of the text column, rows start to stop."""
    import polars

    try:
        frame = polars.scan_parquet(path)
        column = field_of(frame.collect_schema().names(), field)
        values = frame.select(column).slice(start, stop - start).collect().to_series()
    except (polars.exceptions.PolarsError, OSError) as error:
        raise UnreadableError(f"is not Parquet ({_first(error)})") from error
    if values.dtype != polars.String:
        raise UnreadableError(f"its column {column!r} holds {values.dtype}, not text; give --field")
    yield from (encoded(text) for text in values if text)


def parquet_rows(path: Path) -> int:
    import polars

    try:
        return int(polars.scan_parquet(path).select(polars.len()).collect().item())
    except (polars.exceptions.PolarsError, OSError) as error:
        raise UnreadableError(f"is not Parquet ({_first(error)})") from error


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
