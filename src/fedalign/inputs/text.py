"""Documents as token ids: a counted vocabulary, or hashed words that need no agreement."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedalign.errors import UserError
from fedalign.inputs import words
from fedalign.inputs.frames import frame_columns, is_missing
from fedalign.inputs.input_kind import InputKind, Reader
from fedalign.inputs.padding import padded
from fedalign.inputs.profile import FilesProfile, Guess
from fedalign.inputs.raw import Raw
from fedalign.inputs.shape import TOKENS, Shape
from fedalign.types import Sequences

if TYPE_CHECKING:
    from fedalign.ingest.formats import Batch, Table
    from fedalign.ingest.offer import Offer

MAX_BUCKETS, MAX_TOKENS = 1 << 20, 1_000_000  # a few bytes of text may ask for them, and each takes memory
UNKNOWN = 0  # the token of every word outside the vocabulary


@dataclass(frozen=True)
class TextColumns:
    """Where documents stand."""

    text: str = ""  # column with one document per row


@dataclass(frozen=True)
class TextSettings:
    """How documents become tokens."""

    vocabulary: Literal["hashed", "counted"] = "hashed"
    words: Literal["words", "stems", "none"] = "words"
    buckets: Annotated[int, Field(ge=2, le=MAX_BUCKETS)] = 4096  # hash values
    min_count: Annotated[int, Field(ge=1)] = 3  # uses at a party before a word leaves it
    min_clients: Annotated[int, Field(ge=1)] = 2  # parties that must report a word
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1000

    def prepare(self, vocabulary: Sequence[str] = ()) -> Text:
        """Text prepared with these settings."""
        buckets = self.buckets if self.vocabulary == "hashed" else 0
        return Text(preparation=self.words, vocabulary=tuple(vocabulary), buckets=buckets, max_tokens=self.max_tokens)


class TextReader(Reader):
    """Reads one document per row."""

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        return np.array(batch.text(self.columns[0]), dtype=object), ()  # (n,)


class Text(InputKind):
    """Documents as token ids."""

    kind: Literal["text"] = "text"
    preparation: Literal["words", "stems", "none"] = "words"  # stems: as the published R8 texts; none: split at spaces
    vocabulary: tuple[str, ...] = ()  # empty: words are hashed
    buckets: Annotated[int, Field(ge=0, le=MAX_BUCKETS)] = 0  # number of hash values
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1000
    left_out: tuple[str, ...] = ()  # words that are ignored before the others are counted

    feature_map: ClassVar[str] = "tfidf"
    trial_is_prepared: ClassVar[bool] = True
    in_pieces: ClassVar[bool] = True
    order: ClassVar[int] = 20
    rows_called: ClassVar[str] = "texts"
    graph_rows: ClassVar[str] = "`rows` (n, T) int64 tokens as `labels.json` describes, `lengths` (n,)"
    Columns: ClassVar[type] = TextColumns
    Settings: ClassVar[type] = TextSettings
    about: ClassVar[dict[str, str]] = {"text": "the column with the document"}

    # --- raw rows -------------------------------------------------------------------------------------------------

    @classmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        if not files.documents:
            return None
        longest = max(files.documents, key=files.words)
        return Guess({"text": longest}, {"text": f"{files.words(longest):.0f} words per row"})

    @classmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        return TextReader([columns.text])

    @classmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        return all(isinstance(row, str) for row in rows)

    @classmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        texts = [row.strip() for row in rows]
        return np.array(["" if text in missing else text for text in texts], dtype=object), ()

    # --- what parties agree on ------------------------------------------------------------------------------------

    @classmethod
    def offer(cls, x: Raw, columns: tuple[str, ...], settings: TextSettings) -> dict[str, Any]:
        """Nothing for hashed words; else the words that the party uses often enough, with their counts."""
        return cls.offer_in_pieces([x], columns, settings)

    @classmethod
    def offer_in_pieces(cls, pieces: Iterable[Raw], columns: tuple[str, ...], settings: TextSettings) -> dict[str, Any]:
        if settings.vocabulary == "hashed":
            return {}
        text = settings.prepare()
        counts: Counter[str] = Counter()
        for x in pieces:
            assert isinstance(x, np.ndarray)
            for document in x.tolist():
                counts.update(text.tokens(document))
        return {"words": {word: count for word, count in sorted(counts.items()) if count >= settings.min_count}}

    @classmethod
    def exact_report(cls, settings: TextSettings) -> str:
        return "" if settings.vocabulary == "hashed" else "its words; set dataset.vocabulary = 'hashed'"

    @classmethod
    def describe_offer(cls, offer: Offer) -> list[str]:
        if offer.words is None:
            return ["no word: words are hashed on this machine"]
        return [f"{len(offer.words):,} words with their counts, each used often enough (dataset.min_count)"]

    @classmethod
    def agree(cls, offers: Sequence[Offer], settings: TextSettings) -> Text:
        vocabulary: tuple[str, ...] = ()
        if settings.vocabulary == "counted":
            vocabulary = shared_vocabulary([one.words or {} for one in offers], settings.min_clients)
            if not vocabulary:
                raise UserError(
                    f"no word is used {settings.min_count} times by each of {settings.min_clients} parties; lower "
                    "dataset.min_count or dataset.min_clients, or set dataset.vocabulary = 'hashed'"
                )
        return settings.prepare(vocabulary)

    @classmethod
    def for_one_party(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**options, "min_clients": 1}

    # --- tensors --------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return Shape(TOKENS, (1 + (self.buckets or len(self.vocabulary)),))

    @property
    def max_steps(self) -> int | None:
        return self.max_tokens

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.vocabulary, start=UNKNOWN + 1)}

    def tokens(self, text: str) -> list[str]:
        """The words of a document that are read."""
        if self.preparation == "stems":
            found = words.prepared(text)
        else:
            found = words.split(text) if self.preparation == "words" else text.split()
        if self.left_out:
            found = [word for word in found if word not in self.left_out]
        return found[: self.max_tokens]

    def rows(self, x: Iterable[str], columns: tuple[str, ...] = (), file: str = "") -> Sequences:
        return self.encode(self.tokens(text) for text in x)

    def encode(self, documents: Iterable[Sequence[str]]) -> Sequences:
        """Token ids of documents that are already split into words."""
        flat: list[int] = []
        offsets = [0]
        ids = self._ids
        for document in documents:
            document = document[: self.max_tokens]
            if self.buckets:
                flat.extend(1 + zlib.crc32(word.encode()) % self.buckets for word in document)
            else:
                flat.extend(ids.get(word, UNKNOWN) for word in document)
            offsets.append(len(flat))
        return Sequences(torch.tensor(flat, dtype=torch.int32), torch.tensor(offsets))

    def prepare(self, rows: Any) -> Sequences:
        return self.rows(self.texts(rows))

    @staticmethod
    def texts(rows: Any) -> list[str]:
        """Documents given for prediction; raises UserError if they are none."""
        if len(frame_columns(rows)) == 1:
            rows = rows.to_numpy()[:, 0].tolist()
        if not isinstance(rows, str) and not hasattr(rows, "columns"):
            rows = list(rows)
            empty = next((place for place, row in enumerate(rows) if is_missing(row)), None)
            if empty is not None:
                raise UserError(f"row {empty} holds no text; fill it in, or leave the row out")
        # iterating over a data frame gives its columns, or their names
        if isinstance(rows, str) or hasattr(rows, "columns") or not all(isinstance(row, str) for row in rows):
            raise UserError("this model reads texts: give a list of strings, or one column of a data frame")
        return list(rows)

    def without_each(self, x: Raw, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Sequences]:
        """The distinct words of a document, and the document without each of them."""
        assert isinstance(x, np.ndarray)
        found = self.tokens(x[0])
        distinct = tuple(dict.fromkeys(found))
        return distinct, self.encode([word for word in found if word != left] for left in distinct)

    def default_columns(self) -> dict[str, Any]:
        return {"text": "text"}

    @classmethod
    def suggested(cls, rows: int) -> list[tuple[str, str, Any]]:
        return [
            ('hashed: no word leaves a party; "counted": see docs/files.md', "vocabulary", "hashed"),
            ("number of hash values", "buckets", 1024 if rows < 2_000 else 4096),
        ]

    # --- an exported graph ----------------------------------------------------------------------------------------

    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        x = self.prepare(rows)
        parts = [x.values[a:b].numpy() for a, b in pairwise(x.offsets.tolist())]
        return padded(parts, np.int64)

    def graph_example(self) -> dict[str, np.ndarray]:
        rows = np.random.default_rng(0).integers(self.shape.size[0], size=(3, 7))
        return {"rows": rows, "lengths": np.array([7, 3, 5])}

    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Token ids, since a hashed word cannot be turned back into text."""
        lengths = rng.integers(0, longest + 1, size=count)
        tokens = [torch.from_numpy(rng.integers(self.shape.size[0], size=k)).int() for k in lengths]
        rows = np.zeros((count, longest), dtype=np.int64)
        for i, row in enumerate(tokens):
            rows[i, : len(row)] = row.numpy()
        return Sequences.from_rows(tokens), {"rows": rows, "lengths": lengths}


def count_vocabulary(documents: Iterable[Sequence[str]], min_count: int) -> tuple[str, ...]:
    """Words that occur at least `min_count` times, most frequent first, ties by spelling."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    frequent = [word for word, count in counts.items() if count >= min_count]
    return tuple(sorted(frequent, key=lambda word: (-counts[word], word)))


def shared_vocabulary(parties: Sequence[Mapping[str, int]], min_clients: int) -> tuple[str, ...]:
    """Words that at least `min_clients` parties report, most frequent first, ties by spelling."""
    counts: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for words_of_party in parties:
        counts.update(words_of_party)
        users.update(words_of_party.keys())
    return tuple(sorted((w for w in counts if users[w] >= min_clients), key=lambda word: (-counts[word], word)))


kind = Text
