"""Images: files that a column names, or arrays of pixels. All parties bring them to one size and scale them alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedalign.errors import UserError, printable
from fedalign.inputs import image_checks, pixels
from fedalign.inputs.input_kind import Reader
from fedalign.inputs.profile import FilesProfile, Guess, PartyRows
from fedalign.inputs.raw import Raw
from fedalign.inputs.scaled import FEW, ScaledNumbers
from fedalign.inputs.scaling import Moments, Scaling
from fedalign.inputs.shape import Shape
from fedalign.types import Rows

if TYPE_CHECKING:
    from fedalign.ingest.formats import Batch, Table
    from fedalign.ingest.offer import Offer

SIZE = 32  # to which files are brought if dataset.image_size is not set


@dataclass(frozen=True)
class ImageColumns:
    """Where images are."""

    images: str = ""  # column with the path of a file, or the array of an NPZ file
    # height and width; 0: 32 for files, arrays keep theirs
    image_size: Annotated[int, Field(ge=0, le=pixels.LARGEST_SIDE)] = 0
    broken_images: Literal["stop", "leave out"] = "stop"  # what is done with a file that cannot be read


@dataclass(frozen=True)
class ImageSettings:
    """How images are prepared."""

    image_channels: Literal[0, 1, 3] = 0  # 1 grey, 3 colour; 0: colour if a party has a coloured image


class ImageReader(Reader):
    """Reads the files that a column names, or an array of an NPZ file: (n, H, W), (n, H, W, C) or (n, C, H, W)."""

    def __init__(self, columns: ImageColumns) -> None:
        super().__init__([columns.images])
        self.column, self.size, self.stop = columns.images, columns.image_size, columns.broken_images == "stop"

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        cells = batch.cells[self.column]
        if isinstance(cells, np.ndarray) and cells.ndim > 1:
            try:
                found = pixels.from_array(cells)
            except ValueError as error:
                raise UserError(f"{batch.file}, array {printable(self.column)}: {error}") from error
            return pixels.resized(found, (self.size, self.size)) if self.size else found, ()
        return self._files(batch), ()

    def _files(self, batch: Batch) -> np.ndarray:
        """A file that cannot be read is a problem, or else its row is empty."""
        size = self.size or SIZE
        found = np.full((len(batch), 3, size, size), np.nan, dtype=np.float32)
        for row, name in enumerate(batch.text(self.column)):
            try:
                if name:
                    found[row] = pixels.from_file(batch.folder / name, (size, size), name)
            except pixels.BrokenImageError as error:
                if self.stop:
                    hint = "or leave out broken files with dataset.broken_images = 'leave out' (predict: --skip-empty)"
                    batch.problem(row, self.column, f"{error}, {hint}")
        return found


class Images(ScaledNumbers):
    """Images of one size, whose channels are scaled alike for all parties."""

    kind: Literal["images"] = "images"
    size: tuple[int, int, int]  # channels, height, width

    order: ClassVar[int] = 5
    rows_called: ClassVar[str] = "images"
    encoder: ClassVar[str] = "convnet"
    feature_map: ClassVar[str] = "pixels"
    opens_files: ClassVar[bool] = True
    graph_rows: ClassVar[str] = "`rows` (n, channels, height, width) float32 pixels from 0 to 1"
    new_file: ClassVar[str] = "NEW.png"
    labelled_file: ClassVar[str] = "LABELLED_FOLDER"
    reported: ClassVar[str] = "the size of their images and the mean and variance of each channel"
    Columns: ClassVar[type] = ImageColumns
    Settings: ClassVar[type] = ImageSettings
    about: ClassVar[dict[str, str]] = {"images": "the column with the path of an image, relative to the file's folder"}

    # --- raw rows: (n, C, H, W) float32 from 0 to 1, NaN for a row without an image ---------------------------------

    @classmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        for column in files.shared:
            found = files.all(column)
            texts = [text for one in found for text in one.texts]
            if texts and all(text.lower().endswith(pixels.ENDINGS) for text in texts):
                return Guess({"images": column}, {"images": "paths of images"})
            if found and all(one.dims == 3 for one in found):
                return Guess({"images": column}, {"images": "an array of images"})
        return None

    @classmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        table.require(columns.images)
        return ImageReader(columns)

    @classmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        return isinstance(rows[0], Path) or pixels.is_picture(rows[0]) or np.ndim(rows[0]) == 3

    @classmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        return pixels.from_memory(rows, (SIZE, SIZE)), ()

    @classmethod
    def remarks(cls, rows: Sequence[PartyRows], columns: Any) -> list[str]:
        return image_checks.remarks(rows, columns.images)

    # --- what parties agree on --------------------------------------------------------------------------------------

    @classmethod
    def offer(cls, x: Raw, columns: tuple[str, ...], settings: Any) -> dict[str, Any]:
        assert isinstance(x, np.ndarray)
        channels = settings.image_channels or (1 if pixels.is_grey(x) else 3)
        total, squares, count = np.zeros(channels), np.zeros(channels), max(x[:, :1].size, 1)
        for part in pixels.chunks(x, channels):
            total += np.nansum(part, axis=(0, 2, 3), dtype=np.float64)
        for part in pixels.chunks(x, channels):
            away = part - (total / count)[:, None, None]
            squares += np.nansum(away * away, axis=(0, 2, 3), dtype=np.float64)
        counts = (x[:, 0].size if len(x) >= FEW else 0,) * channels
        moments = Moments(count=counts, mean=tuple((total / count).tolist()), squares=tuple(squares.tolist()))
        return {"moments": moments.without_few(1), "other": {"size": [channels, *x.shape[2:]]}}

    @classmethod
    def exact_report(cls, settings: Any) -> str:
        return "statistics of its pixels; there is no public form of them so far"

    @classmethod
    def describe_offer(cls, offer: Offer) -> list[str]:
        channels, height, width = _size(offer)
        found = [f"the size of its images: {height} x {width} pixels, {_colours(channels)}"]
        return [*found, "of each channel: number of pixels, mean, sum of squared deviations"]

    @classmethod
    def check_offer(cls, offer: Offer) -> None:
        super().check_offer(offer)
        channels, *sides = _size(offer)
        assert offer.moments is not None
        fits = channels in (1, 3) and all(1 <= side <= pixels.LARGEST_SIDE for side in sides)
        if not fits or len(offer.moments.mean) != channels:
            raise UserError(
                f"{offer.party} sends a size of images that cannot be; both sides must run the same version"
            )

    @classmethod
    def agree(cls, offers: Sequence[Offer], settings: Any) -> Self:
        first = offers[0]
        for one in offers[1:]:
            (ours, *sides), (theirs, *others) = _size(first), _size(one)
            if sides != others:
                sizes = [f"{party} {h} x {w} pixels" for party, (h, w) in ((first.party, sides), (one.party, others))]
                raise UserError(f"images differ in size ({', '.join(sizes)}); set dataset.image_size alike for all")
            if ours != theirs:
                raise UserError(
                    f"{first.party} has {_colours(ours)} images and {one.party} {_colours(theirs)} ones; set "
                    "dataset.image_channels to 1 (grey) or 3 (colour) for all"
                )
        scaling = Scaling.from_moments([one.moments for one in offers if one.moments is not None])
        return cls(scaling=scaling, size=_size(first))

    # --- tensors ----------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> str:
        channels, height, width = self.size
        return f"images of {width} x {height} pixels, {_colours(channels)}, and stretches files of other sizes"

    @property
    def shape(self) -> Shape:
        return Shape("images", self.size)

    def rows(self, x: Any, columns: tuple[str, ...] = (), file: str = "the images") -> Tensor:
        found = torch.empty(len(x), *self.size)
        mean, sd = (torch.tensor(values)[:, None, None] for values in (self.scaling.mean, self.scaling.sd))
        first = 0
        for part in pixels.chunks(x, self.size[0]):
            scaled = (torch.from_numpy(pixels.resized(part, self.size[1:])) - mean) / sd
            found[first : first + len(part)] = scaled.nan_to_num_(nan=0.0)
            first += len(part)
        return found

    def prepare(self, rows: Any) -> Tensor:
        if not len(rows):
            return torch.zeros(0, *self.size)
        try:
            return self.rows(pixels.from_memory(rows, self.size[1:]))
        except (TypeError, ValueError) as error:
            raise UserError(f"this model reads images: {error}") from error

    def pictures(self, x: Rows) -> np.ndarray:
        assert isinstance(x, Tensor)
        mean, sd = (torch.tensor(values)[:, None, None] for values in (self.scaling.mean, self.scaling.sd))
        return (x * sd + mean).clamp(0, 1).permute(0, 2, 3, 1).numpy()

    def default_columns(self) -> dict[str, Any]:
        return {"images": "image"}

    def trained_columns(self) -> dict[str, Any]:
        return {"image_size": max(self.size[1:])}

    # --- an exported graph: pixels from 0 to 1 in the model's size --------------------------------------------------

    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        parts = list(pixels.chunks(pixels.from_memory(rows, self.size[1:]), self.size[0]))
        return {"rows": np.concatenate([pixels.resized(part, self.size[1:]) for part in parts])}

    def graph_example(self) -> dict[str, np.ndarray]:
        return {"rows": np.random.default_rng(0).random((3, *self.size), dtype=np.float32)}

    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        rows = rng.random((count, *self.size), dtype=np.float32)
        return rows, {"rows": rows}


def _size(offer: Offer) -> tuple[int, int, int]:
    found = offer.other.get("size")
    if not isinstance(found, list | tuple) or [type(side) for side in found] != [int] * 3:
        raise UserError(f"{offer.party} sends no size of its images; both sides must run the same version")
    return (found[0], found[1], found[2])


def _colours(channels: int) -> str:
    return "grey" if channels == 1 else "colour"


kind = Images
