"""What can a row be? Each kind of input prepares raw rows for an encoder, the same way at every party."""

from __future__ import annotations

from fedalign.inputs.kinds import (
    CONSTANT,
    UNKNOWN,
    Features,
    Inputs,
    Moments,
    Scaling,
    Series,
    Shape,
    Text,
    count_vocabulary,
    inputs_from_json,
    shared_vocabulary,
)

__all__ = [
    "CONSTANT",
    "UNKNOWN",
    "Features",
    "Inputs",
    "Moments",
    "Scaling",
    "Series",
    "Shape",
    "Text",
    "count_vocabulary",
    "inputs_from_json",
    "shared_vocabulary",
]
