"""Clients trained together end where each ends by itself, to the last digits of a matrix product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedalign.engines._stacked import StackedEngine
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.learning.rounds import Plan, Reply
from fedalign.runs import experiment
from helpers.federations import plan, tiny

TOLERANCE = 2e-6  # of weights that are smaller than 2; float32 has seven digits

MODULE = """
from torch import nn

class Small(nn.Module):
    def __init__(self, shape, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape.size[0], 12), nn.ReLU(), nn.Dropout(dropout), nn.Linear(12, 8))
        self.layers[3].bias.requires_grad_(False)

    def forward(self, x):
        return self.layers(x)
"""


def prepared(
    task: str = "single", encoder: dict[str, Any] | None = None, name: str = "fedavg", **training: Any
) -> Plan:
    return plan(
        name,
        task,
        dataset={"name": "synthetic", "kind": "features", "task": task, "rows": 330, "classes": 6},
        encoder=encoder or {"name": "mlp", "dim": 8, "hidden": 12, "dropout": 0.0},
        training={"epochs": 2, "batch_size": 16, "lr": 0.05, "optimizer": "sgd", **training},
        clients_per_round=4,
    )


def replies(data: Plan, stacked: bool, workers: int) -> list[Reply]:
    """Those of two rounds, the second with the states of the first."""
    with Local(workers=workers, stacked=stacked).open(data) as engine:
        server = data.start()
        first = engine.train(server, 1, [0, 1, 2, 3])
        engine.commit(1, [0, 1, 2, 3])
        return first + engine.train(server, 2, [0, 2, 3])


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize(
    "training", [{}, {"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01, "label_lr": 0.02}], ids=str
)
def test_a_stack_ends_where_each_client_does(task: str, training: dict[str, Any]) -> None:
    data = prepared(task, **training)
    assert len({len(party.train) for party in data.federation.parties}) > 1, "some must run out of batches first"
    alone, together = replies(data, False, 1), replies(data, True, 1)
    assert [reply.client for reply in together] == [0, 1, 2, 3, 0, 2, 3]
    for one, other in zip(alone, together, strict=True):
        assert one.update is not None
        assert other.update is not None
        assert one.update.num_examples == other.update.num_examples
        assert (one.kept, one.notes) == (other.kept, other.notes)
        assert one.update.weights.keys() == other.update.weights.keys()
        for name, value in one.update.weights.items():
            assert not torch.equal(value, data.model.arrays()[name]), "it must have been trained"
            assert float((value - other.update.weights[name]).abs().max()) < TOLERANCE, name


def test_a_users_module_is_stacked_and_what_it_freezes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = prepared(encoder={"name": "small:Small"})
    for one, other in zip(replies(data, False, 1), replies(data, True, 2), strict=True):
        assert one.update is not None
        assert other.update is not None
        assert set(one.update.weights) == set(other.update.weights)
        assert "data_encoder.layers.3.bias" not in other.update.weights
        for name, value in one.update.weights.items():
            assert float((value - other.update.weights[name]).abs().max()) < TOLERANCE, name
    with pytest.raises(UserError, match=r"torch cannot stack Small: .*; set engine.stacked = false"):
        replies(prepared(encoder={"name": "small:Small", "dropout": 0.5}), True, 1)


PERCEPTRON = """
from torch import nn

class Plain(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape.size[0], 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU())

    def forward(self, x):
        return self.layers(x)
"""


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("training", [{"label_lr": 0.1}, {"keep_optimizer": True}, {"momentum": 0.9}], ids=str)
def test_a_perceptron_ends_where_autograd_does(
    task: str, training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perceptrons.py").write_text(PERCEPTRON)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = prepared(task, {"name": "perceptrons:Plain"}, **training)
    alone, together = replies(data, False, 1), replies(data, True, 2)
    for one, other in zip(alone, together, strict=True):
        assert one.update is not None
        assert other.update is not None
        assert (one.client, one.kept, one.notes) == (other.client, other.kept, other.notes)
        assert one.update.num_examples == other.update.num_examples
        for name, value in one.update.weights.items():
            assert not torch.equal(value, data.model.arrays()[name]), "it must have been trained"
            assert float((value - other.update.weights[name]).abs().max()) < TOLERANCE, name
    with Local(stacked=True).open(data) as fast, Local().open(data) as usual:
        assert isinstance(fast, StackedEngine)
        assert fast.layers
        weights = together[0].update.weights if together[0].update else {}
        assert fast.score(weights) is not None
        assert torch.equal(fast.score(weights), usual.score(weights))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "fedprox"}, "FedProx changes the steps of a client"),
        ({"clip": 1.0}, "training.clip looks at one client's gradient at a time"),
        ({"encoder": {"name": "mlp", "dropout": 0.2}}, "MlpEncoder draws random numbers in training"),
    ],
    ids=["method", "clip", "dropout"],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        replies(prepared(**changes), True, 1)


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    config = tiny("fedprox", engine={"name": "local", "stacked": True})
    with pytest.raises(UserError, match="FedProx changes the steps of a client"):
        experiment.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(UserError, match="rows of different length cannot be stacked"):
        replies(plan("fedavg"), True, 1)
