"""Pixels of images: from files, from arrays and from pictures in memory, as (n, C, H, W) numbers from 0 to 1."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fedalign.errors import UserError, printable
from fedalign.inputs import dicom

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif", *dicom.ENDINGS)
FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")  # other decoders of Pillow are never called
PLAIN = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "YCbCr")  # modes with 8 bits per channel
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")  # grey with 16 bits
MOST_PIXELS = 80_000_000  # of one file; a few kilobytes can claim to hold billions of pixels
LARGEST_SIDE = 1024  # of images that a model reads
GREY = (0.299, 0.587, 0.114)  # of red, green and blue, as Pillow weighs them
CHUNK = 1024  # images at once
NAME = 200  # characters of a path in a message


class BrokenImageError(ValueError):
    """An image that cannot be used. The message says why, and names the fix."""


# --- files ------------------------------------------------------------------------------------------------------------


def from_file(source: Any, size: Sequence[int], name: str) -> np.ndarray:
    """(3, H, W) float32 from 0 to 1 of the file or picture `source`, upright; `name` is for messages."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise UserError("reading images needs Pillow; run: pip install 'fedalign[images]'") from error
    shown = printable(name, NAME)
    again = f"copy {shown} again from its source"
    _check_file(source, shown, again)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if dicom.is_dicom(source):
                return _from_dicom(Path(source), size, shown)
            picture = source if is_picture(source) else Image.open(source, formats=FORMATS)
            with picture:
                _check_picture(picture, shown)
                return _upright(ImageOps.exif_transpose(picture), size, shown)
    except (BrokenImageError, UserError, KeyboardInterrupt):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large("far too many", shown) from error
    except UnidentifiedImageError as error:
        kinds = ", ".join(FORMATS)
        raise BrokenImageError(f"the file is no image, whatever its name says; save {shown} as {kinds}") from error
    except Exception as error:  # a damaged file can make a decoder raise anything
        reason = printable(" ".join(str(error).split()) or type(error).__name__, NAME)
        raise BrokenImageError(
            f"the image is damaged or cut off ({reason}); {again}".replace(str(source), "")
        ) from error


def _check_file(source: Any, shown: str, again: str) -> None:
    if is_picture(source):
        return
    path = Path(source)
    try:
        if not path.is_file():
            raise BrokenImageError(
                f"there is no such file; check the path {shown} (in a table, it starts at the table's folder)"
            )
        if not path.stat().st_size:
            raise BrokenImageError(f"the file is empty (0 bytes); {again}")
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenImageError):
            raise
        raise BrokenImageError(f"the file cannot be opened; check the path {shown}") from error


def _too_large(pixels: str, shown: str) -> BrokenImageError:
    return BrokenImageError(f"the image claims {pixels} pixels ({MOST_PIXELS:,} is the limit); make {shown} smaller")


