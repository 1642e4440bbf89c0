"""The local engine for clients with encoders of their own: each is trained and scored with its own model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.engines.local import Counter, LocalEngine
from fedalign.learning import metrics
from fedalign.learning.local_training import ModelPair
from fedalign.learning.model import DualEncoder
from fedalign.learning.own_encoders import OwnEncoders, load_own
from fedalign.learning.scoring import chunks
from fedalign.types import Arrays, Examples


class OwnEncodersEngine(LocalEngine):
    """Trains and scores the clients of a plan with one model per client."""

    def borrow(self, client: int) -> ModelPair:
        return ModelPair(self.plan.models[client], self.device)

    def give_back(self, models: ModelPair) -> None:
        pass  # the client's weights are in its state

    def model_of(self, client: int, weights: Arrays) -> DualEncoder:
        """A client's model, with its own weights and the server's class vectors."""
        assert isinstance(self.plan.algorithm, OwnEncoders)
        classes = self.plan.algorithm.kept_classes(self.plan.federation.parties[client].train.classes)
        return load_own(self.plan.models[client].clone(), weights, self.states.get(client), classes).on(self.device)

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        """Counts of all clients' models together, each on all test rows."""
        found = self.scores_by_client(weights, thresholds)
        return None if found is None else found.sum(0)

    def scores_by_client(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        """(clients, C, 4) counts of each client's model on the test rows."""
        test = self.plan.federation.test
        if test is None:
            return None
        clients = range(len(self.plan.federation.parties))
        return torch.stack([self._counted(m, weights, test, self._decided(thresholds)) for m in clients])

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        at: Counter = self._decided(None)
        if grid is not None:
            at = lambda logits, rows: metrics.count_at(logits, rows.y, rows.known, grid)  # noqa: E731
        parties = enumerate(self.plan.federation.parties)
        held: Sequence[Tensor] = [
            self._counted(m, weights, party.validation, at) for m, party in parties if party.validation is not None
        ]
        return torch.stack(list(held)).sum(0) if held else None

    def _counted(self, client: int, weights: Arrays, rows: Examples, counter: Counter) -> Tensor:
        model = self.model_of(client, weights)

        def one(chosen: Tensor) -> Tensor:
            batch = rows.take(chosen)
            with torch.no_grad():
                return counter(model(batch.x), batch)

        return torch.stack(list(self.pool.map(one, chunks(rows.x)))).sum(0)
