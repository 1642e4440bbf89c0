from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign.engines.local import pseudo_labels as pseudo_label_counts
from fedalign.learning import pseudo_labels
from fedalign.types import Examples, Truth


def test_cosine_and_dot() -> None:
    z, anchors = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    torch.testing.assert_close(pseudo_labels.similarity(z, anchors, "cosine"), torch.tensor([[0.8, 0.6]]))
    torch.testing.assert_close(pseudo_labels.similarity(z, anchors, "dot"), torch.tensor([[8.0, 3.0]]))


def test_percentile_interpolates() -> None:
    """Of 0..4, the 90th percentile lies at position 3.6."""
    assert pseudo_labels.percentile(torch.arange(5.0).view(-1, 1), 90.0).tolist() == [3.6]


def test_single_label_needs_the_nearest_anchor_and_a_near_one() -> None:
    """Class 0 is the client's own. Row 0 is nearest to class 1 and its best; row 1 is nearest to class 1 but below the
    median; row 2 is nearest to class 1 and near, but has a local label; row 3 is nearest to class 0."""
    near = torch.tensor([[0.1, 0.9], [0.1, 0.2], [0.1, 0.8], [0.9, 0.7]])
    y = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    known = torch.tensor([[True, False], [True, False], [True, True], [True, False]])
    own = torch.tensor([True, False])
    found, now_known = pseudo_labels.pseudo_labels_single(near, y, known, own, near_percentile=50.0, far_percentile=0.0)
    assert found.tolist() == [[0, 1], [0, 0], [1, 0], [0, 0]]
    assert now_known.tolist() == [[True, True], [True, False], [True, True], [True, False]]


def test_multi_label_thresholds_are_clamped_and_gated() -> None:
    """Class 1 is trusted, class 2 is not: no yes for it. Nothing below 0.5 becomes a yes, nothing above it a no."""
    near = torch.tensor([[0.0, 0.9, 0.9], [0.0, 0.3, 0.2], [0.0, 0.6, 0.7]])
    y = torch.zeros(3, 3)
    known = torch.zeros(3, 3).bool()
    own = torch.tensor([True, False, False])
    trusted = torch.tensor([True, True, False])
    found, now_known = pseudo_labels.pseudo_labels_multi(near, y, known, own, 60.0, 99.0, 0.5, trusted)
    assert found.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert now_known.tolist() == [[False, True, False], [False, True, True], [False, False, False]]


def test_weighted_pseudo_labels_count_the_pseudo_rows_as_a_mean_of_their_own() -> None:
    """Four rows, one of them pseudo-labelled: in a mean over four it must count four times to be a mean over one."""
    known = torch.tensor([[True, False]] * 4)
    data = Examples(torch.zeros(4, 1), torch.zeros(4, 2), known, torch.tensor([True, False]))
    now = known.clone()
    now[2, 1] = True
    y = torch.zeros(4, 2)
    y[2, 1] = 1
    aligned = replace(data, y=y, known=now)
    found = pseudo_labels.weighted_pseudo_labels(data, aligned, weight=0.5)
    assert found.weight is not None
    assert found.weight.tolist() == [[1, 1], [1, 1], [1, 2.0], [1, 1]]


def test_a_pseudo_no_belongs_to_the_second_expectation_too() -> None:
    """D' of Eq. 9 has two rows, a yes and a no, of four: each entry weighs 0.5 * 4 / 2 = 1, not 0.5 * 4 / 1."""
    known = torch.tensor([[True, False]] * 4)
    data = Examples(torch.zeros(4, 1), torch.zeros(4, 2), known, torch.tensor([True, False]))
    now, y = known.clone(), torch.zeros(4, 2)
    now[2:, 1] = True
    y[2, 1] = 1
    found = pseudo_labels.weighted_pseudo_labels(data, replace(data, y=y, known=now), weight=0.5)
    assert found.weight is not None
    assert found.weight.tolist() == [[1, 1], [1, 1], [1, 1.0], [1, 1.0]]


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(2, 6), st.sampled_from(["single", "multi"]))
def test_an_annotated_entry_is_never_changed(seed: int, n: int, classes: int, task: str) -> None:
    g = torch.Generator().manual_seed(seed)
    near = torch.rand(n, classes, generator=g)
    own = torch.rand(classes, generator=g) < 0.5
    known = (torch.rand(n, classes, generator=g) < 0.8) & own
    y = (torch.rand(n, classes, generator=g) < 0.5).float() * known
    if task == "single":
        y = y * (torch.cumsum(y, 1) == 1)  # at most one class
        found, now_known = pseudo_labels.pseudo_labels_single(near, y, known, own, 60.0, 40.0)
        assert int(found.sum(1).max()) <= 1
    else:
        trusted = torch.rand(classes, generator=g) < 0.5
        found, now_known = pseudo_labels.pseudo_labels_multi(near, y, known, own, 60.0, 40.0, 0.5, trusted)
    assert torch.equal(found[known], y[known])
    assert bool(now_known[known].all())
    added = now_known & ~known
    assert not bool(added[:, own].any())  # only classes the client does not annotate


def test_only_pseudo_labels_whose_truth_is_known_count_as_right() -> None:
    """Class 0 was annotated. Added: yes on yes, yes on no, yes on an unknown; no on no, no on an unknown."""
    y = torch.tensor([[1.0, 1], [0, 1], [0, 1], [0, 0], [0, 0]])
    before = Examples(torch.empty(5, 0), y * torch.tensor([1.0, 0]), y.new_ones(5, 2).bool(), torch.ones(2).bool())
    before.known[:, 1] = False
    after = replace(before, y=y, known=torch.ones(5, 2).bool())
    truth = Truth(torch.tensor([[1.0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]), torch.ones(5, 2).bool())
    truth.known[[2, 4], 1] = False
    assert pseudo_label_counts(before, after, truth) == {
        "pseudo_yes": 3,
        "pseudo_no": 2,
        "pseudo_yes_known": 2,
        "pseudo_yes_right": 1,
        "pseudo_no_known": 1,
        "pseudo_no_right": 1,
    }
    assert pseudo_label_counts(before, after, None) == {"pseudo_yes": 3, "pseudo_no": 2}
