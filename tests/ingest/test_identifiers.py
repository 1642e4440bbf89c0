"""Columns that identify a row, a person or a party are no input; measurements stay, also where parties differ."""

from __future__ import annotations

import numpy as np
import pytest

from fedalign.ingest.identifiers import identifier_reason

COUNTED = [np.arange(1.0, 31), np.arange(1.0, 31)]
SITES = [np.full(30, 4.0), np.full(30, 7.0)]
PEOPLE = [np.repeat([1.0, 2, 3], 10), np.repeat([4.0, 5, 6], 10)]
MEASURED = [np.linspace(0, 1, 30), np.linspace(2, 3, 30)]


@pytest.mark.parametrize(
    ("name", "numbers", "reason"),
    [
        ("PatientID", MEASURED, "an identifier by its name"),
        ("subject_no", MEASURED, "an identifier by its name"),
        ("acid", MEASURED, None),
        ("humidity", MEASURED, None),  # different ranges are no evidence: parties have different classes
        ("count", COUNTED, "another whole number in every row"),
        ("altitude", SITES, "one number per party"),
        ("height", [np.full(30, 4.5), np.full(30, 4.5)], None),
        ("who", PEOPLE, "its values tell the parties apart"),
        ("who", [PEOPLE[0], PEOPLE[0]], None),  # each value occurs at both
        ("who", [part[:9] for part in COUNTED], None),  # too few rows to tell
        ("empty", [np.full(30, np.nan)] * 2, None),
    ],
)
def test_why_a_column_is_an_identifier(name: str, numbers: list[np.ndarray], reason: str | None) -> None:
    assert identifier_reason(name, numbers) == reason


def test_a_number_that_says_the_class_is_a_measurement_even_if_one_party_has_it() -> None:
    labels = [["walk"] * 10 + ["run"] * 10 + ["sit"] * 10, ["lie"] * 10 + ["ride"] * 10 + ["climb"] * 10]
    assert identifier_reason("steps", PEOPLE, labels) is None
    mixed = [["walk", "run"] * 15, ["lie", ""] * 15]
    assert identifier_reason("steps", PEOPLE, mixed) == "its values tell the parties apart"
