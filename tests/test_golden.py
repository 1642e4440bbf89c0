"""Numbers that the paper's published code computes.

`tests/stored/golden.npz` is the part of them that comes with this repository; the full file is used where present.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedalign.algorithms.fedalign import FedAlign
from fedalign.data.partition import group_classes, owner_of_rows
from fedalign.encoders.transformer import Transformer, TransformerEncoder
from fedalign.inputs import Shape
from fedalign.learning import losses, metrics, pseudo_labels
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.learning.settings import Training
from fedalign.types import Arrays, Examples, Sequences, Server, Update
from helpers.federations import named

STORED = Path(__file__).parent / "stored" / "golden.npz"
FULL_ONLY = ("encoder", "train")  # groups that are too large for the repository


class Golden:
    def __init__(self, path: Path) -> None:
        self.arrays = np.load(path)  # no pickles: numpy refuses them by default
        self.complete = path != STORED

    def cases(self, group: str) -> Iterator[dict[str, Tensor]]:
        numbers = sorted({name.split("/")[1] for name in self.arrays.files if name.startswith(f"{group}/")})
        assert numbers, f"there is no case of {group}"
        for number in numbers:
            prefix = f"{group}/{number}/"
            yield {
                name.removeprefix(prefix): torch.from_numpy(np.asarray(self.arrays[name]))
                for name in self.arrays.files
                if name.startswith(prefix)
            }


@pytest.fixture(scope="module", params=["stored", "full"])
def numbers(request: pytest.FixtureRequest) -> Golden:
    return Golden(STORED if request.param == "stored" else request.getfixturevalue("golden"))


@pytest.fixture(scope="module")
def all_numbers(golden: Path) -> Golden:
    return Golden(golden)


def test_the_stored_numbers_are_a_small_exact_part_of_the_full_file(golden: Path) -> None:
    stored, full = np.load(STORED), np.load(golden)
    assert {name.split("/")[0] for name in stored.files} == {n.split("/")[0] for n in full.files} - set(FULL_ONLY)
    for name in stored.files:
        assert stored[name].dtype == full[name].dtype
        assert np.array_equal(stored[name], full[name]), name
    assert STORED.stat().st_size < 100_000


def under(case: dict[str, Tensor], prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in case.items() if name.startswith(prefix)}


def own_classes(case: dict[str, Tensor]) -> Tensor:
    own = torch.zeros(case["y"].shape[1], dtype=torch.bool)
    own[case["own"]] = True
    return own


def batch(case: dict[str, Tensor]) -> Examples:
    known = case["known"]
    y = case["y"].float() * known
    return Examples(torch.empty(len(y), 0), y, known, torch.ones(y.shape[1], dtype=torch.bool), case.get("weight"))


def test_single_label_pseudo_positives_are_those_of_the_published_code(numbers: Golden) -> None:
    cases = list(numbers.cases("pseudo_single"))
    assert len(cases) == (4 if numbers.complete else 2)
    for case in cases:
        near = pseudo_labels.similarity(case["x"], case["anchors"], "cosine")
        visible = case["y"].float() * case["known"]
        y, known = pseudo_labels.pseudo_labels_single(
            near, visible, case["known"], own_classes(case), float(case["pos"]), float(case["neg"])
        )
        expected = case["out_y"].float() * case["out_known"]
        assert torch.equal(y * known, expected)
        assert (y > visible).any()  # the case does add positives


def test_multi_label_pseudo_labels_and_weights_are_those_of_the_published_code(numbers: Golden) -> None:
    for case in numbers.cases("pseudo_multi"):
        near = pseudo_labels.similarity(case["x"], case["anchors"], "dot")
        visible = case["y"].float() * case["known"]
        y, known = pseudo_labels.pseudo_labels_multi(
            near,
            visible,
            case["known"],
            own_classes(case),
            float(case["pos"]),
            float(case["neg"]),
            0.5,
            case["class_f1"] > 0.75,
        )
        assert torch.equal(known, case["out_known"])
        assert torch.equal(y * known, case["out_y"].float() * known)
        weight = losses.balanced_weights(y, known)
        torch.testing.assert_close(weight.double(), case["out_weight"] * known, atol=1e-6, rtol=0)


def test_single_label_loss(numbers: Golden) -> None:
    for case in numbers.cases("loss_single"):
        assert float(losses.single_label(case["logits"], batch(case))) == pytest.approx(float(case["out"]), abs=1e-6)


def test_multi_label_loss(numbers: Golden) -> None:
    for case in numbers.cases("loss_multi"):
        assert float(losses.multi_label(case["logits"], batch(case))) == pytest.approx(float(case["out"]), abs=1e-6)


def test_single_label_metrics(numbers: Golden) -> None:
    for case in numbers.cases("metric_single"):
        classes = case["prob"].shape[1]
        y = torch.nn.functional.one_hot(case["y"], classes)
        found = metrics.scores(
            metrics.count(metrics.decide(case["prob"], "single"), y, torch.ones_like(y, dtype=torch.bool)), "single"
        )
        assert found.f1 == pytest.approx(float(case["f1"]), abs=1e-9)
        assert found.accuracy == pytest.approx(float(case["acc"]), abs=1e-9)


def test_multi_label_metrics(numbers: Golden) -> None:
    for case in numbers.cases("metric_multi"):
        found = metrics.scores(metrics.count(case["prob"] > 0.5, case["y"], case["known"]), "multi")
        assert found.f1 == pytest.approx(float(case["f1"]), abs=1e-9)
        assert found.accuracy == pytest.approx(float(case["acc"]), abs=1e-9)


def test_aggregation_with_class_wise_rows(numbers: Golden) -> None:
    cases = list(numbers.cases("aggregate"))
    assert len(cases) == (5 if numbers.complete else 2)
    for case in cases:
        server = Server(under(case, "before/"), len(case["own"]), ("label_encoder.weight",))
        updates = [Update(under(case, f"client{m}/"), 10, case["own"][m]) for m in case["selected"].tolist()]
        found = FedAlign().aggregate(server, updates).weights
        for name, expected in under(case, "after/").items():
            torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=0)


def test_partition_by_category_follows_the_published_rule(numbers: Golden) -> None:
    for number, case in enumerate(numbers.cases("partition")):
        category, clients = case["category"].tolist(), int(case["num_clients"])
        groups = [[c for c, g in enumerate(category) if g == group] for group in sorted(set(category))]
        expected = [row.nonzero().flatten().tolist() for row in case["class_client"]]
        ours = group_classes(groups, clients, np.random.default_rng(int(case["seed"])))
        if number == 1:  # halves are random: the rule is in the sizes, and no category is mixed
            assert [len(group) for group in ours] == [len(group) for group in expected]
            assert all(len({category[c] for c in group}) == 1 for group in ours)
        else:
            assert ours == expected
        assert torch.equal(owner_of_rows(case["y"], expected), case["owner"])


RENAMED = {
    "enc_embedding.weight": "embedding",
    "enc_embedding.bias": "embedding_bias",
    "self_attn.in_proj_weight": "qkv",
    "self_attn.in_proj_bias": "qkv_bias",
    "self_attn.out_proj.weight": "out",
    "self_attn.out_proj.bias": "out_bias",
    "linear1.weight": "up",
    "linear1.bias": "up_bias",
    "linear2.weight": "down",
    "linear2.bias": "down_bias",
    "norm1.weight": "norm1",
    "norm1.bias": "norm1_bias",
    "norm2.weight": "norm2",
    "norm2.bias": "norm2_bias",
    "encoder.norm.weight": "norm",
    "encoder.norm.bias": "norm_bias",
}


def renamed(arrays: Arrays, prefix: str) -> Arrays:
    """The published code's weights under our names."""
    found = {}
    for name, value in arrays.items():
        if name.startswith(prefix):
            layer = re.match(r"encoder\.layers\.(\d+)\.(.*)", name.removeprefix(prefix))
            key = f"layers.{layer[1]}.{RENAMED[layer[2]]}" if layer else RENAMED[name.removeprefix(prefix)]
            found[key] = value
    return found


