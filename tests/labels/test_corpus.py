"""A corpus on disk: every format its owners publish, every way to divide it, everything that can be wrong with it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks import plain_counts
from fedalign.errors import UserError
from fedalign.labels.corpus import cooccurrence, counting, documents, reading, sources
from fedalign.labels.corpus.documents import UnreadableError
from fedalign.labels.corpus.reading import EMPTY_LINE, LINE_END, Item, Reading
from fedalign.labels.corpus.segments import Segment
from fedalign.labels.counts import Counts

NAMES = ["lying down", "walk", "café", "phone in pocket"]
ARTICLES = [
    "She lay awake. A café was open; she would walk there, her phone in a pocket.\nLying there, face down. Walk!",
    "Nothing of note.\nHe was lying down by the CAFÉ. The phone, the coat, the pocket: all his own.",
    "«Walk», said he.\n\nThey walk & talk < 5 minutes. Down, lying down\tagain.",
]
SEGMENTS: tuple[Segment, ...] = ("line", "sentence", "paragraph", "document")
StoredRun = tuple[int, list[int], list[tuple[int, int, int]]]


def numbers(counts: Counts) -> StoredRun:
    return counts.segments, counts.counts, counts.pairs


def plainly(segment: Segment, texts: Iterable[str], wrapped: bool | None = None) -> StoredRun:
    return plain_counts.count(cooccurrence.rule(NAMES, segment), [text.encode() for text in texts], wrapped)


def counted(segment: Segment, *paths: Path, **options: object) -> cooccurrence.Outcome:
    return cooccurrence.count(cooccurrence.rule(NAMES, segment), paths, **{"workers": 1, **options})  # type: ignore[arg-type]


def text_files(place: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    for i, text in enumerate(ARTICLES):
        (place / f"a{i}.txt{suffix}").write_bytes(pack(text.encode()))


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def two_frames(data: bytes) -> bytes:
    return zst(data[:40]) + zst(data[40:])


def lines() -> bytes:
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(ARTICLES)).encode()


def jats(text: str) -> str:
    """An article as PubMed Central publishes it: paragraphs in sections, references and formulas that are no prose."""
    body = "".join(
        f"<sec><title>walk</title><p>{line.replace('&', '&amp;').replace('<', '&lt;').replace('«', '<bold>«</bold>')}"
        "<tex-math>walk café</tex-math></p></sec>"
        for line in text.split("\n")
    )
    return (
        '<?xml version="1.0"?><!DOCTYPE article PUBLIC "-//NLM//DTD JATS//EN" "JATS-archivearticle1.dtd">'
        f'<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><title>walk walk</title></front>'
        f"<body>{body}</body><back><ref-list><ref><p>walk to the café</p></ref></ref-list></back></article>"
    )


def tar(mode: str, members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return held.getvalue()


def members() -> dict[str, bytes]:
    return {
        "set/one.txt": ARTICLES[0].encode(),
        "set/two.nxml": jats(ARTICLES[1]).encode(),
        "set/three.txt.gz": gzip.compress(ARTICLES[2].encode()),
        "set/picture.jpg": b"\xff\xd8",
        "set/.hidden.txt": b"walk",
    }


def write_articles(place: Path, kind: str) -> None:
    """The three articles in one of the formats."""
    if kind in ("txt", "gz", "bz2", "xz", "zst", "zst frames"):
        ways: dict[str, tuple[Callable[[bytes], bytes], str]] = {
            "txt": (bytes, ""),
            "gz": (gzip.compress, ".gz"),
            "bz2": (bz2.compress, ".bz2"),
            "xz": (lzma.compress, ".xz"),
            "zst": (zst, ".zst"),
            "zst frames": (two_frames, ".zst"),
        }
        text_files(place, *ways[kind])
    elif kind == "jsonl":
        (place / "a.jsonl").write_bytes(lines())
    elif kind == "jsonl.gz":
        (place / "a.jsonl.gz").write_bytes(gzip.compress(lines()))
    elif kind == "jsonl.zst":
        (place / "a.jsonl.zst").write_bytes(zst(lines()))
    elif kind == "json list":
        (place / "a.json").write_text(json.dumps([{"maintext": text, "title": "walk"} for text in ARTICLES], indent=1))
    elif kind == "json objects":  # CC-News: a file an article
        for i, text in enumerate(ARTICLES):
            (place / f"a{i}.json").write_text(json.dumps({"date": None, "maintext": text}))
    elif kind == "parquet":
        table = {"date": [1, 2, 3, 4], "text": [ARTICLES[0], None, *ARTICLES[1:]]}
        pl.DataFrame(table).write_parquet(place / "a.parquet")
    elif kind == "jats":
        for i, text in enumerate(ARTICLES):
            (place / f"PMC{i}.nxml").write_text(jats(text))
    elif kind == "tar":
        (place / "a.tar").write_bytes(tar("w", members()))
    elif kind == "tgz":
        (place / "a.tgz").write_bytes(tar("w:gz", members()))
    elif kind == "tar.xz":
        (place / "a.tar.xz").write_bytes(tar("w:xz", members()))
    elif kind == "tar.bz2":
        (place / "a.tar.bz2").write_bytes(tar("w:bz2", members()))
    elif kind == "tar.zst":
        (place / "a.tar.zst").write_bytes(zst(tar("w", members())))


FORMATS = (
    *("txt", "gz", "bz2", "xz", "zst", "zst frames", "jsonl", "jsonl.gz", "jsonl.zst", "json list", "json objects"),
    *("parquet", "jats", "tar", "tgz", "tar.xz", "tar.bz2", "tar.zst"),
)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_holds_the_same_counts(tmp_path: Path, kind: str) -> None:
    write_articles(tmp_path, kind)
    for segment in SEGMENTS:
        found = counted(segment, tmp_path)
        assert numbers(found.counts) == plainly(segment, ARTICLES), segment
        assert found.unreadable == []
    assert found.counts.corpora[0].files in (1, 3)


@pytest.mark.slow
def test_all_formats_in_one_folder_on_many_processes_are_the_sum(tmp_path: Path) -> None:
    for kind in FORMATS:
        (tmp_path / kind.replace(" ", "_")).mkdir()
        write_articles(tmp_path / kind.replace(" ", "_"), kind)
    found = counted("sentence", tmp_path, workers=3)
    assert numbers(found.counts) == plainly("sentence", ARTICLES * len(FORMATS))
    assert found.ignored == {".jpg": 5, ".txt": 5}  # pictures, and hidden files of the five archives
    assert found.counts.model_dump(exclude={"corpora"}) == counted("sentence", tmp_path).counts.model_dump(
        exclude={"corpora"}
    )


PIECES = st.sampled_from(
    ["lying", "down", "Walk", "walk", "café", "CAFÉ", "cafe\u0301", "phone", "pocket", "Mr", "é", "İ"]
    + [" "] * 6
    + [". ", "! ", '." ', "\n", "\n\n", "\r\n", "\r\n\r\n", "—", "’", " \n \n", "\x1e"]
)
TEXTS = st.lists(PIECES, max_size=80).map("".join)


@given(
    TEXTS, st.sampled_from(SEGMENTS), st.integers(9, 300), st.sampled_from(["a.txt", "a.txt.gz", "a.jsonl", "a.tar"])
)
@example("walk\n\nlying\ndown " * 12, "paragraph", 40, "a.txt")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_do_not_depend_on_how_a_corpus_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, segment: Segment, piece: int, name: str
) -> None:
    """Pieces of a few bytes instead of megabytes, of one plain file, one packed one, one of many lines, one archive."""
    data = text.encode()
    texts = [text]
    if name == "a.jsonl":
        texts = text.split("\r\n")
        data = "\n".join(json.dumps({"text": one}) for one in texts).encode()
    elif name == "a.tar":
        texts = text.split("\r\n")
        data = tar("w", {f"{i}.txt": one.encode() for i, one in enumerate(texts)})
    elif name == "a.txt.gz":
        data = gzip.compress(data)
    path = tmp_path / name
    path.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "PIECE", piece)
        for module in (reading, counting):
            patch.setattr(module, "BLOCK", max(4, piece // 3))
        expected = plainly(segment, texts, None if name != "a.jsonl" else False)
        if not any(expected[1]):
            with pytest.raises(UserError, match=r"none of the 4 names occurs|could be read"):
                counted(segment, path)
        else:
            assert numbers(counted(segment, path).counts) == expected


@given(st.binary(max_size=400), st.integers(1, 60), st.sampled_from([LINE_END, EMPTY_LINE, ()]), st.integers(8, 80))
@settings(max_examples=300)
def test_pieces_of_a_file_are_the_file(data: bytes, piece: int, ends: tuple[bytes, ...], longest: int) -> None:
    """Nothing is lost or read twice, whether a stream is cut or a file divided by place."""
    assert b"".join(reading.blocks(io.BytesIO(data), piece, ends, longest)) == data
    parts = []
    for start in range(0, len(data), piece):
        item = Item("x", "text", start=start, stop=min(start + piece, len(data)))
        parts.append(reading._between(io.BytesIO(data), item, ends, longest).read())
    assert b"".join(parts) == data


def test_a_segment_without_end_is_cut_at_a_space_and_still_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand words without a line's end, cut at 4,000 bytes: every word is still whole."""
    monkeypatch.setattr(sources, "LONGEST", 4000)
    monkeypatch.setattr(reading, "LONGEST", 4000)
    monkeypatch.setattr(reading, "BLOCK", 1000)
    (tmp_path / "long.txt").write_text("walk " * 10_000)
    found = counted("document", tmp_path).counts
    assert found.segments == found.counts[1] == 13  # 50,000 / 4,000, rounded up
    assert found.corpora[0].bytes == 50_000


