"""The number of classes, clients and rows: the columns of the paper's Table 1, for any federation."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

import torch

from fedalign.data.partition import positives
from fedalign.types import Federation, Pool


@dataclass(frozen=True)
class PartitionStatistics:
    """One row of Table 1."""

    classes: int
    clients: int
    rows: float  # training rows of a client, on average
    classes_per_client: float
    imbalance: float | None  # size of the smallest class divided by that of the largest
    remark: str = ""


def partition_statistics(data: Federation, pool: Pool | None = None) -> PartitionStatistics:
    """The statistics of a federation. Class sizes are those of the pool, which only a simulation knows; without a pool,
    those of the annotated rows."""
    if pool is not None:
        parts = [(pool.train, pool.recording), (pool.test, pool.test_recording)]
        if pool.validation is not None:
            parts.append((pool.validation, pool.validation_recording))
        sizes = [positives(part, recording) for part, recording in parts]
    else:
        sizes = [positives(party.train, None) for party in data.parties]
    counts = torch.stack(sizes).sum(0).tolist()
    parties = data.parties
    return PartitionStatistics(
        len(data.label_names),
        len(parties),
        sum(len(party.train) for party in parties) / len(parties),
        float(data.classes.sum()) / len(parties),
        min(counts) / max(counts) if max(counts, default=0) else None,
    )


def published() -> dict[str, PartitionStatistics]:
    """The published Table 1, by preset."""
    text = files("fedalign.paper").joinpath("table1.csv").read_text(encoding="utf-8")
    return {
        row["preset"]: PartitionStatistics(
            int(row["classes"]),
            int(row["clients"]),
            float(row["rows"]),
            float(row["classes_per_client"]),
            float(row["imbalance"]),
            row["remark"],
        )
        for row in csv.DictReader(text.splitlines())
    }
