"""Taking rows of records."""

from __future__ import annotations

import numpy as np

from fedalign.ingest.records import Records


def test_all_rows_in_order_are_not_copied_and_others_are() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    records = Records("rows", "features", np.array([5, 6, 7]), x, ())
    assert records.take(np.arange(3)) is records
    turned = records.take(np.array([2, 1, 0]))
    assert turned.numbers.tolist() == [7, 6, 5]
    assert np.asarray(turned.x).tolist() == [[4, 5], [2, 3], [0, 1]]
    one = Records("rows", "features", np.array([5]), x[:1], ())
    assert len(one.take(np.array([False]))) == 0, "a mask is no list of row numbers"
