"""What would leave a party's machine, told before it joins: the very messages, made from its own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedalign.config import Config, to_toml
from fedalign.flower.kit import for_parties
from fedalign.flower.party import PartySetup, built
from fedalign.flower.party_rows import FileRows
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Offer
from fedalign.learning import metrics
from fedalign.learning.local_training import labelled_rows, train_client
from fedalign.types import Arrays, Update

GRID = "validation, once at the end"
FEW = 16  # rows of the trial visit: an update's names, shapes and sizes do not depend on how many there are
NEVER = (
    "rows: no text, number, recording or cell",
    "labels of single rows",
    "the file's path, the order of its rows",
    "what the party remembers between rounds, such as its optimiser's state; only its size is told",
    "the reason of a failure, which may hold a path or a cell; the party's own log has it",
)
CAVEATS = (
    "weights are learned from rows and can hold traces of them; nothing here makes that impossible",
    "the server sees which classes this party annotates, how many rows it trains on, and its counts for each class",
)


@dataclass(frozen=True)
class Preview:
    """Every message that a party would send."""

    offer: Offer
    update: Update
    counts: dict[str, tuple[int, ...]]  # part of the rows -> shape of its counts
    every_round_counts: bool  # the server asks for them after each round
    classes: int

    @property
    def arrays(self) -> dict[str, Arrays]:
        return {"weights": self.update.weights, "extra": self.update.extra}

    @property
    def bytes_of_update(self) -> int:
        return sum(value.numel() * value.element_size() for group in self.arrays.values() for value in group.values())

    def table(self) -> dict[str, Any]:
        """For a program."""
        return {
            "before the first round": self.offer.model_dump(mode="json", exclude_none=True),
            "each round": {
                name: {key: {"shape": list(value.shape), "type": str(value.dtype)} for key, value in group.items()}
                for name, group in self.arrays.items()
            }
            | {"examples": self.update.num_examples, "classes": int(self.update.classes.sum())},
            "bytes each round": self.bytes_of_update,
            "counts": {name: list(shape) for name, shape in self.counts.items()},
            "never": list(NEVER),
            "caveats": list(CAVEATS),
        }


def preview(path: Path, config: Config, party: str) -> Preview:
    """Reads the file as the party's SuperNode would and makes its replies, as if it were alone."""
    config = for_parties(config)
    here = PartySetup(config, path, party, Path())
    rows = FileRows(here)
    offered = rows.offer()
    alone = offered.input.for_one_party(rows.files.preparation)
    agreed, _ = agree([offered], alone)
    algorithm, bench = built(to_toml(config), agreed.model_dump_json())
    parts = rows.parts(agreed)
    server = algorithm.start(bench.model, 1)
    few = parts["train"].take(torch.arange(min(FEW, len(parts["train"]))))
    once = config.training.model_copy(update={"epochs": 1})
    update, _ = train_client(algorithm, bench, server, few, {}, once, (config.seed, 1, 0))
    whole = Update(update.weights, labelled_rows(parts["train"]), update.classes, update.extra)
    shapes: dict[str, tuple[int, ...]] = {
        name: (len(agreed.label_names), 4) for name in ("test", "validation") if name in parts
    }
    if config.thresholds and "validation" in parts:
        shapes[GRID] = (len(metrics.GRID), len(agreed.label_names), 4)
    needs_class_f1 = algorithm.needs_class_f1(agreed.task) and "validation" in parts
    return Preview(offered, whole, shapes, needs_class_f1, len(agreed.label_names))
