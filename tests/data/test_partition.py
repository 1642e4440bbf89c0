from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign.data.downloads import data_folder
from fedalign.data.partition import cover_classes, divide, group_classes, majority, owner_of_rows, positives
from fedalign.data.settings import Partition
from fedalign.datasets.synthetic import Synthetic
from fedalign.errors import UserError
from fedalign.inputs import Text
from fedalign.types import Examples, Pool


def pool(**options: object) -> Pool:
    return Synthetic(kind="features", rows=600, **options).load(data_folder())  # type: ignore[arg-type]


def test_random_classes_shows_a_row_fully_or_rules_out_the_clients_classes() -> None:
    how = Partition(kind="random-classes", clients=4, classes_per_client=3)
    data = pool()
    found = divide(data, how, seed=5)
    assert sum(len(party.train) for party in found.parties) == len(data.train)
    for party in found.parties:
        assert party.truth is not None
        rows, truth = party.train, party.truth.y
        assert int(rows.classes.sum()) == 3
        mine = (truth.bool() & rows.classes).any(1)
        assert bool(rows.known[mine].all())
        assert torch.equal(rows.y[mine], truth[mine])
        assert torch.equal(rows.known[~mine], rows.classes.expand_as(rows.known[~mine]))
        assert float(rows.y[~mine].sum()) == 0  # no label behind the mask


def test_validation_rows_are_divided_with_the_same_classes() -> None:
    found = divide(pool(), Partition(kind="random-classes", clients=4), seed=5)
    for party in found.parties:
        assert party.validation is not None
        assert torch.equal(party.validation.classes, party.train.classes)


def test_validation_rows_without_subjects_cannot_be_divided_by_subject() -> None:
    data = replace(pool(), validation_subject=None)
    with pytest.raises(UserError, match=r"subjects of its validation rows; set partition.rows = 'shuffle'"):
        divide(data, Partition(kind="random-classes", rows="subject"), seed=1)
    assert divide(data, Partition(kind="random-classes", clients=4), seed=1).parties[3].validation is not None


def test_one_client_per_subject() -> None:
    data = pool()
    found = divide(data, Partition(kind="random-classes", rows="subject"), seed=1)
    assert len(found.parties) == 8
    assert [len(p.train) for p in found.parties] == torch.bincount(data.subject).tolist()  # type: ignore[arg-type]


def test_clients_stay_people_when_somebody_has_no_validation_rows() -> None:
    data = pool()
    assert data.validation_subject is not None
    data.validation_subject[data.validation_subject == 3] = 4
    found = divide(data, Partition(kind="random-classes", rows="subject"), seed=1)
    held = [len(party.validation) for party in found.parties if party.validation is not None]
    assert held == torch.bincount(data.validation_subject, minlength=8).tolist()
    assert held[3] == 0


def test_covering_every_class_is_an_option() -> None:
    how = Partition(kind="random-classes", clients=3, classes_per_client=3)
    uncovered = [s for s in range(20) if not divide(pool(), how, s).classes.any(0).all()]
    assert uncovered  # eight classes, nine draws: often one is left out
    covered = how.model_copy(update={"cover": True})
    assert all(bool(divide(pool(), covered, s).classes.any(0).all()) for s in uncovered)
    data = pool()
    data.train.y[:, 0] = 0  # occurs nowhere, so nobody is to annotate it
    assert divide(data, covered, 0).classes.any(0).tolist() == [False] + [True] * 7
    with pytest.raises(UserError, match="covers all 8 classes"):
        divide(pool(), how.model_copy(update={"cover": True, "clients": 2}), 0)


def test_the_same_seed_divides_alike_and_another_does_not() -> None:
    how = Partition(kind="random-classes", clients=5)
    first, again, other = (divide(pool(), how, seed) for seed in (1, 1, 2))
    assert torch.equal(first.classes, again.classes)
    assert torch.equal(first.parties[0].train.y, again.parties[0].train.y)
    assert not torch.equal(first.classes, other.classes)


