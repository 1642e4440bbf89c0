"""What label cells and input columns mean, on small files written out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalign.errors import UserError
from fedalign.ingest import columns as readings
from fedalign.ingest.columns import Reading, Records, limited, read_all
from fedalign.ingest.formats import Problem, Ragged, open_table
from helpers.written import script, write


def read(path: Path, **options: Any) -> Records:
    return read_all(open_table(path), Reading(**options))


def states(records: Records) -> dict[str, str]:
    """Each class's rows as 1 yes, 0 no, . not looked at."""
    labels = records.labels
    assert labels is not None
    return {
        name: "".join("." if not k else "1" if y else "0" for y, k in zip(yes, known, strict=True))
        for name, yes, known in zip(labels.names, labels.yes.T, labels.known.T, strict=True)
    }


def test_one_class_a_row(tmp_path: Path) -> None:
    """Empty: not looked at. Another name: a no for this class. 'none of these': a no for all of them."""
    path = script(tmp_path / "a.csv", "note,act\na,walking\nb,\nc,running\nd,None of these\ne,Walking \n")
    found = read(path, text="note", label="act")
    assert states(found) == {"walking": "1.001", "running": "0.100"}
    assert Reading(label="act").task == "single"


def test_several_names_a_row(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "note,codes\na,0870; 12\nb,\nc,12;12\nd,none\n")
    found = read(path, text="note", labels="codes", other="none")
    assert states(found) == {"0870": "1.00", "12": "1.10"}
    assert Reading(labels="codes").task == "multi"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_list_of_names_that_is_empty_says_none_and_null_says_nothing(tmp_path: Path, ending: str) -> None:
    table = {"note": ["a", "b", "c", "d"], "codes": [["x", "y"], [], None, ["y"]]}
    found = read(write(tmp_path / f"a.{ending}", table), text="note", labels="codes")
    assert states(found) == {"x": "10.0", "y": "10.1"}


def test_a_column_a_class(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "x,label:a,label:b,label:c\n1,1,0,\n2,,1.0,\n3,true,FALSE,\n")
    found = read(path, features=("x",), label_prefix="label:")
    assert states(found) == {"a": "1.1", "b": "010", "c": "..."}
    assert found.labels is not None
    assert found.labels.annotated == ("a", "b")  # nobody looked for c
    listed = read(path, features=("x",), label_columns=("label:a", "label:d"))
    assert states(listed) == {"label:a": "1.1"}  # d is another party's


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("Y", "N"), ("T", "F"), ("True", "FALSE"), (" Yes ", "nO")])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_column_a_class_may_say_yes_and_no_in_words(tmp_path: Path, ending: str, yes: str, no: str) -> None:
    path = write(tmp_path / f"a.{ending}", {"x": [1, 2, 3], "l:a": [yes, no, None], "l:b": [no, None, yes]})
    assert states(read(path, features=("x",), label_prefix="l:")) == {"a": "10.", "b": "0.1"}


@pytest.mark.parametrize("cell", ["-1", "2", "maybe", "0.5"])
def test_a_mark_that_is_neither_is_refused(tmp_path: Path, cell: str) -> None:
    path = script(tmp_path / "a.csv", f"x,l:a\n1,1\n2,{cell}\n")
    message = rf"a.csv, row 3, column l:a: '{cell}' is neither 1 \(yes\), 0 \(no\) nor empty \(not looked at\)"
    message += "; write one of them, or name it in dataset.missing$"
    with pytest.raises(UserError, match=message):
        read(path, features=("x",), label_prefix="l:")


def test_numbers_as_classes_are_names(tmp_path: Path) -> None:
    table = {"x": [1.0, 2.0, 3.0], "y": [3.0, None, 4.0]}
    assert states(read(write(tmp_path / "a.parquet", table), features=("x",), label="y")) == {"3": "1.0", "4": "0.1"}


def test_aliases_join_names_of_one_party_too(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "note,act\na,walk\nb,Walking\nc,run\n")
    found = read(path, text="note", label="act", aliases={"WALK": "walking"})
    assert states(found) == {"walking": "110", "run": "001"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a\u200bb", "not a printable character"), ("x" * 400, "is longer than"), ("--", "no letter or digit")],
)
def test_a_name_that_is_not_allowed_is_named_with_its_place(tmp_path: Path, name: str, reason: str) -> None:
    path = script(tmp_path / "a.csv", f"note,act\na,fine\nb,{name}\n")
    with pytest.raises(UserError) as caught:
        read(path, text="note", label="act")
    assert str(caught.value).startswith("a.csv, row 3, column act: label name")
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_two_columns_for_one_class_are_refused(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "x,l:Fever,l:fever\n1,1,0\n")
    with pytest.raises(UserError, match=r"a.csv: the columns 'l:Fever' and 'l:fever' stand for the same class"):
        read(path, features=("x",), label_prefix="l:")


def test_only_declared_classes_count_and_others_are_a_mistake(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "note,act\na,walking\nb,cycling\nc,\n")
    reading = Reading(text="note", label="act")
    found = read_all(open_table(path), reading)
    whole = limited(found, reading, ["Cycling", "walking", "rowing"], "declared for a")
    assert states(whole) == {"Cycling": "01.", "walking": "10.", "rowing": "00."}
    message = r"a.csv, row 3, column act: 'cycling' is not one of the classes declared for a \(walking\)"
    with pytest.raises(UserError, match=message):
        limited(found, reading, ["walking"], "declared for a")
    problems: list[Problem] = []
    rest = limited(found, reading, ["walking"], "declared for a", problems.append)
    assert states(rest) == {"walking": "1.."}
    assert [problem.row for problem in problems] == [3]


