"""Analytic learning: a linear model on fixed features, solved from sums over the clients' rows (docs/analytic.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic import client, server, summary
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Rejection
from fedalign.types import Arrays, Examples, ReplySpec, Server, Task, Update, Visit


@dataclass(frozen=True)
class Analytic(Algorithm):
    """Every client sends sums over its rows; the server solves for the weights and ends the run by itself."""

    fixed_features: ClassVar[bool] = True
    own_thresholds: ClassVar[bool] = True
    clip_updates: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # it sends sums, which are checked instead
    refinements: Annotated[int, Field(ge=0, le=20)] = 3  # single-label: exchanges of expected labels; 0: none
    likelihood: Annotated[int, Field(ge=0, le=1000)] = 0  # gradient exchanges towards maximum likelihood; 0: none
    penalty: Annotated[float, Field(gt=0)] | None = None  # relative to trace / d; None: chosen on validation rows
    balance: bool = False  # single-label: every client has each class as often as the clients that annotate it
    keep_sums: bool = True  # of every client, so that one may leave or come later; false: their total (totals.py)
    omega: Annotated[float, Field(ge=0, le=1)] | None = None  # weight of unknown entries, multi-label; None: chosen

    def options(self, task: Task) -> server.Options:
        return server.Options(task, self.refinements, self.likelihood, self.penalty, self.omega, self.robust)

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        summary.check_options(self.clip_updates, self.robust)
        return server.start(model, num_clients, self.balance)

    def participants(self, state: Server) -> list[int] | None:
        return server.participants(state)

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return summary.exchanges(model, self.options(model.task))

    def finished(self, state: Server) -> bool:
        return server.finished(state)

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        return client.update(visit), {}

    def server_step(self, model: DualEncoder, state: Server, updates: Sequence[Update]) -> Server:
        return server.step(model, state, updates, self.options(model.task))

    def reply_spec(self, state: Server, round_number: int) -> ReplySpec:
        return server.reply_spec(state, server.stage_of(state))

    def reply_specs(self, state: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        return summary.reply_specs(state, self.options("multi" if "multi" in state.state else "single"), data)

    def reject(self, update: Update) -> Rejection | None:
        return summary.rejection(update)

    def suspects(self, state: Server, label_names: Sequence[str]) -> dict[int, str]:
        return summary.suspects(state, label_names)

    def thresholds(self, state: Server) -> Tensor | None:
        return server.thresholds(state)

    def without_client(self, state: Server, client: int) -> Server:
        return server.without_client(state, client)

    def warnings(self, state: Server, label_names: Sequence[str]) -> list[str]:
        return summary.warnings(state, label_names)

    def summary(self, state: Server) -> dict[str, Any]:
        return summary.chosen(state)


algorithm = Analytic
