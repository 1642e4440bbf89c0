"""Settings that suit a person's own rows, until that person knows better."""

from __future__ import annotations

from typing import Any

MANY = 20_000  # rows from which the paper's sizes pay


def suggest_settings(kind: str, rows: int) -> dict[str, dict[str, Any]]:
    """Encoder and training for rows of a kind (text, series, features): small ones for few rows."""
    few = rows < MANY
    return {
        "encoder": {
            "name": "mlp" if kind == "features" else "transformer",
            "dim": 64 if few else 256,
            "dropout": 0.2,
        },
        "training": {"epochs": 5, "batch_size": 32 if few else 128, "lr": 0.002 if few else 0.001},
    }