def test_a_wrapped_text_and_one_with_a_line_a_paragraph_are_told_apart() -> None:
    wrapped = "It was a fine day and the sun\nshone upon the old house, where\nnobody had lived for years.\n\n" * 8
    assert documents.is_wrapped(wrapped.encode())
    assert documents.is_wrapped(wrapped.replace("\n", "\r\n").encode())
    assert not documents.is_wrapped(("One sentence stands here.\n" * 30).encode())
    assert not documents.is_wrapped(("walk\n" * 3).encode())
    assert not documents.is_wrapped(("and so " * 40 + "\n").encode() * 20)  # lines too long to be wrapped


def test_bookcorpus_is_a_sentence_a_line(tmp_path: Path) -> None:
    """As published: lower case, tokens apart, so that only line ends tell sentences."""
    (tmp_path / "books_large_p1.txt").write_text(
        "he was lying on the floor .\nface down .\nlying down , he slept .\n" * 5
    )
    found = counted("sentence", tmp_path).counts
    assert (found.segments, found.counts[0]) == (15, 5)


def test_the_text_field_is_found_or_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"said": "walk", "body": "the café"}\n')
    assert counted("line", tmp_path).counts.counts == [0, 0, 1, 0]
    assert counted("line", tmp_path, field="said").counts.counts == [0, 1, 0, 0]
    with pytest.raises(UserError, match=r"a\.jsonl holds no 'speech', only said, body; give --field"):
        counted("line", tmp_path, field="speech")


