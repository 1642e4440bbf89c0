"""A party's folder of images: one folder per class, as in north/cat/1.png. Images outside of them have no label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedalign.errors import UserError, printable
from fedalign.ingest.formats.cells import Cells
from fedalign.ingest.formats.lazy_polars import pl
from fedalign.ingest.formats.problems import Report
from fedalign.ingest.formats.table import ROWS, Piece, Table
from fedalign.inputs.pixels import ENDINGS

IMAGE, LABEL = "image", "label"  # the columns of such a table


def holds_images(folder: Path) -> bool:
    """Whether a folder, or a folder in it, holds a file with the name of an image."""
    return folder.is_dir() and next(_images(folder), None) is not None


def party_folders(folder: Path) -> list[Path]:
    """The folders with images in a folder, in order of their names."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name[0] != "." and path.is_dir():
            _check_link(path)
            found += [path] if holds_images(path) else []
    if found and not any(label for path in found for _, label in _images(path)):
        raise UserError(
            f"the images in {folder} have no labels; make one folder per party with one folder per class in it, as in "
            "north/cat/1.png"
        )
    return found


def open_table(path: Path, file: str) -> Table:
    images = list(_images(path))
    if not images:
        raise UserError(f"the folder {path} holds no image ({', '.join(ENDINGS)}); put one folder per class there")
    return _table(images, path, f"{file}/")


def one_image(path: Path) -> Table:
    """An image without a label, as a table of one row."""
    return _table([(path.name, "")], path.parent, printable(path.name))


def _table(images: Sequence[tuple[str, str]], folder: Path, file: str) -> Table:
    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        for first in range(0, len(images), ROWS):
            names, labels = zip(*images[first : first + ROWS], strict=True)
            both: dict[str, Cells] = {IMAGE: pl.Series(names), LABEL: pl.Series(labels)}
            yield np.arange(first, first + len(names)) + 1, {name: both[name] for name in wanted}

    return Table(file, (IMAGE, LABEL), pieces, folder=folder)


def _images(folder: Path) -> Iterator[tuple[str, str]]:
    """The path within the folder and the class of each image, in order of their names."""
    try:
        for path in sorted(folder.iterdir()):
            if path.name[0] == ".":
                continue
            if path.is_dir():
                _check_name(path)
                _check_link(path)
                yield from ((f"{path.name}/{name}", path.name) for name in sorted(_named_like_images(path)))
            elif path.name.lower().endswith(ENDINGS):
                _check_name(path)
                yield path.name, ""
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read: {error.strerror or error}") from error


def _named_like_images(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.name[0] != "." and path.name.lower().endswith(ENDINGS) and not path.is_dir():
            _check_name(path)
            yield path.name


def _check_link(folder: Path) -> None:
    """Raises UserError for a link that leads back: the images behind it would be read twice, with another label."""
    outer = folder.parent.resolve()
    if folder.is_symlink() and folder.resolve() in (outer, *outer.parents):
        raise UserError(f"{folder} is a link to a folder that contains it; remove the link")


def _check_name(path: Path) -> None:
    """Raises UserError for a name whose bytes are no text; it could not be written into a table of predictions."""
    if not path.name.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in path.name):
        raise UserError(f"the name {printable(path.name)} in {path.parent} is not UTF-8; rename it")
