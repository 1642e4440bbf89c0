"""Off means FedAvg, and what must never change does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedalign import registry
from helpers.federations import for_method, plan, play, same, tasks_of

OFF: list[tuple[str, dict[str, Any]]] = [
    ("fedprox", {"algorithm__mu": 0.0}),
    ("moon", {"algorithm__mu": 0.0}),
    ("scaffold", {"algorithm__control": 0.0}),
    ("fedrs", {"algorithm__alpha": 1.0, "algorithm__bias": True}),
    ("fedpu", {"algorithm__strength": 0.0}),
    (
        "fedalign",
        {
            "algorithm__alignment": False,
            "algorithm__semantics": "none",
            "algorithm__alternating": False,
            "algorithm__average_over_owners": False,
        },
    ),
    (
        "fedalign_plus",
        {
            "algorithm__base": "none",
            "algorithm__semantics": "none",
            "algorithm__average_over_owners": False,
            "algorithm__complement": False,
            "algorithm__loss": "balanced",
        },
    ),
    ("fedopt", {"algorithm__rule": "none"}),
    ("fedvls", {"algorithm__distil": 0, "algorithm__adjust": 0}),
    ("fedgela", {"algorithm__fixed": False, "algorithm__adapt": 0}),
    ("fedtsp", {"algorithm__text": 0, "algorithm__pull": 0}),
    ("fedlsm", {"algorithm__yes": 1, "algorithm__no": 0, "algorithm__by_counts": False, "algorithm__balance": False}),
    (
        "fedmlp",
        {"algorithm__distil": 0, "algorithm__adjust": 0, "algorithm__no_share": 0, "algorithm__yes_share": 0},
    ),
]


def test_every_method_has_a_value_that_turns_it_off() -> None:
    trained = {name for name in registry.names("algorithms") if not registry.find("algorithms", name).fixed_features}
    assert {name for name, _ in OFF} | {"fedavg"} == trained


@pytest.mark.parametrize(("name", "task", "off"), [(name, task, off) for name, off in OFF for task in tasks_of(name)])
def test_off_is_fedavg_bit_for_bit(name: str, task: str, off: dict[str, Any]) -> None:
    ours = play(for_method(name, task, **off))
    reference = play(for_method("fedavg", task, like=name))
    assert same(ours[-1].server.weights, reference[-1].server.weights)
    assert [r.record for r in ours] == [r.record for r in reference]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_class_nobody_annotates_keeps_its_row(task: str) -> None:
    prepared = plan("fedalign", task)
    for party in prepared.federation.parties:
        party.train.classes[2] = False
        party.train.known[:, 2] = False
        party.train.y[:, 2] = 0
    before = prepared.start().weights["label_encoder.weight"][2].clone()
    after = play(prepared)[-1].server.weights["label_encoder.weight"]
    assert torch.equal(after[2], before)
    assert not torch.equal(after[0], prepared.start().weights["label_encoder.weight"][0])


def test_owner_rows_equal_the_mean_when_all_annotate_all() -> None:
    changes: dict[str, Any] = {"partition__classes_per_client": 6}
    plain, owners = (play(plan("fedavg", algorithm__average_over_owners=flag, **changes)) for flag in (False, True))
    for name, value in plain[-1].server.weights.items():
        torch.testing.assert_close(value, owners[-1].server.weights[name], atol=1e-6, rtol=1e-5)


def test_random_label_rows_and_names_share_the_data_encoders_start() -> None:
    a, b = plan("fedavg").model.arrays(), plan("fedalign").model.arrays()
    shared = [name for name in a if name.startswith("data_encoder.")]
    assert shared
    assert all(torch.equal(a[name], b[name]) for name in shared)


def test_the_label_encoder_has_a_rate_of_its_own() -> None:
    """With that rate tiny, its rows barely move while the data encoder does."""
    still = play(plan("fedalign", training__label_lr=1e-9))
    start = plan("fedalign").start().weights
    moved = {name: float((value - start[name]).abs().max()) for name, value in still[-1].server.weights.items()}
    assert moved["label_encoder.weight"] < 1e-6
    assert moved["data_encoder.embedding"] > 1e-3
