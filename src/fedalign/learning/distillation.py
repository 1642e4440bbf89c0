"""One model for all from clients with encoders of their own: `[encoder] distilled = true`.

After the last round the clients are teachers. Each labels the unknown entries of its own rows with its own model and
sends sums over these rows, in the features of a fixed map that all clients share. The server solves for a linear model
on these features, the student, by the exchanges of the analytic method. It minimises

    sum over known entries (z.w - y)^2 + omega * sum over unknown entries (z.w - q)^2 + penalty * |w|^2

where q is the teacher's probability. omega and penalty are chosen on sums over the clients' validation rows. Encoders
stay where they are, and the clients' own models do not change.

With `taught_rounds` the student then teaches the clients: each labels the unknown entries of its own rows with the
student and trains its own model on them, so that it learns the classes that it does not annotate. Clients send nothing
in these rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fedalign.learning import metrics, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.client import TEACHER, Stage, is_held
from fedalign.learning.analytic.state import HEAD, added, stage_of
from fedalign.learning.model import DualEncoder
from fedalign.learning.own_encoders import TAUGHT, OwnEncoders, load_own
from fedalign.learning.replies import Rejection
from fedalign.types import Arrays, Examples, ReplySpec, Server, Update, Visit, under_prefix, with_prefix

PHASE = "distillation"  # what clients receive besides the arrays of training
# prefixes of the arrays of the analytic method, of the sums that the student's map is fitted on, and of its solution
STUDENT, STATISTICS, SOLUTION = "student/", "statistics/", "solution/"
LIMITS = "limits"  # the probabilities at which the student decides in multi-label
LARGE = ("/grams", "/class_sums", "/teacher_sums")  # of each client; not needed once the student is solved
ROUNDS = "rounds"


class Phase(IntEnum):
    TRAINING = 0
    SOLVING = 1
    TEACHING = 2
    DONE = 3


@dataclass(frozen=True, kw_only=True)
class Distillation(OwnEncoders):
    """`rounds` rounds of `then`, the exchanges of `analytic` about the student, and `taught_rounds` of `then` on the
    student's labels."""

    analytic: Algorithm
    student: DualEncoder  # a linear model on a fixed feature map, before it is fitted
    rounds: int
    taught_rounds: int = 0

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return self.rounds + self.analytic.planned_rounds(self.student, 1) + self.taught_rounds

    def participants(self, server: Server) -> list[int] | None:
        if phase_of(server) is Phase.TRAINING:
            return super().participants(server)
        if phase_of(server) is Phase.TEACHING:
            return list(range(server.num_clients))
        return self.analytic.participants(self._solving(server))

    def finished(self, server: Server) -> bool:
        return phase_of(server) is Phase.DONE

    def worth_scoring(self, server: Server) -> bool:
        return phase_of(server) is not Phase.SOLVING

    def solved(self, server: Server) -> bool:
        """Whether there is a distilled model."""
        return phase_of(server) in (Phase.TEACHING, Phase.DONE)

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        begun = super().start(model, num_clients)
        solving = self.analytic.start(self.student, num_clients)
        # the same names in every phase, so that a checkpoint of any phase can be recognised
        extra = {**begun.extra, **with_prefix(solving.extra, STUDENT), PHASE: torch.tensor([int(Phase.TRAINING)])}
        extra[STUDENT + TEACHER] = torch.ones(1, dtype=torch.bool)
        shapes: dict[str, Any] = self.student.data_encoder.statistics_shapes  # type: ignore[assignment]
        extra |= {STATISTICS + name: torch.zeros(0, dtype=torch.float64) for name in shapes}
        extra |= {SOLUTION + name: torch.zeros(0) for name in (*HEAD, LIMITS)}
        state = {**begun.state, **with_prefix(solving.state, STUDENT), ROUNDS: torch.zeros(1, dtype=torch.int64)}
        return replace(begun, extra=extra, state=state)

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        if phase_of(server) is Phase.TRAINING:
            return super().reply_spec(_training(server), round_number)
        if phase_of(server) is Phase.TEACHING:
            return ReplySpec({})
        return self.analytic.reply_spec(self._solving(server), round_number)

    def reply_specs(self, server: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        after = self.analytic.reply_specs(self._solving(server), data)
        found = super().reply_specs(server, data) | {f"distillation, {when}": spec for when, spec in after.items()}
        return found | ({"each round after the distillation": ReplySpec({})} if self.taught_rounds else {})

    def reject(self, update: Update) -> Rejection | None:
        if update.weights or not update.extra:
            return super().reject(update)
        return self.analytic.reject(update)

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        phase = Phase(int(visit.received[PHASE]))
        if phase is Phase.TRAINING:
            return super().local_update(visit)
        return self._taught(visit) if phase is Phase.TEACHING else self._solve(visit)

    def _taught(self, visit: Visit) -> tuple[Update, Arrays]:
        """Trains the client's own model, all its class vectors included, on the student's labels. Nothing is sent."""
        student = self.fitted(under_prefix(visit.received, STATISTICS))
        solution = under_prefix(visit.received, SOLUTION)
        limits = solution.pop(LIMITS)
        student.load(student.arrays() | solution)
        data = labelled_by(student, limits if len(limits) else None, visit.data)
        update, kept = super().local_update(visit.with_data(data))
        return replace(update, weights={}, extra={}), {**kept, TAUGHT: torch.ones(1)}

    def _solve(self, visit: Visit) -> tuple[Update, Arrays]:
        """Answers the analytic method, with the client's model as the teacher."""
        received = under_prefix(visit.received, STUDENT)
        student, data = self.fitted(under_prefix(visit.received, STATISTICS)), visit.data
        if Stage(int(received["stage"])) is not Stage.STATISTICS and not is_held(received, visit.client):
            teacher = load_own(visit.model, visit.model.arrays(), visit.state, self.kept_classes(data.classes))
            data = replace(data, extra={**data.extra, TEACHER: teacher_labels(teacher, data)})
        asked = replace(visit, model=student, start=student, data=data, received=received)
        update, _ = self.analytic.local_update(asked)
        return update, {**visit.state, **visit.optimizer_state}

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        if phase_of(server) is Phase.TRAINING:
            stepped = super().server_step(model, _training(server), updates)
            done = stepped.state[ROUNDS] + 1
            phase = Phase.SOLVING if int(done) >= self.rounds else Phase.TRAINING
            extra = {**server.extra, **stepped.extra, PHASE: torch.tensor([int(phase)])}
            return replace(stepped, extra=extra, state={**stepped.state, ROUNDS: done})
        if phase_of(server) is Phase.TEACHING:
            return self._teaching(server, server.state[ROUNDS] + 1)
        solving = self._solving(server)
        stepped = self.analytic.server_step(self.student, solving, updates)
        extra = {**server.extra, **with_prefix(stepped.extra, STUDENT)}
        if stage_of(solving) is Stage.STATISTICS:
            answers = [update.extra for update in updates]
            extra |= {STATISTICS + name: added(answers, name) for name in answers[0]}
        state = {**_without(server.state, STUDENT), **with_prefix(stepped.state, STUDENT)}
        state |= {STUDENT + name: stepped.weights[name] for name in HEAD}
        server = replace(server, extra=extra, state=state)
        if not self.analytic.finished(stepped):
            return server
        state = {name: value for name, value in state.items() if not name.endswith(LARGE)}
        limits = self.analytic.thresholds(stepped)
        solution = {**{name: stepped.weights[name].clone() for name in HEAD}, LIMITS: torch.zeros(0)}
        solution |= {} if limits is None else {LIMITS: limits.float()}
        extra |= with_prefix(solution, SOLUTION) if self.taught_rounds else {}
        return self._teaching(replace(server, extra=extra, state=state), server.state[ROUNDS])

    def _teaching(self, server: Server, done: Tensor) -> Server:
        """The server after `done` rounds of training and teaching."""
        phase = Phase.DONE if int(done) >= self.rounds + self.taught_rounds else Phase.TEACHING
        extra, state = {**server.extra, PHASE: torch.tensor([int(phase)])}, {**server.state, ROUNDS: done}
        # a new dict of the same vectors: an engine scores each dict once, and the clients' models have changed
        return replace(server, weights=dict(server.weights), extra=extra, state=state)

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        found = super().warnings(server, label_names)
        if self.solved(server) and self.analytic.summary(self._solving(server)).get("omega") == 0:
            found.append(
                "the parties' models did not improve the distilled model on validation rows, so it is learned from the "
                "parties' labels alone"
            )
        return found

    def fitted(self, statistics: Arrays) -> DualEncoder:
        """The student with its feature map fitted on sums over all clients, once they are there."""
        student = self.student.clone()
        if statistics and all(value.numel() for value in statistics.values()):
            student.data_encoder.fit(statistics)  # type: ignore[operator]
        return student

    def distilled(self, server: Server) -> tuple[DualEncoder, Tensor | None, dict[str, Any]]:
        """The student, its thresholds in multi-label, and what was chosen for it."""
        solved = self._solving(server)
        student = self.student.clone().load(solved.weights)
        return student, self.analytic.thresholds(solved), self.analytic.summary(solved)

    def _solving(self, server: Server) -> Server:
        """The server as the analytic method sees it."""
        state = under_prefix(server.state, STUDENT)
        head = {name: state.pop(name) for name in HEAD if name in state}
        weights = self.fitted(under_prefix(server.extra, STATISTICS)).arrays() | head
        extra = under_prefix(server.extra, STUDENT)
        return replace(server, weights=weights, class_arrays=HEAD, extra=extra, state=state, returned=())


def teacher_labels(model: DualEncoder, data: Examples) -> Tensor:
    """(n, C) the probability of each unknown entry by a model, 0 where the entry is known.

    Single-label: among the classes that are not known for the row, since the known ones are ruled out.
    """
    logits, unknown = scoring.logits(model, data.x).double(), ~data.known
    if model.task == "multi":
        return torch.sigmoid(logits) * unknown
    return torch.softmax(logits.masked_fill(~unknown, -torch.inf), 1).nan_to_num(0.0)  # rows with a label: all 0


def labelled_by(model: DualEncoder, thresholds: Tensor | None, data: Examples) -> Examples:
    """The rows with a model's decisions for the entries that are unknown."""
    logits, unknown = scoring.logits(model, data.x), ~data.known
    if model.task == "single":
        logits = logits.masked_fill(data.known, -torch.inf)  # a row with a label has no unknown entry
    decided = metrics.decide(logits, model.task, thresholds) & unknown
    return replace(data, y=data.y + decided, known=torch.ones_like(data.known))


def phase_of(server: Server) -> Phase:
    return Phase(int(server.extra[PHASE]))


def _training(server: Server) -> Server:
    """The server as the method of the rounds sees it."""
    extra = server.extra
    for prefix in (STUDENT, STATISTICS, SOLUTION, PHASE):
        extra = _without(extra, prefix)
    return replace(server, extra=extra)


def _without(arrays: Arrays, prefix: str) -> Arrays:
    return {name: value for name, value in arrays.items() if not name.startswith(prefix)}
