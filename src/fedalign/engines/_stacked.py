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
from fedalign.learning.stacked import Member, plain_rates, train_perceptron, train_stack
from fedalign.randomness import KeyedRandom
from fedalign.system.device import CPU
from fedalign.types import Rows, Server, size_of

STACK = 16  # clients trained together at most
WIDE = 1024  # rows that a perceptron scores at once


class StackedEngine(LocalEngine):
    """Trains the clients of a round in groups, one group per thread; those of a perceptron by plain SGD one by one."""

    def __init__(
        self, plan: Plan, pool: ThreadPoolExecutor, workers: int, states: ClientStates, device: torch.device = CPU
    ) -> None:
        super().__init__(plan, pool, workers, states, device)
        self.layers = perceptron.layers_of(plan.model.clone())  # tracing may leave marks in a module of one's own
        if self.layers:
            self.chunk = WIDE
        self.group = 1 if self.layers and plain_rates(plan.model.arrays(), plan.config.training) else STACK

    def logits(self, model: DualEncoder, x: Rows) -> Tensor:
        if self.layers is None or not isinstance(x, Tensor):
            return super().logits(model, x)
        return perceptron.forward(self.layers, model.state_dict(), x)

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.pending.clear()
        parties = self.plan.federation.parties
        order = sorted(chosen, key=lambda m: -len(parties[m].train))
        groups = max(self.workers, -(-len(order) // self.group))
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
            if self.group == 1 and self.layers:
                train_perceptron(plan.algorithm, models, self.layers, server, members[0], plan.config.training)
            else:
                train_stack(plan.algorithm, models, server, members, plan.config.training)
        finally:
            self._models.put(models)
        replies = []
        for member, callback in zip(members, notes, strict=True):
            self.pending[member.client] = member.kept
            self.on_visit(member.client)
            replies.append(Reply(member.client, member.update, kept=size_of(member.kept), notes=callback.notes))
        return replies
