"""A sheet of the test images of whose classes a model is most and least certain, for a simulation or a party itself.

It is a file of its own beside the page, because a page may be sent to people who must not see the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning import scoring
from fedalign.learning.model import DualEncoder, probabilities
from fedalign.learning.rounds import Plan
from fedalign.report.facts import DATA_CHANGED, Rebuilder, data_changed, load_weights
from fedalign.report.load import StoredRun
from fedalign.report.style import SOFT, printable, save
from fedalign.types import Examples, Task

NAME = "contact-sheet.png"
ACROSS, DOWN = 8, 2  # images of each kind
CELL = 1.15  # inches


def make(run: StoredRun, rebuilder: Rebuilder) -> Path:
    """Writes contact-sheet.png into the run's folder."""
    if run.config is None:
        raise UserError(f"{run.folder} has no configuration, so its images are not found")
    plan = rebuilder.plan(run.config)
    if data_changed(run, plan):
        raise UserError(f"{run.folder}: {DATA_CHANGED}, so no contact sheet is made")
    if plan.models:
        raise UserError(f"each party of {run.folder} has a model of its own, so there is no contact sheet")
    path = run.folder / NAME
    save(drawn(plan, plan.model.clone().load(load_weights(run)[1])), path)
    return path


def drawn(plan: Plan, model: DualEncoder) -> Figure:
    """The sheet of a model's test rows."""
    data = plan.federation
    if data.test is None or not len(data.test):
        raise UserError("a contact sheet shows test rows, and there are none; set dataset.test to a share")
    if data.inputs.pictures(data.test.x) is None:
        raise UserError(f"a contact sheet shows images, and this run reads {data.inputs.rows_called}")
    with scoring.threads() as pool:
        logits = scoring.logits(model, data.test.x, pool)  # (n, C)
    chances = probabilities(logits, data.task)
    most, least = chosen(certainty(logits, data.task))
    rows = torch.cat([most, least])
    found = data.test.take(rows)
    pictures = data.inputs.pictures(found.x)
    assert pictures is not None
    captions = [caption(chances[row], found, place, data.label_names, data.task) for place, row in enumerate(rows)]
    return _figure(pictures, captions, len(most))


def certainty(logits: Tensor, task: Task) -> Tensor:
    """(n,) how far the likeliest class is ahead of all others together or, multi-label, the mean distance of all
    chances from one half. Chances that are rounded to 1 differ in their logits."""
    if task == "multi":
        return (probabilities(logits, task) - 0.5).abs().mean(1)
    best, rest = logits.topk(1, dim=1), logits.clone()
    rest.scatter_(1, best.indices, float("-inf"))
    return best.values[:, 0] - rest.logsumexp(1)  # the log odds of the likeliest class


def chosen(certain: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are most and least certain; no row is in both."""
    order = certain.argsort(descending=True, stable=True)
    count = min(ACROSS * DOWN, len(order) // 2 or 1)
    return order[:count], order[count:].flip(0)[:count]


def caption(chances: Tensor, rows: Examples, place: int, names: Sequence[str], task: Task) -> str:
    """The predicted class with its chance, and the true one below it if it is another."""
    best = int(chances.argmax())
    first = f"{printable(names[best], 14)} {100 * float(chances[best]):.0f} %"
    true = [names[c] for c in ((rows.y[place] > 0) & rows.known[place]).nonzero().flatten().tolist()]
    if task == "single" and true == [names[best]]:
        return first
    return f"{first}\n({printable(', '.join(true) or 'none', 18)})"


def _figure(pictures: np.ndarray, captions: list[str], most: int) -> Figure:
    parts = [("most certain", range(most)), ("least certain", range(most, len(pictures)))]
    lines = [(title, list(part)[i : i + ACROSS]) for title, part in parts for i in range(0, len(part), ACROSS)]
    figure = Figure(figsize=(ACROSS * CELL, len(lines) * CELL * 1.35 + 0.4))
    axes = figure.subplots(len(lines), ACROSS, squeeze=False)
    for (title, places), row in zip(lines, axes, strict=True):
        for axis in row:
            axis.set_axis_off()
        for place, axis in zip(places, row, strict=False):
            shown = pictures[place]
            axis.imshow(shown[..., 0] if shown.shape[2] == 1 else shown, cmap="gray", vmin=0, vmax=1)
            axis.set_title(captions[place], fontsize=6, color=SOFT)
        row[0].text(-0.12, 0.5, title, rotation=90, ha="right", va="center", fontsize=7, transform=row[0].transAxes)
    figure.suptitle("Test images: the predicted class, and in brackets the true one where it differs", fontsize=8)
    figure.tight_layout()
    return figure