def test_category_gives_every_class_to_exactly_one_client() -> None:
    found = divide(pool(task="multi"), Partition(kind="category", clients=5), seed=3)
    assert found.classes.sum(0).tolist() == [1] * 8
    for party in found.parties:
        assert bool((party.train.y.sum(1) > 0).float().mean() > 0.9)  # nearly always a local positive
        assert torch.equal(party.train.known, party.train.classes.expand_as(party.train.known))


def test_validation_rows_follow_their_subject() -> None:
    """All rows of a person lie at one client, in training and in validation."""
    data = pool(task="multi")
    data.train.x[:, 0] = data.subject  # type: ignore[index, assignment]
    data.validation.x[:, 0] = data.validation_subject  # type: ignore[index, assignment, union-attr]
    found = divide(data, Partition(kind="category", clients=2, rows="subject"), seed=3)
    where: dict[float, set[int]] = {}
    for m, party in enumerate(found.parties):
        assert party.validation is not None
        for part in (party.train, party.validation):
            for person in part.x[:, 0].tolist():  # type: ignore[index]
                where.setdefault(person, set()).add(m)
    assert len(where) == 8
    assert all(len(clients) == 1 for clients in where.values())


def test_pieces_of_a_recording_count_once() -> None:
    """Class 0 has three pieces of one recording, class 1 two recordings: class 0 is the rarer one. Validation counts
    with training, because the published code sets it aside later."""
    y = torch.tensor([[1, 0], [1, 0], [1, 1], [0, 1]])
    recording = torch.tensor([7, 7, 7, 9])
    part = Examples(torch.empty(4, 0), y.float(), torch.ones_like(y, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    assert positives(part, None).tolist() == [3, 2]
    assert positives(part, recording).tolist() == [1, 2]
    assert owner_of_rows(y, [[0], [1]]).tolist() == [0, 0, 1, 1]
    assert owner_of_rows(y, [[0], [1]], positives(part, recording)).tolist() == [0, 0, 0, 1]
    data = Pool("multi", ["a", "b"], part, part, Text(), category=["a", "b"], recording=recording)
    assert [len(party.train) for party in divide(data, Partition(kind="category"), 0).parties] == [3, 1]
    held = replace(part, y=torch.tensor([[1.0, 0.0]] * 4))  # three more recordings of class 0
    more = replace(data, validation=held, validation_recording=torch.tensor([1, 2, 3, 3]))
    assert [len(party.train) for party in divide(more, Partition(kind="category"), 0).parties] == [2, 2]


def test_original_gaps_stay_unknown() -> None:
    data = pool(task="multi")
    data.train.known[:, 0] = False
    found = divide(data, Partition(kind="category", clients=4), seed=3)
    assert not any(bool(party.train.known[:, 0].any()) for party in found.parties)


def test_a_partys_truth_tells_what_is_not_known() -> None:
    data = pool(task="multi")
    data.train.known[::2, 0] = False
    data.train.x[:, 0] = torch.arange(len(data.train))  # type: ignore[index]
    for how in (Partition(kind="category", clients=4), Partition(kind="centralised")):
        for party in divide(data, how, seed=3).parties:
            rows = party.train.x[:, 0].long()  # type: ignore[index]
            assert party.truth is not None
            assert torch.equal(party.truth.known, data.train.known[rows])
            assert torch.equal(party.truth.y, data.train.y[rows])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 99))
def test_grouping_keeps_every_class_once(sizes: list[int], clients: int, seed: int) -> None:
    numbers = iter(range(sum(sizes)))
    groups = [[next(numbers) for _ in range(size)] for size in sizes]
    if clients > sum(sizes):
        with pytest.raises(UserError, match="cannot be spread"):
            group_classes(groups, clients, np.random.default_rng(seed))
        return
    found = group_classes(groups, clients, np.random.default_rng(seed))
    assert len(found) == clients
    assert sorted(c for group in found for c in group) == list(range(sum(sizes)))
    assert all(found)


