"""Turns a table of label co-occurrence into a graph of labels, and draws random walks over it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedalign.errors import UserError
from fedalign.labels.names import places

Reading = Literal["paper", "released"]


def read_table(path: Path, names: Sequence[str]) -> np.ndarray:
    """Returns the square table (C, C) of the named labels from a CSV with names in its first row and column.

    Names match after normalising: `FIX_walking` in the table is `walking`. An empty cell is NaN: the pair is unknown.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the label table {path}: {error}") from error
    if len(rows) < 2:
        raise UserError(f"the label table {path} is empty; it needs names in its first row and first column")
    columns = [cell.strip() for cell in rows[0][1:]]
    column = places(names, columns)
    line = places(names, [row[0].strip() for row in rows[1:]])
    missing = [name for name, *where in zip(names, column, line, strict=True) if None in where]
    if missing:
        raise UserError(
            f"the label table {path} has no row and column for {', '.join(missing)}; it holds {', '.join(columns[:8])}"
            + (" and more" if len(columns) > 8 else "")
        )
    table = np.full((len(names), len(names)), np.nan)
    for i, row in enumerate(line):
        assert row is not None
        cells, number = rows[row + 1][1:], row + 2
        for j, place in enumerate(column):
            assert place is not None
            if place >= len(cells):
                raise UserError(f"{path}, line {number}: {len(cells)} values for {len(columns)} labels")
            cell = cells[place].strip()
            try:
                table[i, j] = float(cell) if cell else np.nan
            except ValueError as error:
                raise UserError(f"{path}, line {number}, column {columns[place]}: {cell!r} is not a number") from error
    return table


def edges(table: np.ndarray, reading: Reading) -> np.ndarray:
    """Returns non-negative edge weights (C, C).

    paper: centred on the mean of the known pairs, without negative edges and self-loops. released: every positive value
    is an edge, including the diagonal.
    """
    weights = np.array(table, dtype=np.float64)
    if reading == "paper":
        np.fill_diagonal(weights, np.nan)
        weights = np.fmax(weights, weights.T)  # a pair may be given once
        known = ~np.isnan(weights)
        if known.any():
            weights = weights - weights[known].mean()
    return np.where(np.isnan(weights) | (weights < 0), 0.0, weights)


def walks(weights: np.ndarray, length: int, per_node: int, rng: np.random.Generator) -> np.ndarray:
    """Returns (C * per_node, length) labels. A step follows an edge with a probability proportional to its weight; a
    walk that reaches a label without an edge stays there."""
    C = len(weights)
    total = weights.sum(1, keepdims=True)
    share = np.where(total > 0, weights / np.where(total > 0, total, 1), np.eye(C))
    cumulative = np.cumsum(share, 1)
    cumulative[:, -1] = 1.0 + 1e-9
    path = np.empty((C * per_node, length), dtype=np.int64)
    path[:, 0] = np.repeat(np.arange(C), per_node)
    for step in range(1, length):
        draw = rng.random(len(path))
        path[:, step] = (cumulative[path[:, step - 1]] <= draw[:, None]).sum(1)
    return path


def isolated(weights: np.ndarray) -> np.ndarray:
    """Returns (C,) True for labels without an edge to another label."""
    others = np.array(weights)
    np.fill_diagonal(others, 0)
    return np.logical_not((others > 0).any(0) | (others > 0).any(1))
