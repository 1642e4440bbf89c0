"""The hooks of an algorithm that a method may replace, each with the default that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedalign.engines.local import Local
from fedalign.inputs import Shape
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, labelled_rows, run_epochs, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.learning.replies import Reason, reject_reason
from fedalign.learning.rounds import Reply, Round, rounds
from fedalign.runs.folder import RunFolder
from fedalign.types import Arrays, ArraySpec, Examples, ReplySpec, Sequences, Server, Update, Visit
from helpers.federations import plan, play, same, tiny


@dataclass(frozen=True)
class Counting(Algorithm):
    """Every client sends the number of its rows once; the server adds them and stops after two rounds."""

    def participants(self, server: Server) -> list[int] | None:
        return list(range(server.num_clients))

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        return ReplySpec({}, {"rows": ArraySpec((1,), torch.float64, 1e6)})

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        rows = torch.tensor([float(len(visit.data))], dtype=torch.float64)
        return Update({}, len(visit.data), visit.data.classes, {"rows": rows}), {}

    def aggregate(self, server: Server, updates: list[Update]) -> Server:  # type: ignore[override]
        seen = {f"rows:{update.client}": update.extra["rows"] for update in updates}
        return replace(server, state={**server.state, **seen, "rounds": server.state.get("rounds", torch.zeros(1)) + 1})

    def finished(self, server: Server) -> bool:
        return float(server.state.get("rounds", torch.zeros(1))) >= 2


def test_a_method_may_send_sums_instead_of_weights_and_end_by_itself() -> None:
    prepared = replace(plan("fedavg", clients_per_round=1, rounds=9), algorithm=Counting())
    found = play(prepared)
    assert [now.record["clients"] for now in found] == [[0, 1, 2, 3]] * 2
    state = found[-1].server.state
    assert [int(state[f"rows:{m}"]) for m in range(4)] == [len(p.train) for p in prepared.federation.parties]
    assert same(found[-1].server.weights, prepared.start().weights)


@dataclass(frozen=True)
class Adding(Counting):
    """The same; the server adds the rows of three clients, then those of the last one."""

    def group_size(self, server: Server) -> int | None:
        return 3

    def added(self, server: Server, total: Update | None, update: Update) -> Update:
        if total is None:
            return replace(update, client=10)
        digits = 10 * total.client + update.client  # who was added, in which order
        rows = {"rows": total.extra["rows"] + update.extra["rows"]}
        return Update({}, total.num_examples + update.num_examples, update.classes, rows, client=digits)


def test_updates_are_added_in_groups_and_the_server_gets_their_total() -> None:
    """A reply that does not fit is left out with its reason, as if all were asked at once. The record is the same."""
    asked: list[list[int]] = []

    def ended(algorithm: Algorithm) -> Round:
        prepared = replace(plan("fedavg", rounds=1, min_clients=3), algorithm=algorithm)
        with Local(workers=1).open(prepared) as engine:
            train = engine.train

            def spoiled(server: Server, number: int, chosen: list[int]) -> list[Reply]:
                asked.append(list(chosen))
                far = {"rows": torch.tensor([1e7], dtype=torch.float64)}
                return [
                    replace(reply, update=replace(reply.update, extra=far)) if reply.client == 1 else reply
                    for reply in train(server, number, chosen)
                    if reply.update is not None
                ]

            engine.train = spoiled  # type: ignore[method-assign, assignment]
            (found,) = rounds(prepared, engine, prepared.start())
        return found

    found, whole = ended(Adding()), ended(Counting())
    assert asked == [[0, 1, 2], [3], [0, 1, 2, 3]]
    parties = plan("fedavg").federation.parties
    rows = sum(len(parties[m].train) for m in (0, 2, 3))
    assert int(found.server.state["rows:1023"]) == rows  # 0 begins with 10, then 2 and 3
    assert found.record == whole.record
    assert found.record["clients"] == [0, 2, 3]
    assert isinstance(found.record["refused"], dict)
    assert list(found.record["refused"]) == [parties[1].name]


def test_the_servers_own_state_is_stored_and_loaded_and_never_sent(tmp_path: Path) -> None:
    prepared = replace(plan("fedavg", rounds=1), algorithm=Counting())
    *_, last = play(prepared)
    folder = RunFolder.create(tmp_path / "run", tiny())
    states = ClientStates(folder.checkpoints, 1)
    folder.save_round(1, last.server, states, "f" * 64, {"round": 1})
    done, server = folder.load_round(prepared.start(), states, "f" * 64, warn=lambda message: None)
    assert done == 1
    assert same(server.state, last.server.state)
    newest = folder.newest()
    assert newest is not None
    assert same(newest.state, last.server.state)
    sent = sum(v.numel() * v.element_size() for v in last.server.weights.values())
    assert last.record["bytes_down"] == sent * 4


def test_the_default_local_update_is_the_training_loop() -> None:
    @dataclass(frozen=True)
    class Same(Algorithm):
        def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
            return run_epochs(self, visit)

    prepared = plan("fedavg")
    assert same(play(prepared)[-1].server.weights, play(replace(prepared, algorithm=Same()))[-1].server.weights)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.tensor([5.0], dtype=torch.float64), None),
        (torch.tensor([5.5], dtype=torch.float64), Reason.OUT_OF_BOUNDS),
        (torch.tensor([-5.5], dtype=torch.float64), Reason.OUT_OF_BOUNDS),
        (torch.tensor([torch.nan], dtype=torch.float64), Reason.NOT_FINITE),
        (torch.tensor([1.0]), Reason.SHAPE_OR_TYPE),
        (torch.zeros(2, dtype=torch.float64), Reason.SHAPE_OR_TYPE),
    ],
)
def test_a_reply_is_held_to_its_specification(value: Tensor, reason: Reason | None) -> None:
    spec = ReplySpec({}, {"sums": ArraySpec((1,), torch.float64, 5.0)})
    classes = torch.tensor([True])
    found = reject_reason(Update({}, 1, classes, {"sums": value}), spec, classes)
    assert (found.reason if found else None) is reason
    missing = reject_reason(Update({}, 1, classes), ReplySpec({"w": ArraySpec((1,), torch.float32)}), classes)
    assert missing is not None
    assert missing.reason is Reason.MISSING


def test_bytes_down_are_counted_for_every_client_asked() -> None:
    """Two of four clients fail: the weights were sent to all four."""
    prepared = plan("fedavg", clients_per_round=4, rounds=1)
    with Local(workers=1).open(prepared) as engine:
        train = engine.train
        engine.train = lambda *asked: [  # type: ignore[method-assign]
            replace(reply, update=None) if reply.client < 2 else reply for reply in train(*asked)
        ]
        (now,) = rounds(prepared, engine, prepared.start())
    assert now.record["clients"] == [2, 3]
    assert now.record["bytes_down"] == 4 * sum(v.numel() * v.element_size() for v in prepared.start().weights.values())


class Shifted(nn.Module):
    """A linear map of rows after a stored shift; half of its weights are frozen."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dim = 4
        self.register_buffer("shift", torch.full((3,), 7.0))
        self.fixed = nn.Parameter(torch.eye(3), requires_grad=False)
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x - self.shift) @ self.fixed)


