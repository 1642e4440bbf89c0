"""What can a row be? One file per kind of input; the file name is the kind's name, as in `dataset.text`.

Each file defines one class (see `input_kind.InputKind`) and ends with `kind = TheClass`. The modules listed in `SHARED`
are no kinds: they hold what several kinds use. Imports `types`, `errors` and `registry`.
"""

from __future__ import annotations

from fedalign.inputs.discover import (
    Inputs,
    chosen_kind,
    find_kind,
    inputs_from_json,
    kinds,
    raw_from_memory,
    setting_names,
    with_input_options,
)
from fedalign.inputs.features import Features
from fedalign.inputs.images import Images
from fedalign.inputs.input_kind import InputKind, Reader
from fedalign.inputs.profile import ColumnProfile, FileProfile, FilesProfile, Guess
from fedalign.inputs.raw import Ragged, Raw
from fedalign.inputs.scaling import CONSTANT, Moments, Scaling
from fedalign.inputs.series import Series
from fedalign.inputs.shape import Shape
from fedalign.inputs.text import UNKNOWN, Text, TextSettings, count_vocabulary, shared_vocabulary

SHARED = frozenset(
    {
        "dicom",
        "discover",
        "frames",
        "image_checks",
        "input_kind",
        "padding",
        "pixels",
        "profile",
        "raw",
        "scaled",
        "scaling",
        "shape",
        "words",
    }
)  # modules that are no kinds

__all__ = [
    "CONSTANT",
    "SHARED",
    "UNKNOWN",
    "ColumnProfile",
    "Features",
    "FileProfile",
    "FilesProfile",
    "Guess",
    "Images",
    "InputKind",
    "Inputs",
    "Moments",
    "Ragged",
    "Raw",
    "Reader",
    "Scaling",
    "Series",
    "Shape",
    "Text",
    "TextSettings",
    "chosen_kind",
    "count_vocabulary",
    "find_kind",
    "inputs_from_json",
    "kinds",
    "raw_from_memory",
    "setting_names",
    "shared_vocabulary",
    "with_input_options",
]
