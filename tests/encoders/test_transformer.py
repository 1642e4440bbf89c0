"""The packed transformer against an ordinary padded one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedalign.bench.padded import ordinary_name, pad, padded_copy
from fedalign.encoders import _attention, _packed
from fedalign.encoders._products import HalfProducts, Products
from fedalign.encoders.mlp import Mlp
from fedalign.encoders.transformer import Transformer, TransformerEncoder
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.learning import losses
from fedalign.randomness import KeyedRandom
from fedalign.types import Examples, Sequences
from helpers.federations import named


def make(kind: str, size: int = 7, **options: object) -> TransformerEncoder:
    shape = Shape("tokens" if kind == "tokens" else "series", (size,))
    wanted = {"dim": 16, "heads": 4, "feedforward": 8, "dropout": 0.0} | options
    return Transformer(**wanted).build(shape, torch.Generator().manual_seed(1))  # type: ignore[arg-type]


def rows(kind: str, lengths: list[int], size: int = 7, seed: int = 0) -> Sequences:
    g = torch.Generator().manual_seed(seed)
    if kind == "tokens":
        return Sequences.from_rows(torch.randint(1, size, (n,), generator=g, dtype=torch.int32) for n in lengths)
    return Sequences.from_rows(torch.randn(n, size, generator=g) for n in lengths)


def ordinary(clone: torch.nn.Module, x: Sequences) -> Tensor:
    values, lengths = pad(x)
    return clone(values.long() if values.dtype == torch.int32 else values, lengths)  # type: ignore[no-any-return]


@pytest.mark.parametrize("layers", [1, 2])
def test_tables_of_tokens_and_positions_change_nothing(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps of few tokens: evaluation takes products from tables and finds what training's forward pass finds."""
    encoder, x = make("tokens", layers=layers), rows("tokens", [1, 40, 3, 25, 25, 60, 7, 0, 33])
    made = []
    real = _packed.projected
    monkeypatch.setattr(_packed, "projected", lambda *given: made.append(real(*given)) or made[-1])
    with torch.no_grad():
        found = encoder(x)
    assert len(made) == 1
    assert made[0] is not None
    expected = encoder(x)  # with gradients: step by step
    assert len(made) == 1
    assert float((found - expected.detach()).abs().max()) < 1e-6
    with torch.no_grad():
        encoder(rows("tokens", [2, 3]))
    assert made[-1] is None  # too few steps for tables to pay


@pytest.mark.parametrize("kind", ["tokens", "series"])
@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("layers", [1, 2])
def test_loss_and_every_gradient_equal_the_padded_implementation(kind: str, task: str, layers: int) -> None:
    """The padded one runs every row; ours leaves out rows without a loss and still divides by all of them."""
    lengths = [3, 1, 12, 7, 7, 30, 2, 5, 5, 19]
    x = rows(kind, lengths)
    g = torch.Generator().manual_seed(3)
    classes = 4
    if task == "single":
        y = torch.nn.functional.one_hot(torch.randint(classes, (len(lengths),), generator=g), classes).float()
        known = (torch.arange(len(lengths)) % 3 > 0).view(-1, 1).expand(-1, classes)
    else:
        y = (torch.rand(len(lengths), classes, generator=g) < 0.4).float()
        known = torch.rand(len(lengths), classes, generator=g) < 0.6
        known[4] = False
    weight = torch.rand(len(lengths), classes, generator=g)
    data = Examples(x, y * known, known, torch.ones(classes).bool(), weight)
    head = torch.randn(classes, 16, generator=g)

    encoder = make(kind, layers=layers)
    clone = padded_copy(encoder)
    needed = losses.rows_with_loss(data, task)  # type: ignore[arg-type]
    assert 0 < int(needed.sum()) < len(lengths)
    batch = data.take(needed.nonzero().flatten(), drawn=len(data))
    ours = losses.task_loss[task](encoder(batch.x) @ head.T, batch)
    theirs = losses.task_loss[task](ordinary(clone, x) @ head.T, data)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ours.backward()
    theirs.backward()
    expected = dict(clone.named_parameters())
    for name, parameter in encoder.named_parameters():
        gradient = expected[ordinary_name(name)].grad
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-4, msg=named(name))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(8, 60))
def test_any_mixture_of_lengths_gives_what_padding_gives(lengths: list[int], piece: int) -> None:
    before = _attention.PIECE
    _attention.PIECE = piece
    try:
        encoder = make("tokens")
        x = rows("tokens", lengths)
        with torch.no_grad():
            found = encoder(x)
            for i, n in enumerate(lengths):
                alone = torch.zeros(16) if n == 0 else ordinary(padded_copy(encoder), x.take(torch.tensor([i])))[0]
                torch.testing.assert_close(found[i], alone, atol=1e-5, rtol=1e-4)
    finally:
        _attention.PIECE = before


