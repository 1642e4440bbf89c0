"""Adam and SGD, computed by torch's functions rather than by its classes.

`torch.optim.Optimizer` imports torch's compiler at its first step: a second of processor time and 70 MB, which a party
of a Flower federation would pay for every message, because each is answered by a new process. The bits are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd


@dataclass
class Group:
    """Parameters with one learning rate; each needs a gradient at every step."""

    parameters: list[nn.Parameter]
    rate: float
    state: dict[str, list[Tensor]] = field(default_factory=dict)  # one tensor per parameter

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class Optimizer(ABC):
    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = list(groups)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups:
            self.update(group)

    @abstractmethod
    def update(self, group: Group) -> None: ...

    @abstractmethod
    def blank(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The state before the first step."""

    def stored(self) -> list[tuple[nn.Parameter, dict[str, Tensor]]]:
        """The state of each parameter that has taken a step."""
        return [
            (parameter, {what: tensors[i] for what, tensors in group.state.items()})
            for group in self.groups
            if group.state
            for i, parameter in enumerate(group.parameters)
        ]

    def restore(self, state: dict[nn.Parameter, dict[str, Tensor]]) -> None:
        """Loads the state of another optimizer; parameters without a stored state start anew."""
        for group in self.groups:
            if any(parameter in state for parameter in group.parameters):
                group.state = self._lists([_over(self.blank(p), state.get(p, {})) for p in group.parameters])

    def _lists(self, states: list[dict[str, Tensor]]) -> dict[str, list[Tensor]]:
        return {what: [state[what] for state in states] for what in states[0]} if states else {}

    def _ready(self, group: Group) -> dict[str, list[Tensor]]:
        group.state = group.state or self._lists([self.blank(p) for p in group.parameters])
        return group.state


def _over(blank: dict[str, Tensor], known: dict[str, Tensor]) -> dict[str, Tensor]:
    return {what: known.get(what, tensor).to(tensor.device) for what, tensor in blank.items()}


class Adam(Optimizer):
    def blank(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def update(self, group: Group) -> None:
        state = self._ready(group)
        adam(
            list[Tensor](group.parameters),
            [gradient.contiguous() for gradient in group.gradients()],  # the fused kernel reads memory in order
            state["exp_avg"],
            state["exp_avg_sq"],
            [],
            state["step"],
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=group.rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class SGD(Optimizer):
    def __init__(self, groups: Sequence[Group], momentum: float) -> None:
        super().__init__(groups)
        self.momentum = momentum

    def blank(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)} if self.momentum else {}

    def update(self, group: Group) -> None:
        buffers: list[Tensor | None] = [*self._ready(group).get("momentum_buffer", [])]
        sgd(
            list[Tensor](group.parameters),
            group.gradients(),
            buffers or [None] * len(group.parameters),
            foreach=False,
            fused=False,
            weight_decay=0.0,
            momentum=self.momentum,
            lr=group.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
