"""Writes the files of the three example folders, always with the same content: python examples/make.py [FOLDER]

    clinics/    notes in free text, several codes each; CSV and JSON lines
    wearables/  three-axis acceleration, one activity each; NPZ, and Parquet with one row per step
    machines/   vibration spectra as columns of numbers, one column per fault; CSV and Parquet

Each folder has three parties that annotate different classes of the same list, and a test file with all classes.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).parent

# --- clinics ----------------------------------------------------------------------------------------------------------

SYMPTOMS = {
    "asthma": [
        "wheezing at night",
        "uses the inhaler daily",
        "tight chest in cold air",
        "attacks triggered by pollen",
        "peak flow below the expected value",
    ],
    "bronchitis": [
        "cough with sputum for weeks",
        "smoker with rattling breath",
        "hoarse after a long cold",
        "mucus in the morning",
        "airways inflamed",
    ],
    "pneumonia": [
        "high fever and chills",
        "consolidation on the chest film",
        "crackles at the right base",
        "oxygen given on arrival",
        "pain on breathing in",
    ],
    "heart failure": [
        "swollen ankles",
        "short of breath when lying flat",
        "ejection fraction reduced",
        "takes a diuretic",
        "gained weight from fluid",
    ],
    "heart attack": [
        "crushing pain behind the sternum",
        "troponin raised",
        "stent placed",
        "pain in the left arm",
        "cold sweat and nausea",
    ],
    "high blood pressure": [
        "readings above 160 over 95",
        "headache in the mornings",
        "started on an ACE inhibitor",
        "salt restricted",
        "flushed face at rest",
    ],
    "kidney failure": [
        "creatinine doubled",
        "little urine in the last day",
        "dialysis discussed",
        "potassium too high",
        "itching skin",
    ],
    "kidney stones": [
        "sudden flank pain in waves",
        "blood seen in the urine",
        "stone on ultrasound",
        "told to drink three litres",
        "restless with colic",
    ],
    "diabetes": [
        "thirst and frequent urination",
        "sugar of 14 before breakfast",
        "metformin doubled",
        "numb feet",
        "insulin adjusted",
    ],
}
OFTEN_TOGETHER = [
    ("asthma", "bronchitis"),
    ("bronchitis", "pneumonia"),
    ("heart failure", "high blood pressure"),
    ("heart attack", "heart failure"),
    ("kidney failure", "diabetes"),
    ("high blood pressure", "kidney failure"),
]
REMARKS = [
    "seen with a relative",
    "sleeps badly",
    "walks without help",
    "appetite normal",
    "no allergies known",
    "review in two weeks",
    "lives alone",
    "works in an office",
    "last visit in spring",
    "blood taken today",
    "referred by the family doctor",
    "weight unchanged",
]
CLINICS = {
    "north": ["asthma", "bronchitis", "pneumonia", "high blood pressure"],
    "south": ["heart failure", "heart attack", "high blood pressure", "diabetes"],
    "east": ["kidney failure", "kidney stones", "diabetes", "asthma"],
}
NONE = "none of these"


def note(rng: np.random.Generator) -> tuple[str, list[str]]:
    """Returns a short text and its codes."""
    names = list(SYMPTOMS)
    found = [names[rng.integers(len(names))]]
    partners = [b if a == found[0] else a for a, b in OFTEN_TOGETHER if found[0] in (a, b)]
    if partners and rng.random() < 0.4:
        found.append(partners[rng.integers(len(partners))])
    if rng.random() < 0.1:
        found.append(names[rng.integers(len(names))])
    if rng.random() < 0.08:
        found = []
    found = sorted(set(found), key=names.index)
    phrases = [SYMPTOMS[name][i] for name in found for i in rng.choice(5, size=2, replace=False)]
    phrases += [REMARKS[i] for i in rng.choice(len(REMARKS), size=3, replace=False)]
    text = "; ".join(phrases[i] for i in rng.permutation(len(phrases)))
    return f"{text[0].upper()}{text[1:]}.", found


def clinics(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for name, own in CLINICS.items():
        rows = []
        for _ in range(220):
            text, found = note(rng)
            codes = [code for code in found if code in own]
            looked_at = rng.random() > 0.1  # the other notes were not coded
            rows.append((text, codes if looked_at else None))
        if name == "south":
            write_jsonl(folder / f"{name}.jsonl", [{"note": text, "codes": codes} for text, codes in rows])
        else:
            cells = [(text, "" if codes is None else ";".join(codes) or NONE) for text, codes in rows]
            write_csv(folder / f"{name}.csv", ["note", "codes"], cells)
    cells = [(text, ";".join(codes) or NONE) for text, codes in (note(rng) for _ in range(200))]
    write_csv(folder / "test.csv", ["note", "codes"], cells)


# --- wearables --------------------------------------------------------------------------------------------------------

# rhythm in steps, strength on three axes, posture (mean of the three axes), roughness
ACTIVITIES = {
    "walking": (8.0, (0.5, 0.3, 0.9), (0.0, 0.1, 1.0), 0.25),
    "walking upstairs": (9.5, (0.7, 0.3, 1.1), (0.3, 0.1, 0.9), 0.3),
    "running": (5.0, (1.0, 0.6, 2.0), (0.2, 0.1, 1.0), 0.5),
    "cycling": (6.0, (0.6, 0.2, 0.2), (0.5, 0.1, 0.8), 0.35),
    "rowing": (12.0, (1.6, 0.2, 0.4), (0.5, 0.0, 0.7), 0.3),
    "sitting": (16.0, (0.05, 0.05, 0.05), (0.4, 0.0, 0.9), 0.08),
    "standing": (16.0, (0.05, 0.05, 0.05), (0.0, 0.0, 1.0), 0.08),
    "lying": (16.0, (0.03, 0.03, 0.03), (0.0, 1.0, 0.1), 0.06),
}
AXES = ["acc_x", "acc_y", "acc_z"]
WEARERS = {
    "phone": ["walking", "running", "sitting"],
    "watch": ["walking upstairs", "rowing", "standing", "sitting"],
    "band": ["cycling", "lying", "running", "standing"],
}


def recording(rng: np.random.Generator, activity: str) -> np.ndarray:
    """Returns one recording of acceleration, (steps, 3)."""
    rhythm, strength, posture, rough = ACTIVITIES[activity]
    steps = int(rng.integers(20, 33))
    phase = 2 * np.pi * (np.arange(steps) / (rhythm * rng.uniform(0.9, 1.1)) + rng.random())
    swing = np.stack([np.sin(phase), np.cos(phase), np.sin(2 * phase)], 1) * strength * rng.uniform(0.8, 1.2)
    tilt = np.array(posture) + rng.normal(0, 0.08, 3)
    return np.round(swing + tilt + rng.normal(0, rough, (steps, 3)), 2)


def wearables(folder: Path) -> None:
    rng = np.random.default_rng(2)
    names = list(ACTIVITIES)
    for wearer, own in WEARERS.items():
        rows = [names[i] for i in rng.integers(len(names), size=200)]
        series = [recording(rng, name) for name in rows]
        labels = [name if name in own else NONE for name in rows]
        labels = [name if rng.random() > 0.1 else "" for name in labels]
        if wearer == "watch":
            write_long(folder / f"{wearer}.parquet", series, labels)
        elif wearer == "phone":  # (n, T, F), shorter ones filled with NaN
            array = np.full((len(series), 32, 3), np.nan, dtype=np.float16)
            for i, one in enumerate(series):
                array[i, : len(one)] = one
            np.savez_compressed(folder / f"{wearer}.npz", acc=array, acc_names=AXES, activity=labels)
        else:  # all steps concatenated
            write_ragged(folder / f"{wearer}.npz", series, labels)
    rows = [names[i] for i in rng.integers(len(names), size=240)]
    write_ragged(folder / "test.npz", [recording(rng, name) for name in rows], rows)


def write_ragged(path: Path, series: Sequence[np.ndarray], labels: Sequence[str]) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in series])])
    values = np.concatenate(series).astype(np.float16)
    np.savez_compressed(path, acc=values, acc_offsets=offsets, acc_names=AXES, activity=labels)


def write_long(path: Path, series: Sequence[np.ndarray], labels: Sequence[str]) -> None:
    """Writes one row per step: recording, time, three values, and the label of the recording."""
    lengths = [len(one) for one in series]
    values = np.concatenate(series).astype(np.float32)
    table = {
        "window": np.repeat(np.arange(len(series)), lengths),
        "t": np.concatenate([np.arange(n) for n in lengths]),
        **{axis: values[:, i] for i, axis in enumerate(AXES)},
        "activity": [label or None for label, n in zip(labels, lengths, strict=True) for _ in range(n)],
    }
    pl.DataFrame(table).write_parquet(path, compression="zstd", compression_level=19)


# --- machines ---------------------------------------------------------------------------------------------------------

BANDS = [f"band_{hz}" for hz in (10, 25, 50, 100, 150, 200, 400, 800, 1600, 3200)]
FEATURES = ["speed", "load", "temperature", "crest", *BANDS]
# the effect of each fault on FEATURES, starting with temperature
FAULTS = {
    "shaft imbalance": [0.3, 0.2, 0.2, 2.2, 0.4, 0.1, 0, 0, 0, 0, 0, 0],
    "shaft misalignment": [0.6, 0.3, 0.1, 0.7, 2.2, 0.8, 0.2, 0, 0, 0, 0, 0],
    "loose foot": [0, 0.8, 1.8, 0.8, 0.7, 0.5, 0.4, 0.2, 0, 0, 0, 0],
    "bearing outer race": [0.8, 1.2, 0, 0, 0, 0.3, 0.6, 2.0, 1.0, 0.2, 0, 0],
    "bearing inner race": [0.9, 1.4, 0, 0, 0, 0.1, 0.3, 0.9, 2.2, 0.8, 0.2, 0],
    "gear wear": [0.7, 0.4, 0, 0, 0, 0, 0, 0.2, 0.6, 2.0, 0.8, 0.3],
    "gear crack": [0.4, 1.8, 0, 0, 0, 0, 0, 0, 0.2, 0.9, 2.0, 1.2],
}
PLANTS = {
    "press": ["shaft imbalance", "shaft misalignment", "gear wear"],
    "mill": ["loose foot", "bearing outer race", "bearing inner race", "shaft imbalance"],
    "pump": ["gear crack", "gear wear", "bearing outer race"],
}


def machine(rng: np.random.Generator) -> tuple[list[float], list[str]]:
    """Returns the measurements of one machine and its faults."""
    names = list(FAULTS)
    found = {names[i] for i in rng.choice(len(names), size=int(rng.choice(3, p=[0.2, 0.5, 0.3])), replace=False)}
    speed, load = rng.normal(1500, 120), rng.uniform(0.3, 1.0)
    values = rng.normal(0, 0.4, len(FEATURES) - 2) + 0.4 * load
    for name in sorted(found):
        values = values + np.array(FAULTS[name]) * rng.uniform(0.7, 1.3)
    values[0] = 45 + 6 * values[0] + 8 * load
    values[1] = 3 + values[1]
    return [round(float(v), 3) for v in (speed, load, *values)], sorted(found, key=names.index)


def machines(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for plant, own in PLANTS.items():
        header = [*FEATURES, *(f"fault:{name}" for name in own)]
        rows: list[list[float | int | None]] = []
        for _ in range(260):
            values, found = machine(rng)
            gaps: list[float | int | None] = [None if rng.random() < 0.02 else value for value in values]
            # not every fault is inspected each time
            marks = [None if rng.random() < 0.15 else int(name in found) for name in own]
            rows.append([*gaps, *marks])
        if plant == "mill":
            frame = pl.DataFrame(rows, schema=dict.fromkeys(header, pl.Float32), orient="row")
            frame = frame.with_columns(pl.col(f"fault:{name}").cast(pl.Int8) for name in own)
            frame.write_parquet(folder / f"{plant}.parquet", compression="zstd", compression_level=19)
        else:
            cells = [["" if value is None else value for value in row] for row in rows]
            write_csv(folder / f"{plant}.csv", header, cells)
    tested = []
    for _ in range(240):
        values, found = machine(rng)
        tested.append([*values, *(int(name in found) for name in FAULTS)])
    write_csv(folder / "test.csv", [*FEATURES, *(f"fault:{name}" for name in FAULTS)], tested)


# --- files ------------------------------------------------------------------------------------------------------------


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_jsonl(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(folder: Path = HERE) -> None:
    for make in (clinics, wearables, machines):
        place = folder / make.__name__
        place.mkdir(parents=True, exist_ok=True)
        make(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
