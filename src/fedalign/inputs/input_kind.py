"""What every kind of input can do. Each kind is one class in one file of this package.

The class recognises raw rows in files and in memory, reads them, and says what the parties must agree on first. An
instance holds what they agreed on: it is stored with the model and turns raw rows into tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedalign.inputs.profile import FilesProfile, Guess, PartyRows
from fedalign.inputs.raw import Raw, join
from fedalign.inputs.scaling import Scaling, Stored
from fedalign.inputs.shape import Shape
from fedalign.types import Rows

if TYPE_CHECKING:
    from fedalign.ingest.formats import Batch, Table
    from fedalign.ingest.offer import Offer


@dataclass(frozen=True)
class NoSettings:
    """A kind without settings."""


class Reader:
    """Reads the input columns of one file. `steps` names the columns with the id and the time of a recording's steps,
    if each row of the file is one step."""

    steps: tuple[str, str] | None = None

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)

    @abstractmethod
    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        """The raw rows of a batch, and the names of their features or channels where they have names."""


class InputKind(Stored):
    """One kind of input. The file's name is the kind's name and the value of `kind`."""

    kind: str

    order: ClassVar[int] = 0  # in which kinds try to recognise rows: the most specific first
    in_memory: ClassVar[bool] = True  # whether rows in memory can be of this kind
    rows_called: ClassVar[str] = "rows"  # in sentences for users, plural
    encoder: ClassVar[str] = "transformer"  # the trained encoder that suits it
    feature_map: ClassVar[str] = ""  # the fixed encoder that suits it; empty: there is none
    # whether rows and cells may be paths, which nobody but the owner of the machine may choose
    opens_files: ClassVar[bool] = False
    # whether `rows` prepares each row by itself, so that those of a long file may be prepared piece by piece
    in_pieces: ClassVar[bool] = False
    trial_is_prepared: ClassVar[bool] = False  # whether `trial` returns prepared rows
    graph_rows: ClassVar[str] = "`rows`"  # what an exported graph reads
    new_file: ClassVar[str] = "NEW.csv"  # stands for a user's new rows in the commands that are suggested
    labelled_file: ClassVar[str] = "LABELLED.csv"  # the same for rows with labels
    reported: ClassVar[str] = ""  # what a model's card says that parties reported about their rows before training
    # dataclass of the [dataset] options that say where the input is; its first field has the kind's name, e.g. `text`
    Columns: ClassVar[type]
    Settings: ClassVar[type] = NoSettings  # dataclass of the [dataset] options that say how rows are prepared
    about: ClassVar[Mapping[str, str]] = {}  # a comment per option, for the TOML file that `fedalign init` writes

    @property
    def reads(self) -> str:
        """What a model reads, for its card."""
        return self.rows_called

    @classmethod
    def name(cls) -> str:
        """The kind's name in configurations, messages and model cards."""
        found: str = cls.model_fields["kind"].default
        return found

    @classmethod
    def columns_of(cls, options: object) -> Any:
        """This kind's `Columns` from an object that has all options as attributes."""
        return cls.Columns(**{field.name: getattr(options, field.name) for field in fields(cls.Columns)})

    @classmethod
    def settings_of(cls, options: Mapping[str, Any]) -> Any:
        """This kind's `Settings` from the options of all kinds; an absent one has its default."""
        return cls.Settings(**{f.name: options[f.name] for f in fields(cls.Settings) if f.name in options})

    # --- raw rows -------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        """The columns of this kind in a user's files; None if there are none."""

    @classmethod
    @abstractmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        """A reader of `columns` (a `Columns`) in one file. `other`: columns that are no input. `missing`: texts that
        mean an empty cell. Cells that name files give paths relative to `table.folder`, which is `batch.folder` too;
        `table.file` is a name for messages."""

    @classmethod
    def row_columns(cls, columns: Any) -> tuple[str, ...]:
        """Columns that identify a row and are no input, such as a recording's id."""
        return ()

    @classmethod
    @abstractmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        """Whether rows in memory are of this kind."""

    @classmethod
    @abstractmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        """Raw rows from rows in memory, and the names of their features or channels; `names` are those of a data frame.
        Raises TypeError or ValueError if they do not fit together."""

    @classmethod
    def remarks(cls, rows: Sequence[PartyRows], columns: Any) -> list[str]:
        """What `fedalign check` notes about the rows of all parties, one sentence per entry."""
        return []

    # --- what parties agree on before the first round --------------------------------------------------------------

    @classmethod
    def offer(cls, x: Raw, columns: tuple[str, ...], settings: Any) -> dict[str, Any]:
        """What a party reports about its training rows: fields of `Offer` (columns, moments, words, other)."""
        return {}

    @classmethod
    def offer_in_pieces(cls, pieces: Iterable[Raw], columns: tuple[str, ...], settings: Any) -> dict[str, Any]:
        """`offer` of the rows of all pieces, which may be read more than once and should not be held together."""
        return cls.offer(join(list(pieces), cls.rows_called), columns, settings)

    @classmethod
    def exact_report(cls, settings: Any) -> str:
        """What `offer` tells about rows without noise, and the option that avoids it; empty if it tells nothing."""
        own = cls.offer.__func__ is not InputKind.offer.__func__  # type: ignore[attr-defined]
        return "what parties agree on for this kind of rows; there is no public form of it so far" if own else ""

    @classmethod
    def check_offer(cls, offer: Offer) -> None:
        """Raises UserError if what a party reports cannot be true: it would spoil the preparation of all."""
        return

    @classmethod
    def describe_offer(cls, offer: Offer) -> list[str]:
        """What `offer` contains of this kind, one sentence per entry."""
        return []

    @classmethod
    @abstractmethod
    def agree(cls, offers: Sequence[Offer], settings: Any) -> InputKind:
        """The common preparation, from what every party reported."""

    @classmethod
    def for_one_party(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options with which a single party can prepare its rows."""
        return options

    # --- tensors --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """What an encoder must read."""

    @property
    def max_steps(self) -> int | None:
        """The number of steps of a row that are read; None: all."""
        return None

    @abstractmethod
    def rows(self, x: Any, columns: tuple[str, ...] = (), file: str = "") -> Rows:
        """Raw rows as tensors. `columns` are the names of their features or channels, `file` is for messages."""

    @abstractmethod
    def prepare(self, rows: Any) -> Rows:
        """Rows given for prediction as tensors; raises UserError if they are not what the model reads."""

    def without_each(self, x: Raw, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Rows] | None:
        """The parts of one raw row, such as its words or columns, and the prepared row without each of them; None if
        the kind has no parts that a person can name."""
        return None

    def pictures(self, x: Rows) -> np.ndarray | None:
        """(n, height, width, channels) numbers from 0 to 1 of prepared rows; None if rows are no images."""
        return None

    # --- files given for prediction -------------------------------------------------------------------------------

    @abstractmethod
    def default_columns(self) -> dict[str, Any]:
        """Where the input stands in a file if training did not read files."""

    def trained_columns(self) -> dict[str, Any]:
        """Columns that the model needs, whatever else a file holds."""
        return {}

    # --- settings to start with -----------------------------------------------------------------------------------

    @classmethod
    def suggested(cls, rows: int) -> list[tuple[str, str, Any]]:
        """Settings worth showing in a new configuration: comment, option and value."""
        return []

    # --- an exported graph ----------------------------------------------------------------------------------------

    @property
    def graph_scaling(self) -> Scaling | None:
        """How the graph scales its rows; None: it reads them as they are."""
        return None

    @abstractmethod
    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        """Raw rows as the graph reads them: `rows` and, for sequences, `lengths`."""

    @abstractmethod
    def graph_example(self) -> dict[str, np.ndarray]:
        """Three made-up rows as the graph reads them, of unequal length."""

    @abstractmethod
    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Random rows to compare a graph with its model: as the model reads them, and as the graph does."""
