"""Fixed feature maps against other implementations and naive loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from fedalign.encoders import random_features, rocket, tfidf
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.types import Sequences, take

TEXT, TABLE, SERIES = Shape("tokens", (30,)), Shape("features", (6,)), Shape("series", (4,))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def documents(seed: int, rows: int = 12) -> Sequences:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 15, size=rows)
    return Sequences.from_rows(torch.from_numpy(rng.integers(0, 30, size=n).astype(np.int32)) for n in lengths)


def recordings(seed: int, lengths: list[int]) -> Sequences:
    rng = np.random.default_rng(seed)
    return Sequences.from_rows(torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32) * 2) for n in lengths)


def fitted(encoder: Any, *parts: Any) -> Any:
    statistics = [encoder.statistics(part) for part in parts]
    encoder.fit({key: sum(one[key] for one in statistics) for key in statistics[0]})
    return encoder


def examples() -> list[tuple[Any, Any]]:
    return [
        (tfidf.TfIdf(features=20).build(TEXT, generator()), documents(1)),
        (tfidf.TfIdf(features=40, bigrams=64).build(TEXT, generator()), documents(1)),
        (random_features.RandomFeatures(features=50).build(TABLE, generator()), torch.randn(9, 6) * 10),
        (random_features.RandomFeatures(features=50, kind="fourier").build(TABLE, generator()), torch.randn(9, 6)),
        (rocket.Rocket(features=40).build(SERIES, generator()), recordings(1, [1, 30, 2, 9])),
    ]


@pytest.mark.parametrize("number", range(5))
def test_rows_are_not_longer_than_one_and_state_survives_in_the_state_dict(number: int) -> None:
    encoder, x = examples()[number]
    fitted(encoder, x)
    rows = encoder(x)
    assert rows.shape == (len(x), encoder.dim)
    assert bool(rows.isfinite().all())
    assert float(rows.norm(dim=1).max()) <= 1 + 1e-6
    other, _ = examples()[number]
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), rows)
    assert not list(encoder.parameters())


@pytest.mark.parametrize("number", range(5))
def test_statistics_of_parts_add_up_to_those_of_all_rows(number: int) -> None:
    encoder, x = examples()[number]
    n = len(x)
    parts = [x.take(rows) if isinstance(x, Sequences) else x[rows] for rows in torch.arange(n).split(n // 2)]
    every = encoder.statistics(x)
    for key, value in every.items():
        torch.testing.assert_close(sum(encoder.statistics(part)[key] for part in parts), value)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_tfidf_is_that_of_sklearn(seed: int) -> None:
    x = documents(seed)
    texts = [" ".join(f"w{i}" for i in row.tolist() if i) for row in x.values.tensor_split(x.offsets[1:-1])]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\S+")
    expected = vectorizer.fit_transform(texts).toarray()
    ids = [int(word[1:]) for word in vectorizer.get_feature_names_out()]
    encoder = fitted(tfidf.TfIdf(features=29).build(TEXT, generator()), x)
    np.testing.assert_allclose(encoder(x)[:, encoder.column[ids]].numpy(), expected, atol=1e-6)


def test_tfidf_keeps_the_terms_in_most_documents_and_zeroes_the_rest() -> None:
    rows = [[1, 2, 2, 2], [1, 3], [1, 3], [0, 0]]
    x = Sequences.from_rows(torch.tensor(row, dtype=torch.int32) for row in rows)
    encoder = fitted(tfidf.TfIdf(features=2).build(Shape("tokens", (6,)), generator()), x)
    assert (encoder.column < 2).nonzero().flatten().tolist() == [1, 3]
    found = encoder(x)
    assert found[0].tolist() == [1, 0]
    assert found[3].tolist() == [0, 0]  # only unknown words


def test_bigrams_tell_the_order_of_words() -> None:
    x = Sequences.from_rows(torch.tensor(row, dtype=torch.int32) for row in ([1, 2, 3], [3, 2, 1], [1, 0, 2, 3]))
    plain = fitted(tfidf.TfIdf(features=100).build(TEXT, generator()), x)(x)
    paired = fitted(tfidf.TfIdf(features=600, bigrams=512).build(TEXT, generator()), x)(x)
    assert torch.equal(plain[0], plain[1])
    assert not torch.allclose(paired[0], paired[1])
    assert int((paired[2] > 0).sum()) == 4  # an unknown word between two words separates them


def test_a_document_alone_has_the_same_bits_as_among_others() -> None:
    x = documents(3)
    assert 0 in x.lengths
    encoder = fitted(tfidf.TfIdf(features=40, bigrams=64).build(TEXT, generator()), x)
    alone = [encoder(take(x, torch.tensor([row]))) for row in range(len(x))]
    assert torch.equal(torch.cat(alone), encoder(x))


def naive(encoder: rocket.RocketEncoder, row: torch.Tensor) -> list[float]:
    """One row, one kernel, one step at a time."""
    x = row.clamp(-5, 5).double()
    steps, channels = x.shape
    shares, highest = [], []
    for k in range(len(encoder.mix)):
        above = []
        for t in range(steps):
            value = 0.0
            for tap in range(11):
                at = t + (tap - 5) * int(encoder.dilation[k])
                if 0 <= at < steps:
                    value += float(encoder.taps[k, tap]) * float(encoder.mix[k].double() @ x[at])
            above.append((value - float(encoder.mean[k])) / float(encoder.sd[k]) - float(encoder.level[k]))
        shares.append((2 * sum(min(max(100 * a + 0.5, 0), 1) for a in above) / steps - 1) / math.sqrt(len(encoder.mix)))
        highest.append(min(max(*above, 0), 5) / 2 / math.sqrt(len(encoder.mix)))
    mean = (x.mean(0) / math.sqrt(channels)).tolist()
    sd = (x.std(0, correction=0) / math.sqrt(channels)).tolist()
    found = [*mean, *sd, *shares, *highest]
    return [value / max(math.hypot(*found), 3) for value in found]


@settings(max_examples=10)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 10**6))
def test_rocket_on_ragged_rows_equals_a_naive_loop(lengths: list[int], seed: int) -> None:
    x = recordings(seed, lengths)
    encoder = fitted(rocket.Rocket(features=24, longest=40).build(SERIES, generator(seed)), x)
    expected = [naive(encoder, row) for row in x.values.tensor_split(x.offsets[1:-1])]
    np.testing.assert_allclose(encoder(x).numpy(), np.array(expected), atol=2e-5)


def test_rocket_gives_a_row_the_same_features_in_any_company() -> None:
    x = recordings(3, [5, 40, 1])
    encoder = fitted(rocket.Rocket(features=40).build(SERIES, generator()), x)
    alone = torch.cat([encoder(x.take(torch.tensor([i]))) for i in range(3)])
    torch.testing.assert_close(encoder(x), alone)


def test_rocket_of_a_constant_channel_and_of_no_row_is_finite() -> None:
    x = Sequences(torch.zeros(10, 4), torch.tensor([0, 10]))
    encoder = fitted(rocket.Rocket(features=40).build(SERIES, generator()), x)
    assert bool(encoder(x).isfinite().all())
    assert encoder(x.take(torch.arange(0))).shape == (0, encoder.dim)


def test_the_seed_decides_random_maps() -> None:
    for options, shape in ((random_features.RandomFeatures(50), TABLE), (rocket.Rocket(40), SERIES)):
        one, same, other = (options.build(shape, generator(seed)).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(one[key], same[key]) for key in one)
        assert not all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("options", "shape"),
    [(tfidf.TfIdf(), TABLE), (random_features.RandomFeatures(), SERIES), (rocket.Rocket(), TEXT)],
)
def test_a_map_refuses_other_rows_and_names_the_one_that_fits(options: Any, shape: Shape) -> None:
    with pytest.raises(UserError, match=r"use encoder\.name"):
        options.build(shape, generator())
