"""The class vector of a class without labels: from its name, from a few examples, or from both.

From its name. The label vectors of the known names and of the new one share a space; the class vectors that training
made of the known classes are in another. Kernel regression maps the new label vector into the second: similar names get
similar class vectors. The result ranks rows only as well as names do, and few known classes give little to learn from.

From examples. The vector moves from there until the examples get the new class. Each known class takes part with one
made-up row, and so do other rows if there are any, each with the class that the model gives it now. Without them the
new class would take rows of the others.

On fixed features (analytic learning) class vectors are weights of a linear model, and names say nothing about them. The
examples and the other rows are then fitted by ridge regression, and the scores are scaled to logits on rows that were
left out of the fit one by one. Without other rows the result ranks well, but decides by made-up rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.errors import UserError
from fedalign.inference.finite import check_finite
from fedalign.labels.settings import Labels
from fedalign.learning import scoring
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.types import Rows

RIDGE = 0.1  # of the kernel's mean diagonal
HOLD = 0.01  # how strongly the class vector stays where its name put it
STEPS = 60
STRONG = 10.0  # ridge on fixed features, of the kernel's mean diagonal; there are few examples
NO_NAMES = "this model has fixed features, on which a name says nothing; leave out source= and give examples= instead"
NO_VECTOR = "the examples give no finite class vector; check them for very large numbers"


def labels_from(source: str | Path | Labels) -> Labels:
    """The `[labels]` section that a source stands for: sentence, the name or path of counts, or a vectors file."""
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


def from_name(label_vectors: Tensor, class_vectors: Tensor) -> Tensor:
    """(d,) class vector for the last label vector of (C + 1, width), given those (C, d) of the other classes."""
    centred = F.normalize(label_vectors - label_vectors[:-1].mean(0), dim=1)
    known, new = centred[:-1], centred[-1]
    kernel = known @ known.T  # (C, C)
    kernel = kernel + RIDGE * kernel.diagonal().mean() * torch.eye(len(known))
    mean = class_vectors.mean(0)
    found = mean + torch.linalg.solve(kernel, known @ new) @ (class_vectors - mean)
    return found * class_vectors.norm(dim=1).mean() / found.norm().clamp(min=1e-9)


def mean_bias(head: LabelEncoder) -> Tensor | None:
    """The bias (C + 1,) of a head with one more class, which gets the mean of the others; None without a bias."""
    return None if head.bias is None else torch.cat([head.bias.detach(), head.bias.detach().mean().view(1)])


def fixed_features(model: DualEncoder) -> bool:
    """Whether the model is linear on features that are never trained."""
    fixed = getattr(getattr(model.data_encoder, "options", None), "fixed", False)
    return bool(fixed) and model.label_encoder.bias is not None


def check_source(model: DualEncoder, source: str | Path | Labels | None) -> None:
    """Raises UserError if the model cannot learn a class from its name."""
    if source is not None and fixed_features(model):
        raise UserError(NO_NAMES)


def from_examples(model: DualEncoder, x: Rows, first: Tensor | None, others: Rows | None = None) -> Tensor:
    """(d,) class vector that gives the examples the new class and lets the known classes keep their rows."""
    z = check_finite(scoring.encode(model, x))
    return fitted(model, z, first, None if others is None else check_finite(scoring.encode(model, others)))


def fitted(model: DualEncoder, z: Tensor, first: Tensor | None, others: Tensor | None = None) -> Tensor:
    """The same for rows that are encoded already."""
    if not len(z):
        raise UserError("there is no example; give at least one row")
    known, head = model.anchors(), model.label_encoder  # (C, d)
    size = known.norm(dim=1).mean()
    if first is None:
        first = F.normalize(F.normalize(z, dim=1).mean(0), dim=0) * size
    start, bias = first, mean_bias(head)

    def unit(vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if head.normalise else vectors

    def logits(rows: Tensor, vectors: Tensor) -> Tensor:
        return F.linear(rows, unit(vectors), None if bias is None else bias[: len(vectors)])

    # rows that must keep their class: one made up per known class, and the others with what the model gives them now
    stay, classes = F.normalize(known, dim=1) * z.norm(dim=1).mean(), torch.arange(len(known))
    if others is not None and len(others):
        stay, classes = torch.cat([stay, others]), torch.cat([classes, logits(others, known).argmax(1)])
    both = torch.cat([z, stay])
    target = torch.cat([torch.full((len(z),), len(known)), classes])

    def loss(vector: Tensor) -> Tensor:
        held = HOLD * ((vector - start) / size).square().sum()
        if model.task == "single":
            found = logits(both, torch.cat([known, vector.view(1, -1)]))  # (n, C + 1)
            each = F.cross_entropy(found, target, reduction="none")
        else:
            own = both @ unit(vector) + (0.0 if bias is None else bias[-1])  # (n,)
            each = F.binary_cross_entropy_with_logits(own, (target == len(known)).float(), reduction="none")
        return each[: len(z)].mean() + each[len(z) :].mean() + held

    return _minimum(loss, start)


def _minimum(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The vector with the smallest loss, found by L-BFGS."""
    vector = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([vector], max_iter=STEPS, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(vector)
        value.backward()
        return value

    try:
        with torch.enable_grad():
            optimizer.step(step)
    except RuntimeError as error:  # a step whose length overflows
        raise UserError(NO_VECTOR) from error
    found = vector.detach()
    if not bool(found.isfinite().all()):
        raise UserError(NO_VECTOR)
    return found


# --- fixed features ---------------------------------------------------------------------------------------------------


def on_fixed_features(model: DualEncoder, x: Rows, others: Rows | None = None) -> tuple[Tensor, Tensor]:
    """Class vector (d,) and bias (1,) of the new class, fitted by least squares in the space of the features."""
    z = check_finite(scoring.encode(model, x)).double()
    if not len(z):
        raise UserError("there is no example; give at least one row")
    known, bias = model.anchors().double(), model.label_encoder.bias
    rest = _made_up(z, known) if others is None or not len(others) else check_finite(scoring.encode(model, others))
    rows = torch.cat([z, rest.double()])  # (n, d)
    target = torch.cat([torch.ones(len(z)), torch.zeros(len(rest))]).double()
    weight = torch.cat([torch.full((len(part),), 0.5 / len(part)) for part in (z, rest)]).double()
    vector, constant, left_out = _ridge(rows, target, weight)
    rivals = torch.zeros(len(rows), dtype=torch.float64)
    if model.task == "single":  # the new class competes with the known ones
        logits = rows @ known.T + (0.0 if bias is None else bias.detach().double())
        rivals = logits.logsumexp(1)

    def loss(line: Tensor) -> Tensor:
        margin = line[0].exp() * left_out + line[1] - rivals
        each = F.binary_cross_entropy_with_logits(margin, target, reduction="none")
        return (weight * each).sum() + 1e-3 * (line[0] - 1).square()

    slope, offset = _minimum(loss, torch.tensor([1.0, -2.0], dtype=torch.float64))
    slope = slope.exp()
    found = (slope * vector).float(), (slope * constant + offset).float().view(1)
    if not all(bool(part.isfinite().all()) for part in found):
        raise UserError(NO_VECTOR)
    return found


def _made_up(z: Tensor, known: Tensor) -> Tensor:
    """One row per known class (C, d): like the examples, and moved towards the class."""
    size = z.norm(dim=1).mean()
    return F.normalize(z.mean(0) + F.normalize(known, dim=1) * size, dim=1) * size


def _ridge(rows: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (d,) and constant of a ridge regression, and the score of each row if it is left out of the fit (n,)."""
    mean, middle, root = weight @ rows, weight @ target, weight.sqrt()
    centred, wanted = (rows - mean) * root[:, None], (target - middle) * root
    kernel = centred @ centred.T  # (n, n)
    added = max(STRONG * float(kernel.diagonal().mean()), 1e-12)
    inverse = torch.linalg.inv(kernel + added * torch.eye(len(rows), dtype=torch.float64))
    dual = inverse @ wanted
    vector = centred.T @ dual
    return vector, middle - mean @ vector, (wanted - dual / inverse.diagonal()) / root + middle
