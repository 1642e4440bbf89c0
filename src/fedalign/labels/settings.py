"""The section `[labels]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedalign.registry import Section

Source = Literal["auto", "counts", "sentence", "table", "vectors", "random"]


class Labels(Section):
    """Where class vectors start. The default is what configurations without this section always meant; `fedalign init`
    and the Python interface write "auto"."""

    source: Source = "random"  # auto: the best one available for the names, see labels/choose.py
    file: str = ""  # of that source, or the name of shipped counts; sentence: a model's folder, or empty
    descriptions: str = ""  # sentence: a file of names and descriptions, or the name of shipped counts
    phrase: str = Field("{}", pattern=r"\{\}")  # sentence: the text, in which {} is the name, as in "a person is {}"
    adapter: bool = False  # sentence: a trained matrix makes class vectors from the model's vectors of the names
    smoothing: float = Field(0.5, ge=0)  # of counts, against chance in small corpora; 0: none, as in the paper
    reading: Literal["paper", "released"] = "paper"  # centred without self-loops, or as in the published code
    walk_length: int = Field(100, ge=2)
    walks: int = Field(200, ge=1)
    window: int = Field(5, ge=1)
    normalise: bool | None = None  # L2-normalise class vectors in the logits; None: in single-label runs