def shifted() -> DualEncoder:
    torch.manual_seed(1)
    return DualEncoder(Shifted(Shape("features", (3,))), LabelEncoder(torch.randn(2, 4), True, False), "single")


def test_buffers_and_frozen_weights_travel_down_and_not_up() -> None:
    model = shifted()
    server = Algorithm().start(model, 1)
    assert {"data_encoder.shift", "data_encoder.fixed"} <= server.weights.keys()
    data = Examples(torch.randn(6, 3), torch.eye(2).repeat(3, 1), torch.ones(6, 2).bool(), torch.ones(2).bool())
    other = shifted()
    other.data_encoder.shift.zero_()  # type: ignore[operator, union-attr]
    update, _ = train_client(Algorithm(), ModelPair(other), server, data, {}, tiny().training, (1, 1, 0))
    assert not {"data_encoder.shift", "data_encoder.fixed"} & update.weights.keys()
    after = Algorithm().aggregate(server, [update])
    assert torch.equal(after.weights["data_encoder.shift"], torch.full((3,), 7.0))
    assert not torch.equal(after.weights["data_encoder.layer.weight"], server.weights["data_encoder.layer.weight"])


def test_clipping_leaves_frozen_weights_alone_and_sums_in_a_fixed_order() -> None:
    """The norm of all shared weights is a sum over arrays; its order is that of the model, not of a set."""
    from fedalign.learning.aggregation import clipped, norm

    model = shifted()
    server = Algorithm().start(model, 2)
    far = {name: value + 1 for name, value in server.weights.items() if name in server.returned}
    near = {name: value + 0.1 for name, value in server.weights.items() if name in server.returned}
    updates = [Update(weights, 1, torch.ones(2).bool(), client=m) for m, weights in enumerate((near, far))]
    found = clipped(server, updates, 1.0)
    assert set(found[1].weights) == set(server.returned)
    change = [found[1].weights[name] - server.weights[name] for name in found[1].weights if "label" not in name]
    usual = [near[name] - server.weights[name] for name in found[1].weights if "label" not in name]
    pairs = [[(value, None) for value in values] for values in (change, usual)]
    torch.testing.assert_close(*map(norm, pairs))


def test_a_multi_label_client_that_only_says_no_takes_part() -> None:
    y, known, own = torch.zeros(3, 2), torch.tensor([[True, False]] * 3), torch.tensor([True, False])
    data = Examples(torch.zeros(3, 1), y, known, own)
    assert labelled_rows(data, "multi") == 3
    assert labelled_rows(data, "single") == 0
    assert labelled_rows(replace(data, known=torch.zeros_like(known)), "multi") == 0


def test_examples_move_to_a_device_with_all_they_hold() -> None:
    rows = Sequences.from_rows([torch.tensor([1, 2]), torch.tensor([3])])
    data = Examples(
        rows,
        torch.zeros(2, 1),
        torch.ones(2, 1).bool(),
        torch.ones(1).bool(),
        torch.ones(2, 1),
        {"a": torch.ones(2)},
        5,
    )
    moved = data.to("meta")
    assert isinstance(moved.x, Sequences)
    tensors = [moved.x.values, moved.y, moved.known, moved.classes, moved.weight, moved.extra["a"]]
    assert all(tensor is not None and tensor.is_meta for tensor in tensors)
    assert not moved.x.offsets.is_meta  # lengths decide shapes
    assert moved.drawn == 5
