"""Small data sets in the layouts of their owners, with the hard cases that the real files have."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from fedalign.datasets import dsads, extrasensory, fashion, ohsumed, pamap2

# --- ExtraSensory: a gzipped CSV a user ---------------------------------------------------------------------------

FEATURES = [f"raw_acc:magnitude_stats:feature{i}" for i in range(extrasensory.FEATURES)]
LABELS = list(extrasensory.CATEGORY)
ES_COLUMNS = ["timestamp", *FEATURES, *LABELS, "label_source"]


def extrasensory_lines(labels: np.ndarray, rng: np.random.Generator) -> list[str]:
    """A user's file: labels (n, 51) of 0, 1 and NaN; features follow the labels, some are missing."""
    values = rng.normal(size=(len(labels), len(FEATURES))) + np.nan_to_num(labels) @ PATTERN
    values[rng.random(values.shape) < 0.1] = np.nan
    lines = [",".join(ES_COLUMNS)]
    for minute, (row, label) in enumerate(zip(values, labels, strict=True)):
        cells = [str(1_444_079_161 + 60 * minute), *(f"{value:.6f}" for value in row)]
        lines.append(",".join([*cells, *("nan" if value != value else f"{value:.0f}" for value in label), "2"]))
    return lines


PATTERN = np.random.default_rng(51).normal(size=(len(LABELS), len(FEATURES)))