def test_a_row_goes_to_the_owner_of_its_rarest_class() -> None:
    """Class 1 occurs once, class 0 twice: the row with both goes to class 1's owner."""
    y = torch.tensor([[1, 1], [1, 0], [0, 0]])
    assert owner_of_rows(y, [[0], [1]]).tolist() == [1, 0, -1]


def test_majority_moves_all_rows_of_a_subject_together() -> None:
    owner = torch.tensor([0, 1, 1, -1, 0])
    subject = torch.tensor([7, 7, 7, 7, 8])
    assert majority(owner, subject, 2).tolist() == [1, 1, 1, -1, 0]


def test_subjects_are_placed_so_that_each_client_has_a_positive_of_each_of_its_classes() -> None:
    """Client 0 annotates class 0, client 1 classes 1 and 2. Only subject 8 has class 2, so it goes to client 1 although
    most of its rows belong to client 0; only subject 7 then has class 0 for client 0. Subject 9 follows its rows."""
    subject = torch.tensor([7, 7, 8, 8, 8, 9, 9])
    yes = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0]]).bool()
    owner = torch.tensor([0, 1, 0, 0, 1, 1, 1])
    placed = cover_classes(yes, subject, owner, [[0], [1, 2]])
    assert placed == {8: 1, 7: 0, 9: 1}
    assert majority(owner, subject, 2, placed).tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_class_sets_fix_who_annotates_what_and_the_others_cover_the_rest() -> None:
    data = pool()
    names = list(data.label_names)
    sets = {"client-1": names[:2], "client-3": [names[1], names[4]]}
    for seed in range(3):
        how = Partition(kind="random-classes", clients=4, classes_per_client=3, class_sets=sets)
        classes = divide(data, how, seed).classes
        assert classes[1].nonzero().flatten().tolist() == [0, 1]
        assert classes[3].nonzero().flatten().tolist() == [1, 4]
        assert bool(classes.any(0).all())
        assert classes.sum(1).tolist() == [3, 2, 3, 2]


def test_class_sets_that_leave_a_class_to_nobody_are_refused() -> None:
    data = pool()
    names = list(data.label_names)
    everyone = {"client-0": names[:3], "client-1": names[3:-1]}
    with pytest.raises(UserError, match=f"leaves nobody to annotate {names[-1]}; add it to the classes of a client"):
        divide(data, Partition(kind="random-classes", clients=2, class_sets=everyone), seed=1)
    multi = pool(task="multi")
    names = list(multi.label_names)
    halves = {"client-0": names[3:], "client-1": names[:3]}
    how = Partition(kind="category", class_sets=halves)
    assert divide(multi, how, seed=1).classes[1].nonzero().flatten().tolist() == [0, 1, 2]
    for sets, message in (
        ({**halves, "client-1": names[:2]}, f"nobody to annotate {names[2]}"),
        ({**halves, "client-1": names[:4]}, f"gives {names[3]} to several clients"),
    ):
        with pytest.raises(UserError, match=message):
            divide(multi, Partition(kind="category", class_sets=sets), seed=1)
    with pytest.raises(UserError, match="has no classes of client-1"):
        divide(multi, Partition(kind="category", clients=2, class_sets={"client-0": names}), seed=1)


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        (Partition(kind="none"), {}, "set partition.kind"),
        (Partition(kind="random-classes", clients=3), {"task": "multi"}, "use 'category'"),
        (Partition(kind="random-classes", clients=10_000), {}, "too few for 10000 clients"),
        (Partition(kind="random-classes", rows="subject", clients=5), {}, "one client of each of the 8 subjects"),
        (
            Partition(kind="category", rows="subject", clients=10),
            {"task": "multi", "classes": 12},
            "annotates .* would hold no row",
        ),
        (Partition(kind="random-classes", clients=4, class_sets={"client-0": ["topic"]}), {}, "unknown class 'topic'"),
        (Partition(kind="random-classes", clients=4, class_sets={"client-4": []}), {}, "'client-4'; did you mean"),
    ],
)
def test_what_cannot_be_divided_is_refused(how: Partition, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        divide(pool(**options), how, 0)
