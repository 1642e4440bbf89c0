"""DICOM files: one image as grey or colour numbers from 0 to 1. Needs pydicom, the extra `dicom`.

Only pixels are read. Names, dates and other elements of a file are not kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedalign.errors import UserError

ENDINGS = (".dcm", ".dicom")
DEFLATED = "1.2.840.10008.1.2.1.99"  # a transfer syntax in which a few bytes can become gigabytes
COLOURS = ("RGB", "MONOCHROME1", "MONOCHROME2")
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")


class DicomError(ValueError):
    """A DICOM file that cannot be used. The message says why, and names the fix."""


def is_dicom(source: Any) -> bool:
    return isinstance(source, str | Path) and str(source).lower().endswith(ENDINGS)


def read(path: Path, most_pixels: int) -> np.ndarray:
    """(height, width) or (height, width, 3) numbers from 0 to 1. Raises DicomError."""
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
        from pydicom.filereader import read_file_meta_info
    except ImportError as error:
        raise UserError("reading DICOM files needs pydicom; run: pip install 'fedalign[dicom]'") from error
    try:
        syntax = str(read_file_meta_info(path).get("TransferSyntaxUID", ""))
        if syntax not in UNCOMPRESSED:
            kind = "deflated" if syntax == DEFLATED else f"compressed ({syntax or 'of an unknown kind'})"
            raise DicomError(
                f"the pixels are {kind}; store the file uncompressed, for example with dcmdjpeg or gdcmconv"
            )
        found = dcmread(path)
    except InvalidDicomError as error:
        raise DicomError("the file is no DICOM file, whatever its name says; give it the ending of its kind") from error
    if "PixelData" not in found:
        raise DicomError("the file holds no image; leave it out")
    height, width = int(found.Rows), int(found.Columns)
    if height * width > most_pixels:
        raise DicomError(
            f"the image claims {width:,} x {height:,} pixels ({most_pixels:,} is the limit); make it smaller"
        )
    frames = int(found.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise DicomError(f"the file holds {frames} frames; save one image as a file of its own")
    colours = str(found.get("PhotometricInterpretation", ""))
    if colours not in COLOURS:
        raise DicomError(f"the colours are {colours or 'not named'}; save the image as MONOCHROME2 or RGB")
    pixels = found.pixel_array
    if colours == "RGB":
        return np.asarray(pixels, dtype=np.float32) / np.float32(2 ** int(found.BitsStored) - 1)
    return _grey(found, pixels, inverted=colours == "MONOCHROME1")


def _grey(found: Any, pixels: np.ndarray, inverted: bool) -> np.ndarray:
    """Measured values, such as Hounsfield units, scaled by the file's window or, without one, by its range."""
    from pydicom.pixels import apply_windowing

    if "ModalityLUTSequence" in found:
        raise DicomError("the values follow from a table in the file; save the image with a rescale slope instead")
    slope, intercept = float(found.get("RescaleSlope", 1) or 1), float(found.get("RescaleIntercept", 0) or 0)
    bits, signed = int(found.BitsStored), bool(found.PixelRepresentation)
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    low, high = sorted(end * slope + intercept for end in ends)
    measured = pixels.astype(np.float64) * slope + intercept
    if "WindowWidth" in found:
        measured = np.asarray(apply_windowing(measured, found))  # spread over the same range
    scaled = ((measured - low) / (high - low)).clip(0, 1).astype(np.float32)
    return 1 - scaled if inverted else scaled
