"""The page's tables as plain values: what stands in each cell, and by what it sorts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedalign.report.grouping import Entry, Setting
from fedalign.report.load import StoredRun, number
from fedalign.report.style import printable

MOST_PARTIES = 40  # columns of the matrix
NONE = "\u2013"  # a dash where there is no number


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None  # what it sorts by, where that is not the text
    mark: str = ""  # a class of the style sheet


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    numbers_from: int = 1  # the first column of numbers
    marks: list[str] = field(default_factory=list)


def percent(value: float | None, mark: str = "", sign: bool = False) -> Cell:
    """A number that is in percent already."""
    if value is None:
        return Cell(NONE, -1e9, "none")
    return Cell(f"{value:+.1f}" if sign else f"{value:.1f}", value, mark)


def words(text: str) -> Cell:
    return Cell(printable(text))


def amount(value: float | None, unit: float = 1.0, digits: int = 0) -> Cell:
    return Cell(NONE, -1e9, "none") if value is None else Cell(f"{value / unit:,.{digits}f}", value)


def mean_of(values: Sequence[float | None], chosen: Sequence[int]) -> float | None:
    known = [v for c in chosen if c < len(values) and (v := values[c]) is not None]
    return statistics.fmean(known) if known else None


def parties_of(run: StoredRun) -> list[dict[str, Any]]:
    parties = run.facts.get("parties")
    return [p for p in parties if isinstance(p, dict)] if isinstance(parties, list) else []


def alone_f1(run: StoredRun, party: int) -> list[float | None]:
    """Percent by class of a party trained by itself; empty if that was not measured."""
    kept = run.alone.get("parties")
    one = kept.get(str(party)) if isinstance(kept, dict) else None
    values = one.get("class_f1") if isinstance(one, dict) else None
    return [None if (v := number(x)) is None else 100 * v for x in values] if isinstance(values, list) else []


@dataclass(frozen=True)
class Gain:
    """A party's mean F1 in percent: on the classes it annotates and on those it never labelled."""

    name: str
    rows: int
    own: list[int]
    others: list[int]
    own_alone: float | None
    own_together: float | None
    others_alone: float | None
    others_together: float | None


def gains(run: StoredRun) -> list[Gain]:
    together = [None if v is None else 100 * v for v in run.class_f1()]
    found = []
    for m, party in enumerate(parties_of(run)):
        own = [c for c in party.get("classes", []) if isinstance(c, int)]
        others = [c for c in range(len(together)) if c not in own]
        alone = alone_f1(run, m)
        found.append(
            Gain(
                str(party.get("name", f"party {m}")),
                int(party.get("rows", 0)),
                own,
                others,
                mean_of(alone, own),
                mean_of(together, own),
                mean_of(alone, others),
                mean_of(together, others),
            )
        )
    return found


def gains_table(run: StoredRun) -> Table | None:
    found = gains(run)
    if not found or all(gain.own_together is None for gain in found):
        return None
    names = run.label_names
    alone = any(gain.own_alone is not None for gain in found)
    columns = ["party", "annotates", "rows"]
    columns += ["own: alone", "together", "gain"] if alone else ["own, together"]
    columns += ["never labelled: alone", "together", "gain"] if alone else ["never labelled, together"]
    rows = []
    for gain in found:
        own = ", ".join(names[c] for c in gain.own if c < len(names)) or "nothing"
        row = [words(gain.name), words(own), amount(gain.rows)]
        for before, after in ((gain.own_alone, gain.own_together), (gain.others_alone, gain.others_together)):
            if alone:
                row += [percent(before), percent(after), gained(before, after)]
            else:
                row.append(percent(after))
        rows.append(row)
    return Table("gains", columns, rows, "F1 in percent, mean over the classes, on the same test rows.", 2)


def gained(before: float | None, after: float | None) -> Cell:
    if before is None or after is None:
        return percent(None)
    return percent(after - before, "up" if after > before else "down", sign=True)


def methods_table(setting: Setting) -> Table | None:
    if len(setting.entries) < 2:
        return None
    best = {key: max((e.mean(key) or -1 for e in setting.entries), default=-1) for key in ("f1", "accuracy")}
    rows = []
    for entry in setting.entries:
        row = [words(entry.title)]
        for key in ("f1", "accuracy"):
            middle, spread = entry.mean(key), entry.spread(key)
            if middle is None:
                row.append(percent(None))
                continue
            text = f"{middle:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
            row.append(Cell(text, middle, "best" if middle == best[key] else ""))
        tail = [statistics.fmean(values[-10:]) * 100 for run in entry.runs if (values := run.curve("f1")[1])]
        row.append(percent(statistics.fmean(tail) if tail else None))
        row += [amount(entry.seeds), amount(max((len(run.records) for run in entry.runs), default=0))]
        rows.append(row)
    columns = ["method", "F1", "accuracy", "F1, last 10 rounds", "seeds", "rounds"]
    return Table("methods", columns, rows, "Last round, percent; ± is one standard deviation over seeds.")


