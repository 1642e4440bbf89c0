"""Training on top of the analytic solution: `algorithm.base = "analytic"`, for every method.

A run has three phases. First the exchanges of the analytic method, on the fixed feature map of the stacked encoder
(`encoders/stacked.py`). Then the rounds of the method itself, which trains the other encoder and the class vectors; the
solution stays as it is. Last one exchange in which every client measures two models on its own rows, the solution alone
and the mean of the last rounds on top of it. The better one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedalign.learning import scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic import choose, priors
from fedalign.learning.local_training import labelled_rows
from fedalign.learning.model import DualEncoder, Head, LabelEncoder
from fedalign.learning.replies import Rejection
from fedalign.types import (
    Arrays,
    ArraySpec,
    Examples,
    ReplySpec,
    Server,
    Task,
    Update,
    Visit,
    under_prefix,
    with_prefix,
)

MIX = 1.0  # how much the trained encoder counts; 0 while the solution decides alone
RATE = 0.2  # of training.lr: at the full rate clients drift, and the solution's lead is lost after a few rounds
MARGIN = 0.95  # multi-label: the ranking error that training must reach, relative to the solution's, to be kept
MEMORY = 0.8  # of the running mean of the rounds' weights
SCALE = 0.25  # of logits in histograms, whose bins are made for scores
NAMES = {"label_encoder.weight": "data_encoder.base_weight", "label_encoder.bias": "data_encoder.base_bias"}
ENCODER, MAP = "data_encoder.", "data_encoder.fixed_map."
MIXED = "data_encoder.mix"
PHASE, PRIOR = "base_phase", "prior"  # what clients receive besides the method's own arrays
MEAN, BASE = "mean/", "base/"
double = torch.float64


class Phase(IntEnum):
    SOLVING = 0
    TRAINING = 1
    CHOOSING = 2
    DONE = 3


@dataclass(frozen=True, kw_only=True)
class OnBase(Algorithm):
    """Runs `first` until it has finished, then `rounds` rounds of `then`, then chooses."""

    own_thresholds: ClassVar[bool] = True

    first: Algorithm
    then: Algorithm
    rounds: int

    @property
    def head(self) -> Head:
        return self.then.head

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return self.first.planned_rounds(solution_of(model), 1) + self.rounds + 1

    def participants(self, server: Server) -> list[int] | None:
        phase = phase_of(server)
        if phase is Phase.SOLVING:
            return self.first.participants(_solving(server))
        return self.then.participants(server) if phase is Phase.TRAINING else list(range(server.num_clients))

    def finished(self, server: Server) -> bool:
        return phase_of(server) is Phase.DONE

    def worth_scoring(self, server: Server) -> bool:
        return phase_of(server) is not Phase.SOLVING

    def needs_class_f1(self, task: Task) -> bool:
        return self.then.needs_class_f1(task)

    def thresholds(self, server: Server) -> Tensor | None:
        found = server.state.get("thresholds")
        return None if found is None else found.float()

    def shared(self, model: DualEncoder) -> tuple[str, ...]:
        return self.then.shared(model)

    def summary(self, server: Server) -> dict[str, Any]:
        found = dict(self.first.summary(replace(server, state=under_prefix(server.state, BASE))))
        if "losses" in server.state:
            alone, trained = server.state["losses"].tolist()
            found |= {"kept": "trained" if trained < alone else "analytic solution"}
            found |= {"validation_loss": {"analytic solution": alone, "trained": trained}}
        return found

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        found = self.first.warnings(replace(server, state=under_prefix(server.state, BASE)), label_names)
        if "losses" in server.state and not server.state["losses"][1] < server.state["losses"][0]:
            alone, trained = server.state["losses"].tolist()
            found.append(
                f"training did not improve on the analytic solution (validation loss {trained:.4f} instead of "
                f"{alone:.4f}), so the solution is kept alone"
            )
        return found

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        phase = Phase(int(visit.received[PHASE]))
        if phase is Phase.SOLVING:
            view = replace(visit, model=solution_of(visit.model), start=solution_of(visit.start))
            return self.first.local_update(replace(view, received=under_prefix(visit.received, BASE)))
        if phase is Phase.TRAINING:
            for model in (visit.model, visit.start):
                model.data_encoder.mix.fill_(MIX)  # type: ignore[operator]
            config = visit.config
            slow = {"lr": RATE * config.lr, "label_lr": None if config.label_lr is None else RATE * config.label_lr}
            return self.then.local_update(replace(visit, config=config.model_copy(update=slow)))
        sent = measured(visit)
        return Update({}, labelled_rows(visit.data, visit.model.task), visit.data.classes, sent), {}

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        later = self.then.start(model, num_clients)
        begun = self.first.start(solution_of(model), num_clients)
        # the same names in every phase, so that a checkpoint of any phase can be recognised
        extra = {**later.extra, **with_prefix(begun.extra, BASE), PHASE: torch.tensor([int(Phase.SOLVING)])}
        extra[PRIOR] = torch.zeros(0)  # unknown
        return Server(model.arrays(), num_clients, model.class_arrays, extra, begun.state, later.returned)

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        phase = phase_of(server)
        if phase is Phase.SOLVING:
            solved = self.first.server_step(solution_of(model), _solving(server), updates)
            server = replace(server, weights=with_solution(server.weights, solved.weights), state=solved.state)
            server = replace(server, extra={**server.extra, **with_prefix(solved.extra, BASE)})
            return self._begin(model, server) if self.first.finished(solved) else server
        if phase is Phase.TRAINING:
            return self._after_round(model, server, updates)
        return _chosen(server, [update.extra for update in updates])

    def _begin(self, model: DualEncoder, server: Server) -> Server:
        """The sums are no longer needed; what was chosen is kept for the summary."""
        begun = self.then.start(model.clone().load(server.weights), server.num_clients)
        small = {name: value for name, value in server.state.items() if not name.endswith(("/grams", "/class_sums"))}
        state = {**begun.state, **with_prefix(small, BASE), "rounds": torch.zeros(1, dtype=torch.int64)}
        if "thresholds" in server.state:
            state["thresholds"] = server.state["thresholds"].clone()
        extra = {**server.extra, **begun.extra, PHASE: torch.tensor([int(Phase.TRAINING)])}
        if "priors" in server.state:
            extra[PRIOR] = server.state["priors"].float()
        return replace(server, extra=extra, state=state)

    def _after_round(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        stepped = self.then.server_step(model, _training(server), updates)
        weights = {**stepped.weights, MIXED: torch.tensor(MIX)}
        before = under_prefix(stepped.state, MEAN)
        mean = {
            name: MEMORY * before.get(name, weights[name]) + (1 - MEMORY) * weights[name] for name in server.returned
        }
        done = stepped.state["rounds"] + 1
        state = {name: value for name, value in stepped.state.items() if not name.startswith(MEAN)} | {"rounds": done}
        last = int(done) >= self.rounds
        if last:
            weights |= mean
        else:
            state |= {f"{MEAN}{name}": value for name, value in mean.items()}
        phase = Phase.CHOOSING if last else Phase.TRAINING
        extra = {**server.extra, **stepped.extra, PHASE: torch.tensor([int(phase)])}
        return replace(stepped, weights=weights, state=state, extra=extra)

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        phase = phase_of(server)
        if phase is Phase.SOLVING:
            return self.first.reply_spec(_solving(server), round_number)
        if phase is Phase.TRAINING:
            return self.then.reply_spec(_training(server), round_number)
        return closing_spec(len(server.weights[NAMES["label_encoder.bias"]]))

    def reply_specs(self, server: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        found = {f"base, {when}": spec for when, spec in self.first.reply_specs(_solving(server), data).items()}
        found |= {"each round": self.then.reply_spec(_training(server), 1)}
        return found | {"at the end": closing_spec(len(server.weights[NAMES["label_encoder.bias"]]))}

    def reject(self, update: Update) -> Rejection | None:
        return self.first.reject(update) if "grams" in update.extra or "documents" in update.extra else None

    def observe(self, server: Server, class_f1: Tensor) -> Server:
        return self.then.observe(server, class_f1)


def phase_of(server: Server) -> Phase:
    return Phase(int(server.extra[PHASE]))


def solution_of(model: DualEncoder) -> DualEncoder:
    """The linear model inside of a stacked one, as a model of its own on the same arrays."""
    stacked: Any = model.data_encoder
    head = LabelEncoder(stacked.base_weight, bias=True, normalise=False)
    assert head.bias is not None
    head.bias.data.copy_(stacked.base_bias)
    return DualEncoder(stacked.fixed_map, head, model.task)


def solution_arrays(weights: Arrays) -> Arrays:
    """The arrays of the linear model, by the names that they have in `solution_of`."""
    found = {ENCODER + name.removeprefix(MAP): value for name, value in weights.items() if name.startswith(MAP)}
    return found | {name: weights[stored] for name, stored in NAMES.items()}


def with_solution(weights: Arrays, solution: Arrays) -> Arrays:
    """The arrays of a stacked model with those of its linear model replaced."""
    new = {MAP + name.removeprefix(ENCODER): value for name, value in solution.items() if name.startswith(ENCODER)}
    return weights | new | {stored: solution[name] for name, stored in NAMES.items()}


def _solving(server: Server) -> Server:
    """The server as the analytic method sees it."""
    weights, extra = solution_arrays(server.weights), under_prefix(server.extra, BASE)
    return replace(server, weights=weights, class_arrays=tuple(NAMES), extra=extra, returned=())


def _training(server: Server) -> Server:
    """The server as the method on top sees it."""
    own = {name: value for name, value in server.extra.items() if not name.startswith(BASE)}
    return replace(server, extra={name: value for name, value in own.items() if name not in (PHASE, PRIOR)})


def measured(visit: Visit) -> Arrays:
    """What a client sends at the end: single-label, losses of its validation rows; multi-label, histograms of scores.

    The first of two entries is the analytic solution alone, the second the trained model as received.
    """
    model, validation = visit.model, visit.validation or visit.data.take(torch.arange(0))
    classes = len(model.label_encoder.weight)
    both = torch.eye(2 * classes, 2 * classes + 1, dtype=double).view(2, classes, -1)  # (2, C, 2C + 1)
    if model.task == "single":
        return choose.loss_sums([_two_logits(model, validation)], validation.y, validation.known, both)
    return {
        name: choose.histograms([SCALE * _two_logits(model, part)], part.y, part.known, both)
        for name, part in (("validation", validation), ("training", visit.data))
    }


def _two_logits(model: DualEncoder, data: Examples) -> Tensor:
    """(n, 2C) the logits of the solution alone and of the whole model."""
    z = scoring.encode(model, data.x)
    return torch.cat([z[:, -len(model.label_encoder.weight) :], model.label_encoder(z).detach()], 1)


def closing_spec(classes: int) -> ReplySpec:
    """What a client may send at the end."""
    shapes: dict[str, tuple[int, ...]] = {
        "losses": (2, len(choose.TEMPERATURES)),
        "rows": (1,),
        "validation": (2, classes, 3, choose.BINS),
        "training": (2, classes, 3, choose.BINS),
    }
    return ReplySpec({}, {name: ArraySpec(shape, double) for name, shape in shapes.items()})


def _chosen(server: Server, answers: Sequence[Arrays]) -> Server:
    """The server's last state: the better of the two models, with thresholds in multi-label."""
    state, weights = dict(server.state), dict(server.weights)
    if any("losses" in answer for answer in answers):
        total = torch.stack([answer["losses"] for answer in answers if "losses" in answer]).sum(0)  # (2, T)
        rows = torch.stack([answer["rows"] for answer in answers if "rows" in answer]).sum(0)
        state["losses"] = total.min(1).values / rows.clamp(min=1)
    elif any("validation" in answer for answer in answers):
        validation, training = (
            torch.stack([answer[name] for answer in answers if name in answer]).sum(0)
            for name in ("validation", "training")
        )  # (2, C, 3, BINS)
        state["losses"] = torch.tensor([1 - choose.ranking(one) for one in validation], dtype=double)
        # owners' rows decide about all rows here, so a small gain proves nothing
        state["losses"][1] /= MARGIN
        number = int(bool(state["losses"][1] < state["losses"][0]))
        if number and f"{BASE}priors" in state:
            seen = (validation[number] + training[number]).sum(1)
            cut = priors.thresholds(seen, state[f"{BASE}priors"])
            state["thresholds"] = torch.sigmoid(cut / SCALE)
    if "losses" in state and not bool(state["losses"][1] < state["losses"][0]):
        weights[MIXED] = torch.zeros(())
        # the class vectors read the scores of the solution as they are
        classes = len(weights[NAMES["label_encoder.bias"]])
        vectors = weights["label_encoder.weight"].clone()
        vectors[:, -classes:] = torch.eye(classes)
        weights["label_encoder.weight"] = vectors
        if "label_encoder.bias" in weights:
            weights["label_encoder.bias"] = torch.zeros(classes)
    extra = {**server.extra, PHASE: torch.tensor([int(Phase.DONE)])}
    return replace(server, weights=weights, state=state, extra=extra)
