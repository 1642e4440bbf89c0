"""What a gradient tells about the rows it was computed from: the words of texts, and rows themselves.

Words: only the vectors of words that occur move. Rows, first attack: the gradients of the weights and of the bias of a
unit in the first linear layer are sums over rows with the same factors, so their quotient is a mean of rows, and the
row itself if only one moved the unit. Second attack: rows are changed until their gradient is the one that was seen
(Zhu et al., NeurIPS 2019), compared by its direction (Geiping et al., NeurIPS 2020). The attacker knows how many rows
there are, their lengths and their labels, which is more than a server knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedalign.learning import losses
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder
from fedalign.learning.optimizers import Adam, Group
from fedalign.learning.replies import in_full
from fedalign.learning.rounds import Plan
from fedalign.randomness import seeded, torch_generator
from fedalign.types import Arrays, Examples, Rows, Sequences, Server, Update

ROWS = 16  # in the gradient that is attacked
STEPS, RATE = 1000, 0.05  # of the second attack
FEWEST, WORK = 100, 10**11  # steps where a step is much work, in weights times rows (or time steps)
SAME, ALIKE = 0.999, 0.9  # cosine from which a row counts as found exactly, and as found


def words(plan: Plan, client: int, after: Arrays) -> dict[str, int] | None:
    """How many different words a party's texts contain, how many its update shows, and how many of these are right."""
    before = plan.model.arrays()
    tables = [f"{name}.embedding" for name, part in plan.model.named_modules() if getattr(part, "tokens", False)]
    rows = plan.federation.parties[client].train.x
    if not tables or tables[0] not in after or not isinstance(rows, Sequences):
        return None
    moved = (after[tables[0]] != before[tables[0]]).any(1)
    own = torch.zeros_like(moved)
    own[rows.values.long().unique()] = True
    return {"words": int(own.sum()), "shown": int(moved.sum()), "right": int((moved & own).sum())}


def rows(plan: Plan, client: int) -> dict[str, Any] | None:
    """How many of a few rows of a party are found from the gradient of one step, and from the update of a visit with
    these rows only. None for texts, where `words` is the simpler attack, and for parties with few labelled rows."""
    party = plan.federation.parties[client]
    labelled = losses.rows_with_loss(party.train, plan.federation.task).nonzero().flatten()
    if len(labelled) < 2 * ROWS or not _has_numbers(party.train.x):
        return None
    order = torch.randperm(len(labelled), generator=torch_generator(plan.config.seed, "inversion", client))
    own, other = (party.train.take(labelled[places]) for places in order[: 2 * ROWS].split(ROWS))
    model = _twice_differentiable(plan.model)
    step = gradient(model, own, own.x)
    before, server, key = plan.model.arrays(), plan.start(), (plan.config.seed, 1, client)
    update, _ = train_client(plan.algorithm, ModelPair(plan.model), server, own, {}, plan.config.training, key)
    update = as_received(plan, server, update)
    visit = {name: before[name] - update.weights[name] for name in step if name in update.weights}
    found: dict[str, Any] = {"party": party.name, "rows": ROWS, "epochs": plan.config.training.epochs}
    found["steps"] = steps_for(model, _values(own.x))
    for name, seen in (("one_step", step), ("visit", visit)):
        guessed = optimised(model, own, seen, plan.config.seed)
        found[name] = {"exact": quotients(model, own.x, seen), "found": alike(own.x, guessed)}
    found["chance"] = alike(own.x, other.x)
    return found


def as_received(plan: Plan, server: Server, update: Update) -> Update:
    """The update as the server completes it, where a client sends the vectors of its own classes only."""
    if not plan.algorithm.own_class_vectors:
        return update
    return in_full(update, plan.algorithm.reply_spec(server, 1), plan.model.class_arrays)


def _has_numbers(x: Rows) -> bool:
    """Whether these are rows of numbers or series of them, and neither texts nor images."""
    return _values(x).dim() == 2


def _values(x: Rows) -> Tensor:
    """(k, F) rows of numbers, or the time steps of series."""
    return x.values if isinstance(x, Sequences) else x


def _twice_differentiable(model: DualEncoder) -> DualEncoder:
    found = model.clone()
    for part in found.modules():
        if hasattr(part, "plain"):
            setattr(part, "plain", True)  # noqa: B010 (of a module that declares it)
    if not found.keyed:
        found.eval()
    return found


def gradient(model: DualEncoder, labels: Examples, x: Rows, graph: bool = False) -> Arrays:
    """The gradient of the task loss of these labels with rows x, by name; `graph`: it can be differentiated again."""
    arrays = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    logits = functional_call(model, arrays, (x,))
    loss = losses.task_loss[model.task](logits, replace(labels, x=x))
    found = torch.autograd.grad(loss, list(arrays.values()), create_graph=graph, allow_unused=True)
    return {name: value for name, value in zip(arrays, found, strict=True) if value is not None}


def quotients(model: DualEncoder, x: Rows, seen: Arrays) -> int:
    """How many rows, or time steps of series, the first linear layer shows as they are."""
    true = _values(x)
    for name, weight in model.named_parameters():
        bias = f"{name}_bias" if f"{name}_bias" in seen else name.replace(".weight", ".bias")
        if weight.dim() == 2 and weight.shape[1] == true.shape[1] and {name, bias} <= seen.keys() and bias != name:
            units = seen[bias].abs() > 1e-9 * seen[bias].abs().max()
            guesses = seen[name][units] / seen[bias][units, None]
            cosines = F.normalize(true, dim=1) @ F.normalize(guesses, dim=1).T
            return int((cosines > SAME).any(1).sum())
    return 0


def optimised(model: DualEncoder, labels: Examples, seen: Arrays, seed: int) -> Rows:
    """Rows whose gradient has the direction of the one that was seen, as far as some steps of Adam lead."""
    like = _values(labels.x)
    with seeded(seed):
        values = nn.Parameter(torch.randn(like.shape))
    optimizer = Adam([Group([values], RATE)])
    for _ in range(steps_for(model, like)):
        x = Sequences(values, labels.x.offsets) if isinstance(labels.x, Sequences) else values
        found = gradient(model, labels, x, graph=True)
        names = [name for name in found if name in seen]
        ours, theirs = (torch.cat([part[name].reshape(-1) for name in names]) for part in (found, seen))
        (values.grad,) = torch.autograd.grad(1 - F.cosine_similarity(ours, theirs, dim=0), values)
        optimizer.step()
    done = values.detach()
    return Sequences(done, labels.x.offsets) if isinstance(labels.x, Sequences) else done


def steps_for(model: DualEncoder, like: Tensor) -> int:
    """How many steps the second attack takes: minutes at most."""
    weights = sum(value.numel() for value in model.parameters())
    return min(STEPS, max(FEWEST, WORK // max(weights * len(like), 1)))


def alike(true: Rows, guessed: Rows) -> int:
    """How many rows are guessed, if each guess stands for one row. Of two series the common beginning is compared."""
    cosines = torch.stack([torch.stack([_cosine(one, other) for other in _list(guessed)]) for one in _list(true)])
    places = linear_sum_assignment(cosines.numpy(), maximize=True)
    return int((cosines[places] > ALIKE).sum())


def _list(x: Rows) -> list[Tensor]:
    if not isinstance(x, Sequences):
        return list(x)
    return [x.values[first:last].flatten() for first, last in zip(x.offsets, x.offsets[1:], strict=False)]


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    length = min(len(one), len(other))
    return F.cosine_similarity(one[:length].double(), other[:length].double(), dim=0)
