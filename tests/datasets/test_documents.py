"""MIMIC-III and OHSUMED: documents with several labels."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config
from fedalign.data import vocabulary
from fedalign.data.partition import group_classes
from fedalign.datasets import mimic3
from fedalign.datasets.mimic3 import Mimic3, chapter, names_of
from fedalign.datasets.ohsumed import CLASSES, Ohsumed
from fedalign.errors import UserError
from fedalign.inputs import inputs_from_json, words
from fedalign.runs import experiment
from fedalign.types import Pool, Sequences
from helpers import published

# the 50 codes of CAML's files
TOP = [
    *("401.9", "38.93", "428.0", "427.31", "414.01", "96.04", "96.6", "584.9", "250.00", "96.71", "272.4", "518.81"),
    *("99.04", "39.61", "599.0", "530.81", "96.72", "272.0", "285.9", "88.56", "244.9", "486", "38.91", "285.1"),
    *("36.15", "276.2", "496", "99.15", "995.92", "V58.61", "507.0", "038.9", "88.72", "585.9", "403.90", "311"),
    *("305.1", "37.22", "412", "33.24", "39.95", "287.5", "410.71", "276.1", "V45.81", "424.0", "45.13", "V15.82"),
    *("511.9", "37.23"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    published.write_mimic3(path)
    published.write_ohsumed(path)
    return path


def groups(own_group: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for code in TOP:
        found.setdefault(chapter(code, own_group), []).append(code)
    return found


def test_the_published_rule_makes_ten_groups_of_the_fifty_codes() -> None:
    """17 procedures are numbers below 140, so they join 038.9 as `infectious diseases`; no group is merged."""
    found = groups(own_group=False)
    assert sorted(map(len, found.values()), reverse=True) == [18, 8, 6, 5, 3, 3, 3, 2, 1, 1]
    assert len(found["infectious and parasitic diseases"]) == 18


def test_procedures_in_a_group_of_their_own_make_eleven_which_are_merged_to_ten() -> None:
    found = groups(own_group=True)
    assert found["infectious and parasitic diseases"] == ["038.9"]
    assert len(found["procedures"]) == 17
    numbers = [[TOP.index(code) for code in codes] for codes in found.values()]
    sizes = sorted((len(group) for group in group_classes(numbers, 10, np.random.default_rng(0))), reverse=True)
    assert sizes == [17, 8, 6, 5, 3, 3, 3, 2, 2, 1]


def test_notes_are_read_with_line_breaks_inside_and_codes_as_text(folder: Path) -> None:
    texts, labels = mimic3.read_notes(folder / "mimic3" / "train_50.csv")
    rows = published.mimic3_rows(160, seed=0)
    assert texts == [row[2] for row in rows]
    assert labels == [row[3].split(";") for row in rows]
    assert any("\n" in text and '"quoted"' in text for text in texts)
    assert any("038.9" in label for label in labels)  # the first 0 is part of the code


def test_summaries_become_the_words_that_count(folder: Path) -> None:
    pool = Mimic3(min_count=5, max_tokens=20).load(folder)
    text = published.mimic3_rows(1, seed=0)[0][2]
    kept = [word for word in text.split() if word not in mimic3.LEFT_OUT][:20]
    first = pool.train.x.take(torch.tensor([0])).values.tolist()  # type: ignore[union-attr]
    vocabulary = pool.inputs.vocabulary  # type: ignore[union-attr]
    assert not mimic3.LEFT_OUT & set(vocabulary)
    assert first == [vocabulary.index(word) + 1 if word in vocabulary else 0 for word in kept]
    assert (len(pool.train), len(pool.validation or ()), len(pool.test)) == (160, 40, 40)
    assert bool(pool.test.known.all())


def test_a_new_summary_is_read_as_those_of_training(folder: Path) -> None:
    """Words of every summary's head are passed over before the others are counted up to the limit."""
    pool = Mimic3(min_count=1, max_tokens=6).load(folder)
    text = published.mimic3_rows(1, seed=0)[0][2]
    assert mimic3.LEFT_OUT & set(text.split()[:6])
    first = pool.train.x.take(torch.tensor([0])).values.tolist()  # type: ignore[union-attr]
    stored = inputs_from_json(pool.inputs.model_dump_json())  # type: ignore[union-attr]
    assert stored.rows([text]).values.tolist() == first  # type: ignore[union-attr, arg-type, list-item]


