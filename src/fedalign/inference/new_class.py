"""A row for a class that nobody labelled: from its name, from a handful of examples, or from both.

From its name. Label vectors of the known names and of the new one lie in one space; the rows that training made of the
known ones lie in another. Kernel regression carries the new vector over: names alike, rows alike. It can only rank as
well as names tell, and few known classes tell little.

From examples. The row moves from there until the examples get the new class. The known classes take part as a made-up
vector each, and so do other rows where there are some, each with what the model says of it now: without them the new
class swallows rows of the others.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.errors import UserError
from fedalign.labels.settings import Labels
from fedalign.learning.model import DualEncoder
from fedalign.types import Rows

RIDGE = 0.1  # of the kernel's mean diagonal
HOLD = 0.01  # how strongly the row stays where its name put it
STEPS = 60


def labels_from(source: str | Path | Labels) -> Labels:
    """What a person may say: sentence, the name or path of counts, the path of vectors, or a whole section."""
    if isinstance(source, Labels):
        return source
    text = str(source)
    if text == "sentence":
        return Labels(source="sentence")
    if Path(text).suffix in (".npz", ".safetensors"):
        return Labels(source="vectors", file=text)
    if Path(text).suffix == ".csv":
        return Labels(source="table", file=text)
    return Labels(source="counts", file=text)


def from_name(vectors: Tensor, rows: Tensor) -> Tensor:
    """(d,) for the last of the vectors (C + 1, width), given the learned rows (C, d) of the others."""
    centred = F.normalize(vectors - vectors[:-1].mean(0), dim=1)
    known, new = centred[:-1], centred[-1]
    kernel = known @ known.T
    kernel = kernel + RIDGE * kernel.diagonal().mean() * torch.eye(len(known))
    mean = rows.mean(0)
    row = mean + torch.linalg.solve(kernel, known @ new) @ (rows - mean)
    return row * rows.norm(dim=1).mean() / row.norm().clamp(min=1e-9)


def from_examples(model: DualEncoder, x: Rows, first: Tensor | None, others: Rows | None = None) -> Tensor:
    """(d,) that gives the examples the new class and leaves the known ones theirs."""
    with torch.no_grad():
        return fitted(model, model.encode(x), first, None if others is None else model.encode(others))


def fitted(model: DualEncoder, z: Tensor, first: Tensor | None, others: Tensor | None = None) -> Tensor:
    """The same for rows that are encoded already."""
    if not len(z):
        raise UserError("there is no example; give at least one row")
    rows, head = model.anchors(), model.label_encoder
    size = rows.norm(dim=1).mean()
    if first is None:
        first = F.normalize(F.normalize(z, dim=1).mean(0), dim=0) * size
    unit = (lambda w: F.normalize(w, dim=-1)) if head.normalise else (lambda w: w)
    # what must stay as it is: the classes by their own rows, and what the model says of other rows now
    stay, said = F.normalize(rows, dim=1) * z.norm(dim=1).mean(), torch.arange(len(rows))
    if others is not None and len(others):
        stay, said = torch.cat([stay, others]), torch.cat([said, (others @ unit(rows).T).argmax(1)])
    both = torch.cat([z, stay])
    row = first.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([row], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        all_rows = unit(torch.cat([rows, row.view(1, -1)]))
        held = HOLD * ((row - first) / size).square().sum()
        if model.task == "single":
            target = torch.cat([torch.full((len(z),), len(rows)), said])
            each = F.cross_entropy(both @ all_rows.T, target, reduction="none")
        else:
            answer = torch.cat([torch.ones(len(z)), torch.zeros(len(stay))])
            each = F.binary_cross_entropy_with_logits(both @ all_rows[-1], answer, reduction="none")
        return each[: len(z)].mean() + each[len(z) :].mean() + held

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(step)
    found = row.detach()
    if not bool(found.isfinite().all()):
        raise UserError("the examples gave no finite row; check them for huge numbers")
    return found
