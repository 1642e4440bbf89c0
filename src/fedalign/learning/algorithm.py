"""An algorithm: hyper-parameters and a few hooks. The default is FedAvg.

An algorithm holds no state: a client's state is returned by `finish`, the server's by `aggregate` and `observe`.
So one object serves every client, every engine and every test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.learning import losses, sampled_softmax
from fedalign.learning.aggregation import average_over_owners, client_votes, mean
from fedalign.learning.aggregation.defence import Rule
from fedalign.learning.local_training import run_epochs
from fedalign.learning.model import DualEncoder, Head
from fedalign.learning.replies import Rejection, specs_like
from fedalign.types import Arrays, Examples, ReplySpec, Server, Task, Update, Visit


@dataclass(frozen=True)
class Algorithm:
    """FedAvg (McMahan et al., AISTATS 2017), and the options that every method shares."""

    fixed_features: ClassVar[bool] = False  # the encoder is a feature map that is fitted and not trained
    own_thresholds: ClassVar[bool] = False  # in multi-label it decides at `thresholds`, and parties count hits there
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")  # what the method is for
    one_way: ClassVar[tuple[str, ...]] = ()  # arrays of the server's `extra` that a client receives and never sends

    # equal: clients with a label count the same; all: also those without; examples: by number of labelled rows
    weighting: Literal["equal", "all", "examples"] = "equal"
    average_over_owners: bool = False  # average a class vector over the clients that annotate the class
    own_class_vectors: bool = False  # a client sends back the vectors of its own classes only; needs the line above
    base: Literal["none", "analytic"] = "none"  # analytic: train on top of the analytic solution (docs/analytic.md)
    sampled_classes: Annotated[int, Field(ge=0)] = 0  # of a batch's softmax, beside the classes of its rows; 0: all
    complement: bool = False  # learn from single-label rows known to lie outside the client's classes
    clip_updates: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0  # times the median change; 0: off
    robust: Rule = "off"  # how updates are voted on; auto: only those that most clients contradict are replaced

    @property
    def head(self) -> Head:
        return "linear"

    def participants(self, server: Server) -> list[int] | None:
        """The clients that take part in the next round; None: a sample of all, drawn with the run's seed."""
        return None

    def needs_class_f1(self, task: Task) -> bool:
        """Whether `observe` needs the F1 of each class on the clients' validation rows."""
        return False

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        """How many rounds a run takes if every client answers; a run has at least so many, whatever is configured."""
        return configured

    def finished(self, server: Server) -> bool:
        """Whether no further round is needed, whatever the configured number of rounds."""
        return False

    def worth_scoring(self, server: Server) -> bool:
        """Whether the weights are a model yet."""
        return not self.fixed_features or self.finished(server)

    def answered_once(self, received: Arrays, client: int) -> tuple[str, Arrays] | None:
        """The name of an answer that a client must not compute twice, such as one with noise, and what it depends on
        besides rows. A deployed client stores that answer and sends it again if it is asked again. None: any answer may
        be computed again."""
        return None

    def thresholds(self, server: Server) -> Tensor | None:
        """(C,) the probabilities at which the method decides in multi-label; None: 0.5."""
        return None

    def without_client(self, server: Server, client: int) -> Server:
        """The server's state with nothing left of what a client sent, from which rounds continue without it."""
        raise UserError(
            "only a run with algorithm.name = 'analytic' can forget a party exactly; train again without its file"
        )

    def summary(self, server: Server) -> dict[str, Any]:
        """What the method chose by itself, for result.json."""
        return {}

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        """What a person should know about the result, one sentence each."""
        return []

    def shared(self, model: DualEncoder) -> tuple[str, ...]:
        """The names of the arrays that a client returns. Frozen weights and buffers are sent to it, never back."""
        return model.trainable()

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        """What a client may send in this round: the name, shape, type and bound of each array."""
        returned = {name: server.weights[name] for name in server.returned}
        extra = {name: value for name, value in server.extra.items() if name not in self.one_way}
        return ReplySpec(specs_like(returned), specs_like(extra))

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        """What the server holds before the first round."""
        if model.task not in self.tasks:
            rows = {"single": "one class each", "multi": "several classes each"}
            raise UserError(
                f"{type(self).__name__} is for rows with {rows[self.tasks[0]]}, and these have {rows[model.task]}; "
                "choose another algorithm.name"
            )
        self._check_sampled(model.task)
        if self.complement and model.task != "single":
            raise UserError("algorithm.complement needs one class per row; set it to false for multi-label data")
        server = Server(model.arrays(), num_clients, model.class_arrays, returned=self.shared(model))
        return self.observe(server, torch.zeros(len(model.anchors()))) if self.needs_class_f1(model.task) else server

    def _check_sampled(self, task: Task) -> None:
        own = any(getattr(type(self), hook) is not getattr(Algorithm, hook) for hook in ("objective", "task_loss"))
        if self.sampled_classes and (own or self.complement or task != "single"):
            raise UserError(
                "algorithm.sampled_classes is for rows with one class and methods with the plain loss, such as fedavg, "
                "without algorithm.complement; set it to 0"
            )

    def prepare(self, visit: Visit) -> Examples:
        """What the client trains on this round."""
        return visit.data

    def prepares_again(self, epoch: int) -> bool:
        """Whether `prepare` is called again before this epoch, counted from 0, with the model trained so far."""
        return False

    def rows_with_loss(self, visit: Visit) -> Tensor:
        """(n,) True on the rows that `objective` needs to see."""
        needed = losses.rows_with_loss(visit.data, visit.model.task)
        return needed | losses.outside_own_classes(visit.data) if self.complement else needed

    def reply_specs(self, server: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        """What a client would send over a whole run, by when it would send it; with `data`, a client with these
        training rows."""
        return {"each round": self.reply_spec(server, 1)}

    def reject(self, update: Update) -> Rejection | None:
        """Why an update whose arrays fit `reply_spec` must not be aggregated all the same; None if it may be."""
        return None

    def suspects(self, server: Server, label_names: Sequence[str]) -> dict[int, str]:
        """The clients that the method itself suspects after a round, with the reason."""
        return {}

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        """(what the client sends, its new state). The default is the training loop over the client's rows."""
        return run_epochs(self, visit)

    def phases(self, model: DualEncoder) -> list[list[nn.Parameter]]:
        """The groups of weights updated in turn on each batch."""
        return [model.data_parameters() + model.label_parameters()]

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        """The loss of a batch."""
        few = sampled_softmax.narrowed(batch, self.sampled_classes, visit.noise) if self.sampled_classes else None
        if few is None:
            return self.task_loss(visit, batch, visit.model(batch.x, visit.noise))
        batch, chosen, shift = few
        z = visit.model.encode(batch.x, visit.noise)
        return self.task_loss(visit, batch, visit.model.label_encoder(z, chosen) + shift)

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        """The masked loss of the task, from logits (n, C), with the shared options."""
        loss = losses.task_loss[visit.model.task](logits, batch)
        return loss + losses.complement(logits, batch) if self.complement else loss

    def correct(self, visit: Visit) -> None:
        """Called after each optimizer step; may change the model's weights."""

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        """(arrays to send with the weights, the client's new state). The arrays sent are named in `reply_spec`."""
        return {}, {}

    def group_size(self, server: Server) -> int | None:
        """How many clients are asked before their updates are added to one total (`added`), so that those of all need
        not be in memory. `server_step` gets the total alone, and clients keep no state. None: it gets every update."""
        return None

    def added(self, server: Server, total: Update | None, update: Update) -> Update:
        """The total with one more client's update, in client order; `total` is None for the first and may be changed.
        It is called if `group_size` is not None."""
        raise NotImplementedError

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        """The server's next state. `model` has the shape of the run's model; its weights are not those of `server`."""
        return self.aggregate(server, updates)

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        """The server's next state, from the updates of the chosen clients in client order."""
        if self.weighting != "all":
            updates = [update for update in updates if update.num_examples]  # a client without labels changes nothing
        if not updates:
            return server
        votes = client_votes(updates, self.weighting)  # (clients,)
        weights = server.weights | mean([update.weights for update in updates], votes)
        if self.average_over_owners:
            owners = torch.stack([update.classes for update in updates]) * votes.view(-1, 1)  # (clients, C)
            for name in server.class_arrays:
                rows = [update.weights[name] for update in updates]
                weights[name] = average_over_owners(server.weights[name], rows, owners)
        return replace(server, weights=weights)

    def observe(self, server: Server, class_f1: Tensor) -> Server:
        """The server's state after it has seen the F1 of each class (C,) on the clients' validation rows; NaN where no
        client has reported. It is called with zeros before the first round, so that its arrays have their shapes."""
        return server