# --- input ------------------------------------------------------------------------------------------------------------


def test_all_numeric_columns_are_features_except_labels_and_codes(tmp_path: Path) -> None:
    table = {"pulse": [1.0, None], "code": ["0870", "12"], "word": ["a", "b"], "empty": [None, None], "y": ["p", "q"]}
    for ending in ("csv", "jsonl"):
        found = read(write(tmp_path / f"a.{ending}", table), features="all", label="y")
        assert found.columns == ("pulse",)
        assert isinstance(found.x, np.ndarray)
        np.testing.assert_array_equal(found.x, [[1], [np.nan]])
        assert found.empty.tolist() == [False, True]


LONG = {
    "w": ["a", "a", "a", "b", "c", "c"],
    "t": [3, 1, 2, 1, 1, 2],
    "x": [30.0, 10.0, 20.0, 5.0, None, 7.0],
    "y": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "act": ["run", None, "run", None, "sit", "sit"],
}


@pytest.mark.parametrize("size", [100, 2, 1])
def test_rows_with_one_id_are_the_steps_of_one_recording(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedalign.ingest.formats import parquet

    monkeypatch.setattr(parquet, "ROWS", size)  # recordings go on over the end of a batch
    found = read(write(tmp_path / "a.parquet", LONG), series=("x", "y"), id="w", time="t", label="act")
    assert isinstance(found.x, Ragged)
    assert found.x.lengths.tolist() == [3, 1, 2]
    np.testing.assert_array_equal(found.x.values[:3], [[10, 2], [20, 3], [30, 1]])  # in order of time
    assert states(found) == {"run": "1.0", "sit": "0.1"}
    assert found.numbers.tolist() == [1, 4, 5]


def test_lists_in_several_columns_are_channels(tmp_path: Path) -> None:
    table = {"x": [[1, 2], [3]], "y": [[5, 6], [7]], "act": ["a", "b"]}
    found = read(write(tmp_path / "a.jsonl", table), series=("x", "y"), label="act")
    assert isinstance(found.x, Ragged)
    assert found.x.values.tolist() == [[1, 5], [2, 6], [3, 7]]
    assert found.columns == ("x", "y")


def test_an_array_gives_its_channels_in_the_order_asked_for(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(2, 2, 3)
    np.savez(tmp_path / "a.npz", acc=array, acc_names=["x", "y", "z"], act=["a", "b"])
    found = read(tmp_path / "a.npz", series=("z", "x"), id="w", label="act")
    assert isinstance(found.x, Ragged)
    assert found.x.values[0].tolist() == [2, 0]
    turned = read(tmp_path / "a.npz", series="acc", layout="nct", label="act")
    assert isinstance(turned.x, Ragged)
    assert turned.x.values[0].tolist() == [0, 3]


def test_labels_are_left_out_where_there_are_none_to_read(tmp_path: Path) -> None:
    path = script(tmp_path / "new.csv", "note\na\nb\n")
    (found,) = readings.read(open_table(path), Reading(text="note", label="act", client="site"), labelled=False)
    assert found.labels is None
    assert found.x.tolist() == ["a", "b"]  # type: ignore[union-attr]


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("note,act\na,b\n", {"text": "note"}, "the label is missing; set one of dataset.label"),
    ("note,act\na,b\n", {"text": "note", "label": "act", "labels": "act"}, "the label is given twice"),
    ("note,act\na,b\n", {"label": "act"}, "the input is missing; set one of dataset."),
    (
        "note,act\na,b\n",
        {"label": "act", "text": "note", "series": "note"},
        "the input is given twice (series and text)",
    ),
    ("note,act\na,b\n", {"label": "act", "text": "notes"}, "a.csv has no column 'notes'; did you mean note?"),
    ("note,act\na,b\n", {"label": "akt", "text": "note"}, "a.csv has no column 'akt'; did you mean act?"),
    ("note,act\n", {"label": "act", "text": "note"}, "a.csv holds no rows"),
    ("x,act\na,b\n", {"label": "act", "features": "all"}, "a.csv has no column of numbers"),
    ("x,act\n1,b\n", {"label_prefix": "l:", "features": "all"}, "a.csv has no label column that begins with 'l:'"),
    ("x,act,s\n1,b,\n", {"label": "act", "features": ("x",), "client": "s"}, "row 2, column s: names no client"),
    (
        "w,x,act\na,1,p\nb,1,p\na,1,p\n",
        {"id": "w"},
        "a.csv, row 4, column w: recording 'a' has steps after another began",
    ),
    ("w,x,act\na,1,p\na,2,q\n", {"id": "w"}, "a.csv, row 3: recording 'a' is and is not 'p'"),
    ("w,x,act\n,1,p\n", {"id": "w"}, "row 2, column w: names no recording"),
    ("w,x,act,t\na,1,p,\n", {"id": "w", "time": "t"}, "row 2, column t: has no time"),
    ("x,y,act\n[1],[1 2],p\n", {"series": ("x", "y")}, "row 2, column y: '[1 2]' is not a list"),
    ('x,y,act\n[1],"[1,2]",p\n', {"series": ("x", "y")}, "row 2, column y: 2 steps where x has 1"),
]


@pytest.mark.parametrize(("text", "options", "message"), MISTAKES)
def test_every_mistake_is_one_sentence(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    if not {"text", "features", "label_prefix", "label", "labels"} & options.keys():
        options = {"series": "x", "label": "act", **options}
    path = script(tmp_path / "a.csv", text)
    with pytest.raises(UserError) as caught:
        read(path, **options)
    assert message in str(caught.value)
