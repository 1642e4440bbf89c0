"""Settings to start with for a user's own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedalign.inputs import InputKind  # slow to import, and the command line needs only this module

MANY = 20_000  # rows from which the paper's sizes pay off


def suggest_settings(kind: type[InputKind], rows: int) -> dict[str, dict[str, Any]]:
    """Encoder and training settings for a number of rows of one kind: small ones for few rows."""
    few = rows < MANY
    return {
        "encoder": {"name": kind.encoder, "dim": 64 if few else 256, "dropout": 0.2},
        "training": {"epochs": 5, "batch_size": 32 if few else 128, "lr": 0.002 if few else 0.001},
    }