def packed(x: Tensor, lengths: Tensor) -> Sequences:
    return Sequences.from_rows(row[:n] for row, n in zip(x, lengths.tolist(), strict=True))


def make_encoder(weights: Arrays, dropout: float) -> TransformerEncoder:
    d, tokens = weights["norm"].numel(), "embedding_bias" not in weights
    size = weights["embedding"].shape[0 if tokens else 1]
    options = Transformer(dim=d, heads=4, feedforward=weights["layers.0.up"].shape[0], dropout=dropout)
    encoder = options.build(Shape("tokens" if tokens else "series", (size,)), torch.Generator())
    encoder.load_state_dict(weights)
    return encoder


def test_the_packed_encoder_gives_the_published_representations(all_numbers: Golden) -> None:
    for case in all_numbers.cases("encoder"):
        encoder = make_encoder(renamed(case, "weights/"), dropout=0.5)
        with torch.no_grad():
            found = encoder(packed(case["x"], case["lengths"]))
        torch.testing.assert_close(found, case["out"], atol=1e-5, rtol=0)


def test_five_alternating_steps_end_at_the_published_weights(all_numbers: Golden) -> None:
    """The whole loop: both phases, two learning rates, Adam, masked and weighted losses."""
    for case, task in zip(all_numbers.cases("train"), ("single", "multi"), strict=True):
        encoder = make_encoder(renamed(case, "before/data_encoder."), dropout=0.0)
        label_encoder = LabelEncoder(case["before/label_encoder.weight"], bias=False, normalise=task == "single")
        model = DualEncoder(encoder, label_encoder, task)
        n, steps = case["x"].shape[:2]
        data = replace(batch(case), x=packed(case["x"], torch.full((n,), steps)))
        if task == "single":
            data = replace(data, weight=None)
        config = Training(
            epochs=int(case["steps"]),
            batch_size=n,
            lr=float(case["data_lr"]),
            label_lr=float(case["label_lr"]),
            balanced=False,
        )
        algorithm = FedAlign(alignment=False)
        update, _ = train_client(algorithm, ModelPair(model), algorithm.start(model, 1), data, {}, config, (0, 1, 0))
        expected = {f"data_encoder.{k}": v for k, v in renamed(case, "after/data_encoder.").items()}
        expected["label_encoder.weight"] = case["after/label_encoder.weight"]
        # A bias of the keys has no effect and its true gradient is zero. Ours is zero; the published code lets Adam
        # enlarge the rounding error that is left of it, which no other order of sums can repeat.
        d = len(expected["data_encoder.norm"])
        keys = update.weights["data_encoder.layers.0.qkv_bias"][d : 2 * d]
        assert torch.equal(keys, case["before/data_encoder.encoder.layers.0.self_attn.in_proj_bias"][d : 2 * d])
        expected["data_encoder.layers.0.qkv_bias"][d : 2 * d] = keys
        for name, value in expected.items():
            torch.testing.assert_close(update.weights[name], value, atol=1e-5, rtol=0, msg=named(name))