def test_an_empty_row_is_zero_and_gives_no_nan_to_anyone() -> None:
    encoder = make("tokens", dropout=0.5)
    z = encoder(rows("tokens", [0, 4, 0, 1]), KeyedRandom(1))
    z.square().sum().backward()
    assert z[0].abs().sum() == 0
    assert z[2].abs().sum() == 0
    assert torch.isfinite(z).all()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_only_empty_rows_or_no_row_at_all() -> None:
    encoder = make("series")
    assert encoder(rows("series", [0, 0])).tolist() == [[0.0] * 16] * 2
    assert encoder(Sequences(torch.empty(0, 7), torch.tensor([0]))).shape == (0, 16)


def test_a_long_row_is_attended_in_blocks_with_the_same_result() -> None:
    lengths = [300, 280]
    encoder, x = make("tokens"), rows("tokens", lengths)
    whole = encoder(x)
    weights = list(encoder.parameters())
    expected = torch.autograd.grad(whole.square().sum(), weights)
    before = _attention.BLOCK
    _attention.BLOCK = 10_000
    try:
        blocked = encoder(x)
        found = torch.autograd.grad(blocked.square().sum(), weights)
    finally:
        _attention.BLOCK = before
    torch.testing.assert_close(blocked, whole, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def slope_by_steps(value: Callable[[], Tensor], parameter: Tensor, direction: Tensor, step: float) -> float:
    """How fast the value changes along a direction, by a step either way; the parameter is then as it was."""
    with torch.no_grad():
        parameter.add_(step * direction)
        up = float(value())
        parameter.sub_(2 * step * direction)
        down = float(value())
        parameter.add_(step * direction)
    return (up - down) / (2 * step)


def test_blocks_drop_the_same_weights_forward_and_backward() -> None:
    """With dropout the gradient must be that of the very function evaluated: compare with finite differences."""
    encoder, x = make("tokens", dropout=0.5), rows("tokens", [60])
    before = _attention.BLOCK
    _attention.BLOCK = 1000
    try:

        def value() -> Tensor:
            return encoder(x, KeyedRandom(9)).square().sum()

        # before the weights are dropped and after it: only the former's gradient asks what was dropped
        for parameter in (encoder.layers[0].qkv, encoder.layers[0].out):
            (gradient,) = torch.autograd.grad(value(), [parameter])
            direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
            slope = float((gradient * direction).sum())
            assert slope_by_steps(value, parameter, direction, 1e-3) == pytest.approx(slope, rel=0.02)
    finally:
        _attention.BLOCK = before


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_gradients_with_dropout_match_finite_differences(rate: float) -> None:
    encoder, x = make("series", dropout=rate), rows("series", [9, 3, 5])

    def value() -> Tensor:
        return encoder(x, KeyedRandom(4)).square().sum()

    loss = value()
    parameters = dict(encoder.named_parameters())
    gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    g = torch.Generator().manual_seed(2)
    for name, parameter in parameters.items():
        direction = torch.randn(parameter.shape, generator=g)
        found = slope_by_steps(value, parameter, direction, 2e-3 / float(direction.norm()))
        slope = float((gradients[name] * direction).sum())
        assert found == pytest.approx(slope, rel=0.05, abs=0.05), name


def test_a_key_decides_what_is_dropped_and_without_one_nothing_is() -> None:
    encoder, x = make("tokens", dropout=0.5), rows("tokens", [25])
    with torch.no_grad():
        assert torch.equal(encoder(x), encoder(x))
        assert not torch.equal(encoder(x, KeyedRandom(1)), encoder(x, KeyedRandom(2)))
        assert torch.equal(encoder(x, KeyedRandom(1)), encoder(x, KeyedRandom(1)))


@pytest.mark.slow
def test_5000_steps_need_little_more_memory_than_their_rows() -> None:
    """Attention's square is 4 heads x 5,000 x 5,000 floats = 400 MB, and training holds it four times over."""
    import resource

    encoder = make("tokens", max_length=5000, dropout=0.5)
    x = rows("tokens", [5000, 1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    encoder(x, KeyedRandom(1)).sum().backward()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 400, f"{grown:.0f} MB"
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_an_overlong_row_is_cut_or_refused_as_asked() -> None:
    x = rows("tokens", [12])
    cut = make("tokens", max_length=10)
    with torch.no_grad():
        assert torch.equal(cut(x), cut(x.truncated(10)))
    with pytest.raises(UserError, match=r"12 steps is longer than encoder.max_length = 10; raise it"):
        make("tokens", max_length=10, overlong="refuse")(x)


def test_bfloat16_is_near_float32_in_value_and_gradient() -> None:
    """Eight bits of mantissa: a relative error of a few thousandths in each product."""
    x = rows("tokens", [9, 30, 4, 17])
    exact, half = make("tokens", dim=32), make("tokens", dim=32, precision="bfloat16")
    found = []
    for encoder in (exact, half):
        z = encoder(x)
        found.append((z.detach(), torch.autograd.grad(z.square().sum(), list(encoder.parameters()))))
    (z, gradients), (z_half, gradients_half) = found
    assert 0 < float((z - z_half).norm() / z.norm()) < 0.02
    for ours, theirs in zip(gradients_half, gradients, strict=True):
        assert float((ours - theirs).norm()) <= 0.05 * float(theirs.norm()) + 1e-3


@pytest.mark.parametrize("steps", [1, 63, 64, 65])
def test_padding_of_steps_changes_no_bfloat16_product(steps: int) -> None:
    """Whole numbers are exact in bfloat16, so each product must be that of float32, at any number of steps."""
    g = torch.Generator().manual_seed(steps)
    x, grad, weight = (torch.randint(-2, 3, size, generator=g).float() for size in ((steps, 8), (steps, 5), (5, 8)))
    half, exact = HalfProducts(), Products()
    bias, total = torch.arange(5.0), torch.zeros(5, 8)
    assert torch.equal(half.linear(x, weight, bias), exact.linear(x, weight, bias))
    assert torch.equal(half.times(grad, weight), exact.times(grad, weight))
    if steps < 64:  # larger sums need more than eight bits
        assert torch.equal(half.add_(total.clone(), grad.t(), x), exact.add_(total.clone(), grad.t(), x))


def test_the_encoder_has_the_size_of_the_papers() -> None:
    """297,792 weights without the input layer, and the positions are not among them."""
    encoder = Transformer().build(Shape("tokens", (530,)), torch.Generator())
    sizes = {name: p.numel() for name, p in encoder.named_parameters()}
    assert sum(sizes.values()) - sizes["embedding"] == 297_792


@pytest.mark.parametrize(
    ("options", "shape"), [(Transformer(), Shape("features", (3,))), (Mlp(), Shape("tokens", (3,)))]
)
def test_an_encoder_refuses_rows_it_cannot_read(options: Transformer | Mlp, shape: Shape) -> None:
    with pytest.raises(UserError, match=r"encoder\.name"):
        options.build(shape, torch.Generator())


def test_a_second_backward_pass_is_refused() -> None:
    """Its buffers are used up by the first; the gradients would be zeros."""
    encoder = Transformer(dim=8, heads=2, feedforward=4, dropout=0.0).build(Shape("tokens", (9,)), torch.Generator())
    found = encoder(Sequences.from_rows([torch.tensor([1, 2, 3], dtype=torch.int32)])).sum()
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        found.backward()