def test_text_in_another_encoding_is_read_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("the café, a walk".encode("latin-1"))
    assert counted("line", tmp_path, encoding="latin-1").counts.counts == [0, 1, 1, 0]
    with pytest.raises(UserError, match=r"a\.txt is not utf-8 \(byte 0xe9\); another --encoding may fit"):
        counted("line", tmp_path)
    for wrong, message in (("utf-16", "does not keep ASCII unchanged"), ("klingon", "unknown encoding 'klingon'")):
        with pytest.raises(UserError, match=message):
            counted("line", tmp_path, encoding=wrong)


def broken_files() -> dict[str, tuple[bytes, str]]:
    """Files that cannot be read, and what is said about each."""
    big = gzip.compress(b"walk down the lane\n" * 50)
    return {
        "cut.txt.gz": (big[: len(big) // 2], "is damaged or cut short"),
        "no.txt.bz2": (b"not packed at all", "is damaged or cut short"),
        "no.txt.xz": (b"not packed at all", "is damaged or cut short"),
        "no.txt.zst": (b"not packed at all", "is damaged or cut short"),
        "no.tar": (b"no archive" * 100, "is damaged or cut short"),
        "cut.tgz": (tar("w:gz", {"a.txt": bytes(range(97, 123)) * 4000})[:-40], "is damaged or cut short"),
        "latin.txt": (b"caf\xe9 walk", "is not utf-8 (byte 0xe9); another --encoding may fit"),
        "half.jsonl": (b'{"text": "walk"}\n{"text": "wa', "has a line that is not JSON"),
        "number.json": (b'{"text": 5}', "holds int where a text should be; give --field"),
        "half.json": (b'[{"text": "walk"}, {"te', "is not JSON"),
        "deep.json": (b'{"text":' * 100_000, "is not JSON"),
        "other.json": (b'{"title": "walk"}', "holds no text or maintext or body or content or abstract, only title"),
        "half.xml": (b"<article><body><p>walk</p>", "is not XML"),
        "bomb.xml": (
            b'<!DOCTYPE a [<!ENTITY x "walk"><!ENTITY y "&x;&x;">]><article><p>&y;</p></article>',
            "declares the entity 'x'",
        ),
        "no.parquet": (b"PAR1 nothing", "is not Parquet"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_be_read_is_named_and_counts_nothing(tmp_path: Path, workers: int) -> None:
    bad = broken_files()
    for name, (data, _) in bad.items():
        (tmp_path / name).write_bytes(data)
    pl.DataFrame({"text": [1, 2]}).write_parquet(tmp_path / "numbers.parquet")
    (tmp_path / "good.txt").write_text("a walk to the café")
    found = counted("line", tmp_path, workers=workers)
    said = dict(found.unreadable)
    shown = {f"{tmp_path.name}/{name}": why for name, (_, why) in bad.items()}
    shown[f"{tmp_path.name}/numbers.parquet"] = "its column 'text' holds Int64, not text; give --field"
    assert set(said) == set(shown)
    for name, why in shown.items():
        assert why in said[name], name
        assert "\n" not in said[name]
    assert numbers(found.counts) == (1, [0, 1, 1, 0], [(1, 2, 1)])
    assert found.counts.corpora[0].files == 1
    assert found.counts.corpora[0].skipped == len(shown)


def test_strict_stops_at_the_first_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("walk")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for workers in (1, 2):
        with pytest.raises(UserError, match=r"latin\.txt is not utf-8 .*; leave out --strict to skip such files"):
            counted("line", tmp_path, workers=workers, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.tar"])
def test_a_large_file_counts_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Twenty pieces of which the last is broken: the nineteen that were counted are forgotten."""
    monkeypatch.setattr(sources, "PIECE", 1000)
    monkeypatch.setattr(reading, "BLOCK", 500)
    plain = b"".join(b"walk number %d\n" % i for i in range(1300)) + b"caf\xe9\n"
    data = {
        "a.txt": plain,
        "a.txt.gz": gzip.compress(plain),
        "a.jsonl": b'{"text": "walk"}\n' * 1200 + b"{\n",
        "a.tar": tar("w", {"bad.txt": plain, "fine.txt": b"walk to the caf\xc3\xa9\n" * 100}),
    }[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "z.txt").write_text("walk")
    for workers in (1, 2):
        monkeypatch.setattr(cooccurrence, "SMALL", 0)
        found = counted("line", tmp_path, workers=workers)
        assert [shown for shown, _ in found.unreadable] == [
            f"{tmp_path.name}/{name}" + (": bad.txt" if name == "a.tar" else "")
        ]
        assert found.counts.counts[1] == (101 if name == "a.tar" else 1)
        assert found.counts.corpora[0].files == (2 if name == "a.tar" else 1)


def test_a_file_that_may_not_be_opened_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("walk")
    (tmp_path / "locked.txt").write_text("walk")
    true_open = Path.open

    def opened(path: Path, *more: object) -> object:
        if path.name == "locked.txt":
            raise PermissionError(13, "Permission denied")
        return true_open(path, *more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", opened)
    found = counted("line", tmp_path)
    assert found.unreadable == [(f"{tmp_path.name}/locked.txt", "cannot be opened (Permission denied)")]
    assert found.counts.counts[1] == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", ("text", "", False)),
        ("A.TXT.GZ", ("text", "gz", False)),
        ("oa_comm_xml.PMC000.tar.gz", (None, "gz", True)),
        ("b.tzst", (None, "zst", True)),
        ("c.jsonl.xz", ("lines of JSON", "xz", False)),
        ("d.nxml", ("XML", "", False)),
        ("README", (None, "", False)),  # about the corpus, not a part of it
        ("e.pdf", (None, "", False)),
    ],
)
def test_what_a_files_name_says(name: str, expected: tuple[str | None, str, bool]) -> None:
    assert sources.kind_of(name) == expected


def test_a_corpus_is_found_once_and_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".git/x.txt", "sub/c.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("walk")
    (tmp_path / "empty").mkdir()
    assert [file.path.name for file in sources.find([tmp_path])] == ["a.txt", "b.txt", "c.pdf"]
    assert sources.find([tmp_path / "sub" / "c.pdf"])[0].kind == "text"  # what is named outright is read
    for paths, message in (
        ([tmp_path / "none"], "there is no file or folder"),
        ([tmp_path, tmp_path / "a.txt"], r"a\.txt is in the corpus twice"),
        ([tmp_path / "empty"], "holds no file"),
    ):
        with pytest.raises(UserError, match=message):
            sources.find(paths)


def test_a_value_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LARGEST", 1 << 17)
    with pytest.raises(UnreadableError, match="holds a value of more than"):
        list(documents.from_json(io.BytesIO(b'{"text": "' + b"walk " * 100_000), ""))
    monkeypatch.setattr(reading, "LARGEST", 1 << 17)
    endless = Item("x", "lines of JSON", data=b'{"text": "' + b"walk " * 600_000)
    with pytest.raises(UnreadableError, match="holds a line of more than"):
        list(reading.texts(endless, Reading("line")))
