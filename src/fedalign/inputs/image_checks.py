"""What `fedalign check` notes about images: one colour only, mixed sizes, and images that are nearly equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedalign.errors import printable
from fedalign.inputs import pixels
from fedalign.inputs.profile import PartyRows

SHOWN = 3  # names in a message
BITS, BANDS = 64, 4  # of a perceptual hash; two hashes that differ in fewer bits than bands have an equal band
NEAR = BANDS - 1  # bits that may differ
SIMILAR = 0.01  # mean difference of the pixels of two images that are nearly equal
PLAIN = 1.5 / 255  # largest difference of the pixels of an image of one colour


def remarks(rows: Sequence[PartyRows], column: str) -> list[str]:
    found: list[str] = []
    names: list[dict[int, str]] = []
    for one in rows:
        paths = _paths(one, column)
        names.append({place: f"{one.party}: {printable(text, 80)}" for place, text in paths.items()})
        one_colour = np.flatnonzero(is_plain(_array(one)))
        if len(one_colour):
            many = f"{len(one_colour):,} images have" if len(one_colour) > 1 else "one image has"
            shown = _listed([names[-1].get(place, _row(one, place)) for place in one_colour.tolist()])
            found.append(f"{many} one colour only ({shown}); remove them if they show nothing")
        there = _present(_array(one))
        found += _sizes(one, {place: path for place, path in paths.items() if there[place]})
    return found + _copies(rows, names)


def _present(x: np.ndarray) -> np.ndarray:
    """(n,) bool: rows with an image."""
    return np.concatenate(
        [~np.isnan(part).any((1, 2, 3)) for part in pixels.chunks(x, x.shape[1])] or [np.zeros(0, bool)]
    )


def is_plain(x: np.ndarray) -> np.ndarray:
    """(n,) bool: images of one colour; False without an image."""
    flat = x.reshape(*x.shape[:2], -1)
    with np.errstate(invalid="ignore"):
        return np.asarray(((flat.max(2) - flat.min(2)) < PLAIN).all(1))


def hashes(x: np.ndarray) -> np.ndarray:
    """(n, 64) bool: whether a cell of the grey image is brighter than its left neighbour, 8 rows of 9 cells."""
    if not len(x):
        return np.zeros((0, BITS), dtype=bool)
    small = np.concatenate([pixels.resized(np.ascontiguousarray(part), (8, 9)) for part in pixels.chunks(x, 1)])
    return np.asarray((np.diff(small[:, 0], axis=2) > 1 / 255).reshape(-1, BITS))


def near_copies(x: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of images that are nearly equal. Of several copies of an image, at least one pair is found."""
    return _pairs(hashes(x), lambda a, b: np.asarray(np.abs(x[a] - x[b])))


def _pairs(bits: np.ndarray, difference: Callable[[int, int], np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of images with (n, 64) hashes that are alike and whose pixels have a small difference."""
    found: set[tuple[int, int]] = set()
    for band in range(BANDS):
        first = np.roll(bits, -band * BITS // BANDS, axis=1)
        order = np.lexsort(first.T[::-1])  # equal bands are neighbours, and the rest of the hash decides within them
        for a, b in pairwise(order.tolist()):
            if (bits[a] != bits[b]).sum() <= NEAR and float(difference(a, b).mean()) < SIMILAR:
                found.add((min(a, b), max(a, b)))
    return sorted(found)


def _copies(rows: Sequence[PartyRows], names: Sequence[dict[int, str]]) -> list[str]:
    """One note for all pairs, within a party and between parties."""
    shapes = {_array(one).shape[1:] for one in rows}
    if len(shapes) != 1:
        return []  # reported where parties agree on a size
    compared = [np.flatnonzero(_present(_array(one)) & ~is_plain(_array(one))) for one in rows]
    bits = np.concatenate([hashes(_array(one))[places] for one, places in zip(rows, compared, strict=True)])
    owners = [
        (one, place, own) for one, places, own in zip(rows, compared, names, strict=True) for place in places.tolist()
    ]

    def difference(a: int, b: int) -> np.ndarray:
        (first, i, _), (second, j, _) = owners[a], owners[b]
        return np.asarray(np.abs(_array(first)[i] - _array(second)[j]))

    pairs = _pairs(bits, difference)
    if not pairs:
        return []

    def name(place: int) -> str:
        one, own, known = owners[place]
        return known.get(own, _row(one, own))

    shown = _listed([f"{name(a)} and {name(b)}" for a, b in pairs])
    many = f"{len(pairs):,} pairs of images are" if len(pairs) > 1 else "two images are"
    return [f"{many} nearly equal ({shown}); remove copies, because a copy may be a training row and a test row"]


def _sizes(one: PartyRows, paths: dict[int, str]) -> list[str]:
    sizes = sorted(set(_headers(one.table.folder, paths.values())))
    if len(sizes) < 2:
        return []
    low, high = (f"{width} x {height}" for width, height in (sizes[0], sizes[-1]))
    fitted = " x ".join(map(str, _array(one).shape[:1:-1]))
    return [
        f"the images of {printable(one.party)} have {len(sizes):,} sizes, from {low} to {high} pixels; all are "
        f"stretched to {fitted} (dataset.image_size)"
    ]


def _headers(folder: Path, names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Width and height of each readable file, from its header."""
    from PIL import Image

    for name in names:
        try:
            with Image.open(folder / name, formats=pixels.FORMATS) as picture:
                yield picture.size
        except Exception:
            continue


def _paths(one: PartyRows, column: str) -> dict[int, str]:
    """Place of a row -> the path of its file; empty for arrays."""
    batches = list(one.table.batches([column], lambda problem: None))
    if any(isinstance(batch.cells[column], np.ndarray) for batch in batches):
        return {}
    texts = {int(n): text for batch in batches for n, text in zip(batch.rows, batch.text(column), strict=True)}
    return {place: texts[int(n)] for place, n in enumerate(one.numbers) if texts.get(int(n))}


def _array(one: PartyRows) -> np.ndarray:
    assert isinstance(one.x, np.ndarray)
    return one.x


def _row(one: PartyRows, place: int) -> str:
    return f"{one.table.file} row {one.numbers[place]}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
