"""Names of different parties that may mean one class: the evidence, and what contradicts it."""

from __future__ import annotations

import pytest
import torch

from benchmarks import label_matching
from fedalign.labels.match import compared, contradict, is_initials, is_shortened, joined, mutual_shares, propose


@pytest.mark.parametrize(
    ("first", "second", "evidence"),
    [
        ("kidney stones", "stones of the kidney", "same words"),
        ("anaemia", "anemia", "same words, spelt British and American"),
        ("gall stones", "gallstones", "same letters"),
        (
            "COPD",
            "chronic obstructive pulmonary disease",
            "COPD are the initials of chronic obstructive pulmonary disease",
        ),
        ("T2DM", "type 2 diabetes mellitus", "T2DM are the initials of type 2 diabetes mellitus"),
        ("pneum.", "pneumonia", "pneum. shortens pneumonia"),
        ("psoriasis", "psoriaisis", "similar spelling, 95% of the letters"),
    ],
)
def test_names_are_proposed_with_the_reason(first: str, second: str, evidence: str) -> None:
    score, found = compared(first, second)
    assert score >= 0.6
    assert found == (evidence,)
    assert compared(second, first) == (score, found)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("type 1 diabetes", "type 2 diabetes"),
        ("hypothyroidism", "hyperthyroidism"),
        ("hepatitis B", "hepatitis C"),
        ("left hip fracture", "right hip fracture"),
        ("diabetes with complications", "diabetes without complications"),
        ("overload", "underload"),
        ("walking upstairs", "walking downstairs"),
    ],
)
def test_names_that_contradict_each_other_are_never_proposed(first: str, second: str) -> None:
    assert contradict(first, second)
    assert compared(first, second, cosine=0.99, predicted=1.0) == (0.0, ())


def test_abbreviations_are_exact() -> None:
    assert is_initials("MI", "myocardial infarction")
    assert not is_initials("MI", "mitral valve insufficiency")
    assert not is_initials("at", "atrial tachycardia of the left side")
    assert is_shortened("resp. failure", "respiratory failure")
    assert not is_shortened("bronchit", "bronchitis of the lung")
    assert not is_shortened("pneumonia", "pneumonia")


def test_meaning_and_a_first_model_are_evidence_and_add_up() -> None:
    assert compared("heart attack", "myocardial infarction") == (0.0, ())
    score, found = compared("heart attack", "myocardial infarction", cosine=0.7, predicted=0.9)
    # 0.5 + 0.9 / 3 = 0.8, and 0.05 for the second piece of evidence
    assert score == 0.85
    assert found == ("a first model gives 90% of their rows to each other", "similar meaning, cosine 0.70")
    assert compared("food allergy", "drug allergy", cosine=0.7) == (0.0, ())  # the common word explains the cosine


def test_names_that_one_party_uses_side_by_side_are_two_classes() -> None:
    apart = {"north": ["kidney stones"], "south": ["stones of the kidney", "flu"]}
    (pair,) = propose(apart)
    assert (pair.first, pair.second) == ("kidney stones", "stones of the kidney")
    assert (pair.first_parties, pair.second_parties) == (("north",), ("south",))
    assert propose({**apart, "east": ["kidney stones", "stones of the kidney"]}) == []


def test_joins_lead_to_the_name_with_most_rows() -> None:
    pairs = [("MI", "heart attack"), ("heart attack", "myocardial infarction"), ("flu", "influenza")]
    rows = {"MI": 5, "heart attack": 9, "myocardial infarction": 7, "flu": 1, "influenza": 1}
    assert joined(pairs, rows) == {"MI": "heart attack", "influenza": "flu", "myocardial infarction": "heart attack"}


def test_the_share_of_rows_that_a_model_gives_to_the_other_name() -> None:
    """North calls four rows a; of the classes it lacks, three score highest in b. South calls two rows b, both a."""
    names = ["a", "b", "c"]
    north = torch.tensor([[0.0, 2, 1], [0, 2, 1], [0, 2, 1], [0, 1, 2]]), torch.tensor([[True, False, False]] * 4)
    south = torch.tensor([[3.0, 0, 1], [3, 0, 1]]), torch.tensor([[False, True, False]] * 2)
    own = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    found = mutual_shares(names, [(*north, own[0]), (*south, own[1])])
    assert found == {("a", "b"): 0.75}


def test_precision_and_recall_are_those_of_the_documentation() -> None:
    found = label_matching.measure(with_model=False)
    assert found["precision"] == pytest.approx(0.86, abs=0.005)
    assert found["recall"] == pytest.approx(0.69, abs=0.005)
