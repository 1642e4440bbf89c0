"""Where encoders run: one place decides, no encoder makes a tensor elsewhere, and a device changes no result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedalign import config, registry
from fedalign.encoders import _plain
from fedalign.encoders.transformer import sinusoids
from fedalign.engines.local import Local, LocalEngine
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.learning.client_state import ClientStates
from fedalign.randomness import KeyedRandom, torch_generator
from fedalign.runs import experiment
from fedalign.system import device as devices
from fedalign.types import Sequences

ELSEWHERE = torch.device("cpu", 0)  # another device for torch, with the same numbers
PORTABLE = {
    "convnet": Shape("images", (3, 12, 12)),
    "pixels": Shape("images", (3, 12, 12)),
    "mlp": Shape("features", (7,)),
}


def test_auto_takes_what_is_there_and_a_device_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "present", lambda: {"cuda": "Tesla"})
    assert devices.chosen("auto", "convnet", True).type == "cuda"
    assert devices.chosen("auto", "tfidf", False).type == "cpu"
    assert devices.chosen("cpu", "convnet", True).type == "cpu"
    assert devices.sentence(torch.device("cuda"), "convnet") == (
        "device: the encoder convnet runs on cuda (Tesla), all else on the CPU"
    )
    with pytest.raises(UserError, match=r"torch finds no device mps here; set engine.device = 'cpu' or 'auto'"):
        devices.chosen("mps", "convnet", True)
    with pytest.raises(UserError, match=r"the encoder tfidf runs on the CPU only; set engine.device = 'cpu'"):
        devices.chosen("cuda", "tfidf", False)
    monkeypatch.setattr(devices, "present", dict)
    assert devices.chosen("auto", "convnet", True).type == "cpu"


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("convnet", "pixels"))]
)
def test_a_portable_encoder_makes_no_tensor_on_another_device(name: str) -> None:
    """On torch's meta device, an operation with a hidden tensor of the CPU fails."""
    shape = PORTABLE[name]
    encoder: Any = registry.build("encoders", name, {}).build(shape, torch_generator(1))
    assert encoder.portable
    encoder = encoder.to("meta")
    found = encoder(torch.empty(5, *shape.size, device="meta"), KeyedRandom(1, 2, 3))
    assert found.device.type == "meta"
    assert found.shape == (5, encoder.dim)
    weights = list(encoder.parameters())
    if weights:
        assert all(g.is_meta for g in torch.autograd.grad(found.sum(), weights))


def sequences(kind: str) -> Sequences:
    """Rows of 3, 0, 7, 1 and 5 steps."""
    generator = torch_generator("sequences")
    rows = [3, 0, 7, 1, 5]
    if kind == "tokens":
        return Sequences.from_rows(torch.randint(1, 11, (n,), generator=generator, dtype=torch.int32) for n in rows)
    return Sequences.from_rows(torch.randn(n, 4, generator=generator) for n in rows)


@pytest.mark.parametrize(("kind", "size"), [("tokens", (11,)), ("series", (4,))])
@pytest.mark.parametrize("max_length", [1000, 4])
def test_the_plain_transformer_gives_the_packed_ones_vectors_and_gradients(
    kind: str, size: tuple[int, ...], max_length: int
) -> None:
    options = {"dim": 8, "heads": 2, "feedforward": 6, "layers": 2, "max_length": max_length}
    encoder: Any = registry.build("encoders", "transformer", options).build(Shape(kind, size), torch_generator(1))  # type: ignore[arg-type]
    x, weights = sequences(kind), list(encoder.parameters())
    packed = encoder(x)
    plain = _plain.encode(encoder, x, sinusoids(max_length, 8), None)
    torch.testing.assert_close(plain, packed, atol=1e-5, rtol=1e-5)
    assert plain[1].tolist() == [0] * 8
    towards = torch.randn(5, 8, generator=torch_generator(2))
    for one, other in zip(*(torch.autograd.grad((z * towards).sum(), weights) for z in (packed, plain)), strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "size"), [("tokens", (11,)), ("series", (4,))])
def test_the_plain_transformer_makes_no_tensor_on_another_device(kind: str, size: tuple[int, ...]) -> None:
    options = {"dim": 8, "heads": 2, "feedforward": 6}
    encoder: Any = registry.build("encoders", "transformer", options).build(Shape(kind, size), torch_generator(1))  # type: ignore[arg-type]
    found = encoder.to("meta")(sequences(kind).to("meta"), KeyedRandom(1, 2, 3))
    assert found.is_meta
    assert found.shape == (5, 8)
    assert all(g.is_meta for g in torch.autograd.grad(found.sum(), list(encoder.parameters())))


def test_the_meta_device_finds_hidden_tensors() -> None:
    with pytest.raises(RuntimeError):
        _ = torch.empty(3, device="meta") * torch.ones(3)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "analytic"])
def test_another_device_changes_no_result(algorithm: str) -> None:
    settings = config.load(
        "synthetic", [f"algorithm.name={algorithm}", "encoder.name=mlp", "dataset.kind=features", "training.epochs=1"]
    )
    plan = experiment.plan(settings)
    server = plan.start()
    found = []
    for where in (devices.CPU, ELSEWHERE):
        with Local(workers=1).open(plan) as engine, ClientStates.temporary(64) as states:
            other = LocalEngine(plan, engine.pool, 1, states, where)
            (reply,) = other.train(server, 1, [0])
            assert reply.update is not None
            found.append(reply.update.weights | reply.update.extra)
            counts = other.score(server.weights)
            assert counts is not None
            found[-1]["counts"] = counts
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all(value.device == devices.CPU for value in found[1].values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch finds none here")
def test_a_run_on_cuda_gives_the_losses_of_the_cpu() -> None:
    settings = config.load("synthetic", ["algorithm.name=fedavg", "encoder.name=mlp", "dataset.kind=features"])
    plan = experiment.plan(settings)
    found = []
    for name in ("cpu", "cuda"):
        with Local(workers=1, device=name).open(plan) as engine:  # type: ignore[arg-type]
            (reply,) = engine.train(plan.start(), 1, [0])
            assert reply.update is not None
            found.append(reply.update.weights)
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], atol=1e-3, rtol=1e-3)
