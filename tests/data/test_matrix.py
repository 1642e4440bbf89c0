"""Tables of numbers: every mistake is named by line and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalign.data.matrix import contents, read_numbers
from fedalign.errors import UserError

PATH = Path("folder/file.csv")


def test_numbers_are_read_in_single_precision() -> None:
    found = read_numbers(b"1,2.5\n-3e2,nan\n\n", PATH, ["a", "b"])
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array([[1, 2.5], [-300, np.nan]]), equal_nan=True)


def test_a_header_and_other_separators_are_understood() -> None:
    assert read_numbers(b"a,b\r\n1,2\r\n", PATH, ["a", "b"], header=True).tolist() == [[1, 2]]
    assert read_numbers(b"1 2\n3 NaN\n", PATH, ["a", "b"], separator=" ")[0].tolist() == [1, 2]


def test_empty_cells_are_gaps_where_allowed_but_never_the_last() -> None:
    found = read_numbers(b"1,,3\n", PATH, ["a", "b", "c"], gaps=True)
    assert np.isnan(found[0, 1])
    with pytest.raises(UserError, match="line 1, column b: '' is not a number"):
        read_numbers(b"1,,3\n", PATH, ["a", "b", "c"])
    with pytest.raises(UserError, match="line 2: 2 columns instead of 3"):
        read_numbers(b"1,2,3\n4,5\n", PATH, ["a", "b", "c"], gaps=True)  # cut off in the middle of a line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "folder/file.csv is empty; get it again"),
        (b" \n\n", "is empty"),
        (b"1,x\n", "line 1, column b: 'x' is not a number; fix it or get it again"),
        (b"1,2\n3,4 m\n", "line 2, column b: '4 m' is not a number"),
        (b"1,2\n3,inf\n", "line 2, column b: 'inf' is not a number"),
        (b"1,2\n3,1e99\n", "line 2, column b: '1e99' is not a number"),
        (b"1,2\n3,4,5\n", "line 2: 3 columns instead of 2; the file is damaged or of another data set"),
        (b"1,2\n3\n", "line 2: 1 columns instead of 2"),
        (b"1,2\n\n3,4\n", "line 2: 1 columns instead of 2"),
        (b"1;2\n", "line 1: 1 columns instead of 2"),
        (b"\x1f\x8b\x08\x00\xff", "line 1: 1 columns instead of 2"),
        (b'"1,2"\n3,4\n', "line 1, column a: '\"1' is not a number"),
    ],
)
def test_a_mistake_is_named_by_line_and_column(data: bytes, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_numbers(data, PATH, ["a", "b"])
    assert message in str(caught.value)
    assert str(caught.value).startswith("folder/file.csv")


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text("0123456789.,-e nNaA\n\r\"'", max_size=60).map(str.encode), st.booleans())
def test_any_bytes_are_a_table_or_a_sentence(data: bytes, gaps: bool) -> None:
    try:
        found = read_numbers(data, PATH, ["a", "b", "c"], gaps=gaps)
    except UserError as error:
        assert str(error).startswith("folder/file.csv")
        assert "\n" not in str(error)
    else:
        assert found.shape[1] == 3
        assert not np.isinf(found).any()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        contents(tmp_path)