def _check_picture(picture: Any, shown: str) -> None:
    """Raises BrokenImageError for what a header says, before any pixel is decoded."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise _too_large(f"{width:,} x {height:,}", shown)
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # phones store a preview beside a JPEG
        raise BrokenImageError(
            f"the file holds {frames} frames or pages; save one image of {shown} as a file of its own"
        )
    if picture.mode == "CMYK":
        raise BrokenImageError(f"the image has printing colours (CMYK); save {shown} as RGB or grey")
    if picture.mode not in (*PLAIN, *DEEP) and not (picture.mode == "I" and picture.format == "PNG"):
        raise BrokenImageError(f"the image has pixels of the type {picture.mode}; save {shown} with 8 or 16 bits")


def _from_dicom(path: Path, size: Sequence[int], shown: str) -> np.ndarray:
    try:
        found = dicom.read(path, MOST_PIXELS)
    except dicom.DicomError as error:
        reason, _, fix = str(error).rpartition("; ")
        raise BrokenImageError(f"{reason}; {shown}: {fix}") from error
    colour = found if found.ndim == 3 else found[:, :, None]  # (H, W, C)
    return np.repeat(resized(colour.transpose(2, 0, 1)[None].copy(), size)[0], 3 // colour.shape[2], 0)


def _upright(picture: Any, size: Sequence[int], shown: str) -> np.ndarray:
    """The pixels of a picture whose header was checked, in `size` (height, width)."""
    from PIL import Image

    wide = (size[1], size[0])
    if picture.mode not in PLAIN:
        grey = Image.fromarray(np.asarray(picture).astype(np.float32) / np.float32(65535.0))
        found = np.asarray(grey.resize(wide, Image.Resampling.BILINEAR)).clip(0.0, 1.0)
        return np.repeat(found[None], 3, 0)
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        if picture.getchannel("A").getextrema()[0] < 255:
            raise BrokenImageError(f"the image has transparent pixels; save {shown} on a plain background")
    plain = picture.convert("RGB").resize(wide, Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(plain).transpose(2, 0, 1), dtype=np.float32) / np.float32(255.0)


# --- arrays -----------------------------------------------------------------------------------------------------------


def is_grey(x: np.ndarray) -> bool:
    """Whether the three channels of every image are equal; NaN is no image."""
    return x.shape[1] == 1 or all(
        np.array_equal(x[i : i + CHUNK, :1], x[i : i + CHUNK, c : c + 1], equal_nan=True)
        for i in range(0, len(x), CHUNK)
        for c in (1, 2)
    )


def chunks(x: np.ndarray, channels: int) -> Iterator[np.ndarray]:
    """A few images at a time, as grey or colour."""
    for first in range(0, len(x), CHUNK):
        part = x[first : first + CHUNK]
        if channels == 1 and part.shape[1] == 3:
            yield np.einsum("nchw,c->nhw", part, np.array(GREY, dtype=np.float32))[:, None]
        else:
            yield np.repeat(part, 3, 1) if channels == 3 and part.shape[1] == 1 else part


def resized(x: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Images (n, C, H, W) in another size, smoothed where they become smaller."""
    if tuple(x.shape[2:]) == tuple(size) or not len(x):
        return x
    found = F.interpolate(torch.from_numpy(x), list(size), mode="bilinear", antialias=True, align_corners=False)
    return np.asarray(found.numpy())


def from_array(rows: Any) -> np.ndarray:
    """(n, C, H, W) float32 from 0 to 1, from an array of whole numbers (8 or 16 bits) or of numbers from 0 to 1."""
    array = np.asarray(rows)
    array = array[..., None] if array.ndim == 3 else array
    if array.ndim != 4 or array.dtype.kind not in "uif":
        raise ValueError(f"an array of shape (n, height, width, channels) is needed, not {array.shape} {array.dtype}")
    if array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in (1, 3) or not all(1 <= side <= LARGEST_SIDE for side in array.shape[2:]):
        raise ValueError(f"images have 1 or 3 channels and sides of up to {LARGEST_SIDE} pixels, not {array.shape[1:]}")
    deepest = 1.0 if array.dtype.kind == "f" else 65535.0 if array.dtype.itemsize == 2 else 255.0
    if array.size and (np.nanmin(array, initial=0.0) < 0 or np.nanmax(array, initial=0.0) > deepest):
        raise ValueError("pixels are whole numbers of 8 or 16 bits (uint8, uint16), or numbers from 0 to 1")
    return np.ascontiguousarray(array, dtype=np.float32) / np.float32(deepest)


def from_memory(rows: Any, size: Sequence[int]) -> np.ndarray:
    """Arrays in their own size; paths and pictures of Pillow in `size`."""
    first = rows[0]
    if isinstance(first, str | Path) or is_picture(first):
        return np.stack([from_file(row, size, str(getattr(row, "filename", row))) for row in rows])
    if not isinstance(rows, np.ndarray):
        rows = [np.asarray(row) for row in rows]
        if len({row.shape for row in rows}) > 1:
            raise ValueError("the images differ in size; resize them first, or give paths of files")
    return from_array(rows)


def is_picture(row: Any) -> bool:
    return hasattr(row, "getexif") and hasattr(row, "mode")