def write_gzip(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", compresslevel=1))


def user_file(folder: Path, number: int) -> Path:
    return folder / "extrasensory" / f"{number:08X}-271D-49D8-B599-1D4A09240601.features_labels.csv.gz"


def write_extrasensory(folder: Path, users: int = 3, recordings: int = 60, seed: int = 0) -> None:
    """Every user has recordings of 1 to 25 minutes with one to three labels each, and minutes nobody labelled."""
    for user in range(users):
        rng = np.random.default_rng([seed, user])
        parts = []
        for number in range(recordings):
            state = np.zeros(len(LABELS))
            state[(number + user * 7 + rng.integers(0, 17, size=3)) % len(LABELS)] = 1
            state[rng.integers(0, len(LABELS), size=10)] = np.nan
            if not (state == 1).any():
                state[number % len(LABELS)] = 1
            length = 25 if number % 20 == 0 else int(rng.integers(1, 4))
            parts += [state] * length
            if number % 10 == 0:
                parts += [np.full(len(LABELS), np.nan)] * 2
        write_gzip(user_file(folder, user), extrasensory_lines(np.array(parts), rng))


# --- PAMAP2: 54 columns with spaces between ------------------------------------------------------------------------


def pamap2_lines(activities: list[tuple[int, int]], seed: int = 0) -> list[str]:
    """(activity, steps) one after another. The heart rate comes every eleventh step; a sensor falls silent at times."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    step = 0
    for activity, steps in activities:
        values = rng.normal(size=(steps, len(pamap2.CHANNELS) - 1)) + (activity + 1)
        values[rng.random(values.shape) < 0.01] = np.nan
        values[steps // 3 : steps // 3 + 20, 17:34] = np.nan  # the chest unit loses its link for a while
        for row in values:
            heart = f"{90 + activity}" if step % 11 == 0 else "NaN"
            cells = " ".join("NaN" if value != value else f"{value:.5g}" for value in row)
            lines.append(f"{8.38 + step / 100:.2f} {activity} {heart} {cells}")
            step += 1
    return lines


def subject_file(folder: Path, number: int) -> Path:
    return folder / "pamap2" / "Protocol" / f"subject{101 + number}.dat"


def write_pamap2(folder: Path, people: int = 3) -> None:
    """Each person does six activities; the last only rope jumping, as subject 109 of the real data."""
    numbers = list(pamap2.ACTIVITIES)
    for person in range(people):
        chosen = [numbers[(person * 4 + i) % len(numbers)] for i in range(6)]
        parts = [(0, 130)]  # what a window on the grid would cross
        for number in [24] if person == people - 1 else chosen:
            parts += [(number, 760), (0, 55)]
        parts += [(9, 150)]  # watching television: known, but not of the protocol
        path = subject_file(folder, person)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(pamap2_lines(parts, seed=person)) + "\n")


# --- MIMIC-III: CAML's three CSV files and files of titles -----------------------------------------------------------

CODES = (
    "401.9",
    "38.93",
    "428.0",
    "96.04",
    "584.9",
    "250.00",
    "038.9",
    "V58.61",
    "518.81",
    "285.9",
    "530.81",
    "995.92",
)


def mimic3_rows(count: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        chosen = sorted(set(rng.choice(len(CODES), size=int(rng.integers(1, 5)))))
        words = ["admission", "date", "discharge", "date", "birth"]
        for c in chosen:
            words += [f"word{c}x{i}" for i in rng.integers(0, 5, size=12)]
        words += [f"common{i}" for i in rng.integers(0, 20, size=10)]
        text = " ".join(words)
        if number % 5 == 0:
            text = text.replace("common1 ", 'common1\n"quoted", with a comma ', 1)  # a line break inside the quotes
        codes = ";".join(CODES[c] for c in chosen)
        rows.append([str(1000 + number), str(170_000 + number), text, codes, str(len(words))])
    return rows


def write_notes(path: Path, rows: list[list[str]], header: tuple[str, ...] = ()) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header or ("SUBJECT_ID", "HADM_ID", "TEXT", "LABELS", "length"))
        writer.writerows(rows)


def write_mimic3(folder: Path, counts: tuple[int, int, int] = (160, 40, 40), titles: bool = True) -> None:
    for number, (name, count) in enumerate(zip(("train_50", "dev_50", "test_50"), counts, strict=True)):
        write_notes(folder / "mimic3" / f"{name}.csv", mimic3_rows(count, seed=number))
    if titles:
        (folder / "mimic3" / "ICD9_descriptions").write_text(
            "@\tICD9 Hierarchy Root\n401.9\tUnspecified essential hypertension\n38.93\tVenous catheterization\n"
        )
        (folder / "mimic3" / "D_ICD_DIAGNOSES.csv").write_text(
            '"ROW_ID","ICD9_CODE","SHORT_TITLE","LONG_TITLE"\n'
            '1,"4280","CHF NOS","Congestive heart failure, unspecified"\n'
            '2,"4019","Hypertension NOS","another title"\n3,"V5861","Long-term use anticoagul","Long-term use"\n'
        )
        (folder / "mimic3" / "D_ICD_PROCEDURES.csv").write_text(
            '"ROW_ID","ICD9_CODE","SHORT_TITLE","LONG_TITLE"\n1,"9604","Insert endotracheal tube","Insertion of tube"\n'
        )


# --- DSADS: 125 lines of 45 numbers, and OHSUMED: a file an abstract, once under each class -------------------------


def segment(activity: int, person: int, number: int) -> str:
    rng = np.random.default_rng([activity, person, number])
    values = rng.normal(size=(dsads.STEPS, len(dsads.CHANNELS))) + np.sin(np.arange(45) * (activity + 1))
    return "\n".join(",".join(f"{value:.5g}" for value in row) for row in values) + "\n"


def segment_file(folder: Path, activity: int, person: int, number: int) -> Path:
    return folder / "dsads" / "data" / f"a{activity + 1:02}" / f"p{person + 1}" / f"s{number + 1:02}.txt"


def write_dsads(folder: Path, activities: int = 7, people: int = 2, segments: int = 5) -> None:
    for activity in range(activities):
        for person in range(people):
            for number in range(segments):
                path = segment_file(folder, activity, person, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(segment(activity, person, number))


def write_ohsumed(folder: Path, count: int = 120) -> None:
    for part, many in (("training", count), ("test", count // 2)):
        for number in range(many):
            rng = np.random.default_rng([len(part), number])
            chosen = {number % len(ohsumed.CLASSES), int(rng.integers(len(ohsumed.CLASSES)))}
            words = [f"organ{chr(97 + c)}{'abcde'[i]}" for c in sorted(chosen) for i in rng.integers(0, 5, size=8)]
            for c in chosen:
                path = folder / "ohsumed" / "ohsumed-first-20000-docs" / part / f"C{c + 1:02}" / f"{number:07}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"Title {number}.\n The patients had {' '.join(words)}.\n")


def write_fashion(folder: Path, count: int = 20) -> None:
    """Training images, and ten for testing; the brightness of an image is ten times its class."""
    here = folder / fashion.FOLDER
    here.mkdir()
    for word, many in (("train", count), ("t10k", 10)):
        labels = (np.arange(many) % 10).astype(np.uint8)
        write_idx(here / f"{word}-images-idx3-ubyte.gz", np.tile(labels[:, None, None] * 10, (1, 28, 28)))
        write_idx(here / f"{word}-labels-idx1-ubyte.gz", labels)


def write_idx(path: Path, array: np.ndarray) -> None:
    """A gzipped file of bytes: two zeros, the type 8, the number of dimensions, each of them, the entries."""
    sizes = b"".join(side.to_bytes(4, "big") for side in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes(), 1))


WRITERS = {
    "extrasensory": write_extrasensory,
    "pamap2": write_pamap2,
    "mimic3": write_mimic3,
    "dsads": write_dsads,
    "ohsumed": write_ohsumed,
    "fashion": lambda folder: write_fashion(folder, 300),
}