def matrix_table(run: StoredRun) -> Table | None:
    """Classes down, parties across: who annotates what, and what a party alone makes of each class."""
    parties, names = parties_of(run), run.label_names
    if not parties or not names:
        return None
    together = [None if v is None else 100 * v for v in run.class_f1()]
    alone = [alone_f1(run, m) for m in range(len(parties))]
    rows = []
    for c, name in enumerate(names):
        row = [words(name), percent(together[c] if c < len(together) else None, "together")]
        for m, party in enumerate(parties[:MOST_PARTIES]):
            own = c in party.get("classes", [])
            labelled = party.get("labelled", [])
            if alone[m]:
                value = alone[m][c] if c < len(alone[m]) else None
                text = f"{'● ' if own else ''}{NONE if value is None else f'{value:.0f}'}"
                row.append(Cell(text, -1.0 if value is None else value, "own" if own else "other"))
            elif own:
                count = labelled[c] if c < len(labelled) else 0
                row.append(Cell(f"● {count:,}", count, "own"))
            else:
                row.append(Cell("·", -1, "other"))
        rows.append(row)
    shown = "their F1 alone, percent" if any(alone) else "rows labelled"
    note = f"● annotated by the party. The number is {shown}; together: F1 of the joint model, percent."
    if len(parties) > MOST_PARTIES:
        note += f" The first {MOST_PARTIES} of {len(parties)} parties are shown."
    columns = ["class", "together", *(str(p.get("name", m)) for m, p in enumerate(parties[:MOST_PARTIES]))]
    return Table("matrix", [printable(column, 18) for column in columns], rows, note)


def classes_table(setting: Setting) -> Table | None:
    """One method: precision, recall and F1. Several: their F1 side by side."""
    run, names = setting.best.shown, setting.label_names
    if not names:
        return None
    several = len(setting.entries) > 1
    owners = [sum(c in p.get("classes", []) for p in parties_of(run)) for c in range(len(names))]
    counts = run.facts.get("counts") or []
    f1 = [entry.class_f1() for entry in setting.entries]
    rows = []
    for c, name in enumerate(names):
        cells = counts[c] if c < len(counts) else None
        row = [words(name), amount(owners[c] if parties_of(run) else None)]
        row.append(amount(cells[0] + cells[2] if cells else None))
        if not several:
            row.append(percent(100 * cells[0] / max(cells[0] + cells[1], 1) if cells else None))
            row.append(percent(100 * cells[0] / max(cells[0] + cells[2], 1) if cells else None))
        row += [percent(values[c] if c < len(values) else None, "bar") for values in f1]
        rows.append(row)
    columns = ["class", "annotated by", "test rows"]
    columns += [entry.title for entry in setting.entries] if several else ["precision", "recall", "F1"]
    return Table("classes", [printable(column, 40) for column in columns], rows, "Percent; click a heading to sort.")


def costs_table(setting: Setting) -> Table:
    """Traffic and time; what older runs did not record stays empty."""
    rows = []
    for entry in setting.entries:
        run = entry.shown
        visits = sum(len(r["clients"]) for r in run.records if isinstance(r.get("clients"), list))
        totals = {key: _total(run, f"bytes_{key}") for key in ("down", "up", "kept")}
        each = {key: None if value is None or not visits else value / visits for key, value in totals.items()}
        both = None if totals["down"] is None or totals["up"] is None else totals["down"] + totals["up"]
        seconds = statistics.median(run.seconds) if run.seconds else None
        row = [words(entry.title), amount(visits)]
        row += [amount(each["down"], 1e6, 2), amount(each["up"], 1e6, 2), amount(both, 1e6, 0)]
        row += [amount(each["kept"], 1e6, 2), amount(seconds, 1, 1)]
        row.append(amount(sum(run.seconds) if run.seconds else None, 60, 1))
        rows.append(row)
    columns = ["method", "visits", "MB down, a visit", "MB up, a visit", "MB in all", "MB kept by a party"]
    return Table("costs", [*columns, "seconds a round", "minutes in all"], rows, "Of the run shown; seconds: median.")


def _total(run: StoredRun, key: str) -> float | None:
    values = [v for r in run.records if (v := number(r.get(key))) is not None]
    return sum(values) if values else None


def entry_of(setting: Setting, run: StoredRun) -> Entry:
    return next(entry for entry in setting.entries if run in entry.runs)
