"""Makes label vectors with a pretrained sentence model, without a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedalign.labels import names as label_names
from fedalign.system.sentence_model import INSTALL, PACKAGE, embed, folder, installed

__all__ = ["INSTALL", "PACKAGE", "folder", "installed", "vectors"]


def vectors(
    names: Sequence[str], given: str, descriptions: Mapping[str, Sequence[str]] | None = None, phrase: str = "{}"
) -> Tensor:
    """Returns vectors (C, width) of unit length. A description replaces the name; {} in the phrase is either."""
    described = [", ".join((descriptions or {}).get(name, [label_names.as_phrase(name)])) for name in names]
    return embed([phrase.replace("{}", text) for text in described], given)