def test_codes_are_named_by_the_first_file_that_knows_them(folder: Path) -> None:
    """ICD9_descriptions before MIMIC's own tables, whose codes lack the point; a code without a title is its name."""
    pool = Mimic3(min_count=5).load(folder)
    assert {"Unspecified essential hypertension", "Venous catheterization", "Insertion of tube"} <= set(
        pool.label_names
    )
    assert {"Congestive heart failure, unspecified", "Long-term use", "584.9"} <= set(pool.label_names)
    assert "another title" not in pool.label_names


def test_files_of_titles_are_optional_and_may_be_packed(tmp_path: Path) -> None:
    published.write_mimic3(tmp_path, titles=False)
    assert sorted(Mimic3(min_count=5).load(tmp_path).label_names) == sorted(published.CODES)
    packed = tmp_path / "mimic3" / "D_ICD_PROCEDURES.csv.gz"
    packed.write_bytes(gzip.compress(b"ROW_ID,ICD9_CODE,SHORT_TITLE,LONG_TITLE\n1,3893,Venous cath NEC,Venous\n"))
    assert "Venous" in Mimic3(min_count=5).load(tmp_path).label_names  # titles are no part of what is kept prepared


def test_two_codes_with_one_title_keep_their_codes() -> None:
    assert names_of(["1", "2", "3"], {"1": "same", "2": "same"}) == ["same (1)", "same (2)", "3"]


def test_rare_codes_are_left_out(folder: Path) -> None:
    counts = {}
    for number, count in enumerate((160, 40, 40)):
        for row in published.mimic3_rows(count, seed=number):
            for code in row[3].split(";"):
                counts[code] = counts.get(code, 0) + 1
    limit = sorted(counts.values())[5]
    found = Mimic3(min_count=5, min_positives=limit).load(folder)
    assert len(found.label_names) == sum(count > limit for count in counts.values())
    with pytest.raises(UserError, match=r"more than 999 documents; lower dataset.min_positives"):
        Mimic3(min_positives=999).load(folder)


def test_an_abstract_under_several_classes_is_one_example(folder: Path) -> None:
    pool = Ohsumed(min_count=2, validation=0).load(folder)
    assert (len(pool.train), len(pool.test)) == (120, 60)
    files = len(list((folder / "ohsumed").rglob("training/C*/*")))
    assert int(pool.train.y.sum()) == files > 120
    assert pool.validation is None


def test_abstracts_are_stemmed_as_the_news_are(folder: Path) -> None:
    pool = Ohsumed(min_count=1, validation=0).load(folder)
    text = sorted((folder / "ohsumed").rglob("training/C01/0000000"))[0].read_text()
    row = pool.train.x.take(torch.tensor([0]))  # type: ignore[union-attr]
    expected = pool.inputs.rows([text])  # type: ignore[union-attr, arg-type]
    assert torch.equal(row.values, expected.values)
    assert len(row.values) == len(words.prepared(text))


def test_the_23_diseases_are_spread_over_ten_clients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALIGN_DATA", str(folder))
    found = experiment.federation(config.load("ohsumed-10"))
    assert len(found.parties) == 10
    assert found.classes.sum(0).tolist() == [1] * 23
    assert len(CLASSES) == 23
    assert len({group for _, group in CLASSES.values()}) == 9  # the first of the largest, infections, is halved


def test_a_vocabulary_is_counted_in_what_is_read_of_training_documents() -> None:
    """Limit 2: `c` occurs twice in training, but once too far back; `d` is frequent in a test document only."""
    names, documents = vocabulary.numbered([["a", "b", "c"], ["c", "a"], ["d", "d"]])
    text, found = vocabulary.limited(names, documents, torch.tensor([0, 1]), "none", min_count=2, max_tokens=2)
    assert text.vocabulary == ("a",)
    assert found.values.tolist() == [1, 0, 0, 1, 0, 0]
    assert found.lengths.tolist() == [2, 2, 2]
    assert isinstance(found, Sequences)


@pytest.mark.data
@pytest.mark.slow
def test_the_real_abstracts_give_these_statistics(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6,286 and 7,643 abstracts with 1.66 classes each."""
    if not Ohsumed().present(real_data):
        pytest.skip("OHSUMED is not on this machine; see `fedalign datasets`")
    monkeypatch.setenv("FEDALIGN_DATA", str(real_data))
    pool = experiment.load(config.load("ohsumed-10"))
    assert isinstance(pool, Pool)
    assert pool.validation is not None
    assert (len(pool.train) + len(pool.validation), len(pool.test)) == (6286, 7643)
    rows = torch.cat([part.y for part in (pool.train, pool.validation, pool.test)])
    assert float(rows.sum(1).mean()) == pytest.approx(1.66, abs=0.01)
    assert pool.note == ""
