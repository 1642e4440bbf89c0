"""The section `[partition]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedalign.registry import Section


class Partition(Section):
    """Which client holds which rows and annotates which classes."""

    # none: the data set has its own clients; centralised: one client with every row and label, an upper bound
    kind: Literal["random-classes", "category", "centralised", "none"] = "none"
    clients: int | None = Field(None, ge=1)  # None: one per subject (random-classes) or per category
    classes_per_client: int = Field(3, ge=1)
    rows: Literal["shuffle", "subject"] = "shuffle"
    cover: bool = False  # repeat the draw until every class has an owner
    # classes of some clients by name, client-0 = ["earn", "acq"]; other clients draw until every class has an owner
    class_sets: dict[str, list[str]] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=0)  # None: the run's seed
