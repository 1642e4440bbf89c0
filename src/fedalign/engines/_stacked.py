"""The local engine with `engine.stacked`: faster steps whose last digits differ from those of one client at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from fedalign.engines.local import LocalEngine, SimulationCallback
from fedalign.learning import perceptron
from fedalign.learning.client_state import ClientStates
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan, Reply
from fedalign.learning.stacked import Member, train_stack
from fedalign.randomness import KeyedRandom
from fedalign.system.device import CPU
from fedalign.system.mapped import in_file
from fedalign.types import Examples, Rows, Server, size_of

STACK = 16  # clients trained together at most
WIDE = 1024  # rows that a perceptron scores at once


class StackedEngine(LocalEngine):
    """Trains the clients of a round in groups, one group per thread."""

    def __init__(
        self, plan: Plan, pool: ThreadPoolExecutor, workers: int, states: ClientStates, device: torch.device = CPU
    ) -> None:
        super().__init__(plan, pool, workers, states, device)
        self.layers = perceptron.layers_of(plan.model.clone())  # tracing may leave marks in a module of one's own
        if self.layers:
            self.chunk = WIDE

    def batch(self, part: Examples, rows: Tensor) -> Examples:
        if self.layers is None or not isinstance(part.x, Tensor) or in_file(part.x):
            return super().batch(part, rows)
        # the rows of a chunk of a tensor follow one another, and nothing here writes to them: no copy is needed
        x = part.x[int(rows[0]) : int(rows[0]) + len(rows)]
        return Examples(x, part.stored("y")[rows], part.stored("known")[rows], part.classes)

    def logits(self, model: DualEncoder, x: Rows) -> Tensor:
        if self.layers is None or not isinstance(x, Tensor):
            return super().logits(model, x)
        return perceptron.forward(self.layers, model.state_dict(), x)

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.pending.clear()
        parties = self.plan.federation.parties
        order = sorted(chosen, key=lambda m: -len(parties[m].train))
        groups = max(self.workers, -(-len(order) // STACK))
        running = [
            self.pool.submit(self._train_group, server, round_number, order[part::groups])
            for part in range(min(groups, len(order)))
        ]
        found = {reply.client: reply for group in running for reply in group.result()}
        return [found[m] for m in chosen]

    def _train_group(self, server: Server, round_number: int, clients: Sequence[int]) -> list[Reply]:
        plan = self.plan
        members, notes = [], []
        for client in clients:
            party = plan.federation.parties[client]
            callback = SimulationCallback(party, self.stopping)
            noise = KeyedRandom(plan.config.seed, round_number, client)
            members.append(Member(client, party.train, self.states.get(client), noise, callback))
            notes.append(callback)
        models = self._models.get()
        try:
            train_stack(plan.algorithm, models, server, members, plan.config.training, self.layers)
        finally:
            self._models.put(models)
        replies = []
        for member, callback in zip(members, notes, strict=True):
            self.pending[member.client] = member.kept
            self.on_visit(member.client)
            replies.append(Reply(member.client, member.update, kept=size_of(member.kept), notes=callback.notes))
        return replies
