"""The tables of the page as plain values: the text of each cell and its sort key."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedalign.report.grouping import Setting
from fedalign.report.load import StoredRun, number
from fedalign.report.style import printable

LAST = 10  # rounds averaged in the table of methods
MOST_PARTIES = 40  # most columns of the matrix
MOST_ROWS = 500  # most rows of the table of parties
NONE = "\u2013"  # a dash where there is no number
NOTE_GAINS = "Mean F1 over the classes, in percent, on the same test rows. Other classes: never labelled by the party."
NOTE_MODELS = " Each party has an encoder and a model of its own; other scores count all models together."
NOTE_LOCAL = " Local: trained on the party's own rows only."
NOTE_SHARES = " Share: of all parties' rows, in percent; thresholds follow from the estimated one."
NOTE_COSTS = "A visit is one local training of one party. Seconds per round: median."


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None  # the sort key, if it is not the text
    mark: str = ""  # a CSS class


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    numbers_from: int = 1  # the first column of numbers

    @property
    def labels(self) -> list[str]:
        """The columns' names where each cell stands alone: `own classes: gain` instead of gain."""
        found, group = [], ""
        for column in self.columns:
            group = column.partition(":")[0] if ":" in column else group
            found.append(f"{group}: {column}" if column in ("federated", "gain") and group else column)
        return found


def percent_cell(value: float | None, mark: str = "", sign: bool = False) -> Cell:
    """Returns a cell with a value that is already in percent."""
    if value is None:
        return Cell(NONE, -1e9, "none")
    return Cell(f"{value:+.1f}" if sign else f"{value:.1f}", value, mark)


def text_cell(text: str) -> Cell:
    return Cell(printable(text))


def number_cell(value: float | None, unit: float = 1.0, digits: int = 0) -> Cell:
    return Cell(NONE, -1e9, "none") if value is None else Cell(f"{value / unit:,.{digits}f}", value)


def mean_of(values: Sequence[float | None], chosen: Sequence[int]) -> float | None:
    known = [v for c in chosen if c < len(values) and (v := values[c]) is not None]
    return statistics.fmean(known) if known else None


def parties_of(run: StoredRun) -> list[dict[str, Any]]:
    parties = run.facts.get("parties")
    return [p for p in parties if isinstance(p, dict)] if isinstance(parties, list) else []


def local_only_f1(run: StoredRun, party: int) -> list[float | None]:
    """Returns the F1 per class, in percent, of a party trained on its own rows only; empty if not measured."""
    kept = run.local_only.get("parties")
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
    own_local: float | None
    own_federated: float | None
    others_local: float | None
    others_federated: float | None


def scores_of_models(run: StoredRun) -> list[dict[str, Any]]:
    """Returns the scores of each party's own model; empty if there is one model for all."""
    found = run.result.get("parties")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def federated_f1(run: StoredRun, party: int) -> list[float | None]:
    """Returns the F1 per class, in percent, of the model that a party has after the run."""
    own = scores_of_models(run)
    values = own[party].get("class_f1") if party < len(own) else run.class_f1()
    return [None if (v := number(x)) is None else 100 * v for x in values] if isinstance(values, list) else []


def gains(run: StoredRun) -> list[Gain]:
    found = []
    for m, party in enumerate(parties_of(run)):
        federated = federated_f1(run, m)
        own = [c for c in party.get("classes", []) if isinstance(c, int)]
        others = [c for c in range(len(federated)) if c not in own]
        local = local_only_f1(run, m)
        found.append(
            Gain(
                str(party.get("name", f"party {m}")),
                int(party.get("rows", 0)),
                own,
                others,
                mean_of(local, own),
                mean_of(federated, own),
                mean_of(local, others),
                mean_of(federated, others),
            )
        )
    return found


def party_table(run: StoredRun) -> Table | None:
    found = gains(run)
    if not found or all(gain.own_federated is None for gain in found):
        return None
    names = run.label_names
    measured = any(gain.own_local is not None for gain in found)
    models = scores_of_models(run)
    columns = ["party", *(["encoder"] if models else []), "annotates", "rows"]
    columns += ["own classes: local", "federated", "gain"] if measured else ["own classes"]
    columns += ["other classes: local", "federated", "gain"] if measured else ["other classes"]
    rows = []
    for m, gain in enumerate(found[:MOST_ROWS]):
        own = ", ".join(names[c] for c in gain.own if c < len(names)) or "nothing"
        encoder = [text_cell(str(models[m].get("encoder", NONE)))] if m < len(models) else []
        row = [text_cell(gain.name), *encoder, text_cell(own), number_cell(gain.rows)]
        for before, after in ((gain.own_local, gain.own_federated), (gain.others_local, gain.others_federated)):
            if measured:
                row += [percent_cell(before), percent_cell(after), change_cell(before, after)]
            else:
                row.append(percent_cell(after))
        rows.append(row)
    note = NOTE_GAINS + (NOTE_LOCAL if measured else "") + (NOTE_MODELS if models else "")
    distilled = run.result.get("distilled")
    if isinstance(distilled, dict) and (f1 := number(distilled.get("f1"))) is not None:
        note += f" The distilled model has {100 * f1:.1f} over all classes."
    note += first_of(MOST_ROWS, len(found))
    return Table("gains", columns, rows, note, 3 if models else 2)


def first_of(most: int, parties: int) -> str:
    return f" Only the first {most:,} of {parties:,} parties are shown." if parties > most else ""


def change_cell(before: float | None, after: float | None) -> Cell:
    if before is None or after is None:
        return percent_cell(None)
    return percent_cell(after - before, "up" if after > before else "down", sign=True)


def methods_table(setting: Setting) -> Table | None:
    if len(setting.entries) < 2:
        return None
    best = {key: max((e.mean(key) or -1 for e in setting.entries), default=-1) for key in ("f1", "accuracy")}
    rows = []
    for entry in setting.entries:
        row = [text_cell(entry.title)]
        for key in ("f1", "accuracy"):
            middle, spread = entry.mean(key), entry.spread(key)
            if middle is None:
                row.append(percent_cell(None))
                continue
            text = f"{middle:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
            row.append(Cell(text, middle, "best" if middle == best[key] else ""))
        curves = [values[-LAST:] for run in entry.runs if (values := run.curve("f1")[1])]
        tail = statistics.fmean([statistics.fmean(values) * 100 for values in curves]) if curves else None
        rounds = min(map(len, curves), default=0)
        row.append(percent_cell(tail) if tail is None else Cell(f"{tail:.2f} ({rounds})", tail))
        row += [number_cell(entry.seeds), number_cell(max((len(run.records) for run in entry.runs), default=0))]
        rows.append(row)
    columns = ["method", "F1", "accuracy", "F1, last rounds", "seeds", "rounds"]
    about = (
        f"Last round, in percent; ± is one standard deviation over seeds. F1, last rounds: the mean of the last {LAST}"
    )
    return Table("methods", columns, rows, f"{about} or, in brackets, of as many as there were.")


def party_class_table(run: StoredRun) -> Table | None:
    """Returns one row per class and one column per party: who annotates what, or F1 with local training."""
    parties, names = parties_of(run), run.label_names
    if not parties or not names:
        return None
    federated = [None if v is None else 100 * v for v in run.class_f1()]
    local = [local_only_f1(run, m) for m in range(len(parties))]
    rows = []
    for c, name in enumerate(names):
        row = [text_cell(name), percent_cell(federated[c] if c < len(federated) else None, "federated")]
        for m, party in enumerate(parties[:MOST_PARTIES]):
            own = c in party.get("classes", [])
            labelled = party.get("labelled", [])
            if local[m]:
                value = local[m][c] if c < len(local[m]) else None
                text = f"{'● ' if own else ''}{NONE if value is None else f'{value:.0f}'}"
                row.append(Cell(text, -1.0 if value is None else value, "own" if own else "other"))
            elif own:
                count = labelled[c] if c < len(labelled) else 0
                row.append(Cell(f"● {count:,}", count, "own"))
            else:
                row.append(Cell("·", -1, "other"))
        rows.append(row)
    shown = "its F1 when trained on its own rows only, in percent" if any(local) else "its labelled rows"
    note = f"● the party annotates this class. Number: {shown}. Federated: F1 of the federated model, in percent."
    note += first_of(MOST_PARTIES, len(parties))
    columns = ["class", "federated", *(str(p.get("name", m)) for m, p in enumerate(parties[:MOST_PARTIES]))]
    return Table("matrix", [printable(column, 18) for column in columns], rows, note)


def classes_table(setting: Setting) -> Table | None:
    """Returns precision, recall and F1 per class for one method, or the F1 of several methods."""
    run, names = setting.best.shown, setting.label_names
    if not names:
        return None
    several = len(setting.entries) > 1
    owners = [sum(c in p.get("classes", []) for p in parties_of(run)) for c in range(len(names))]
    counts = run.facts.get("counts") or []
    f1 = [entry.class_f1() for entry in setting.entries]
    shares = {} if several else class_shares(run)
    rows = []
    for c, name in enumerate(names):
        cells = counts[c] if c < len(counts) else None
        row = [text_cell(name), number_cell(owners[c] if parties_of(run) else None)]
        row.append(number_cell(cells[0] + cells[2] if cells else None))
        if not several:
            row.append(percent_cell(100 * cells[0] / max(cells[0] + cells[1], 1) if cells else None))
            row.append(percent_cell(100 * cells[0] / max(cells[0] + cells[2], 1) if cells else None))
        row += [percent_cell(values[c] if c < len(values) else None, "bar") for values in f1]
        row += [percent_cell(values[c] if c < len(values) else None) for values in shares.values()]
        rows.append(row)
    columns = ["class", "annotated by", "test rows"]
    columns += [entry.title for entry in setting.entries] if several else ["precision", "recall", "F1", *shares]
    return Table(
        "classes",
        [printable(column, 40) for column in columns],
        rows,
        "Scores in percent. Click a column heading to sort." + (NOTE_SHARES if shares else ""),
    )


def class_shares(run: StoredRun) -> dict[str, list[float | None]]:
    """Returns the share of rows of each class in percent, by column: as the method estimated it without looking at
    other parties' labels, and, in a simulation, as it is. Empty for methods that estimate none."""
    chosen = run.result.get("chosen")
    found = {}
    for column, key in (("estimated share", "priors"), ("true share", "true_priors")):
        values = chosen.get(key) if isinstance(chosen, dict) else None
        if isinstance(values, list):
            found[column] = [None if (v := number(value)) is None else 100 * v for value in values]
    return found if "estimated share" in found else {}


def costs_table(setting: Setting) -> Table:
    """Returns traffic and time per method; values that older runs did not record are empty."""
    rows = []
    for entry in setting.entries:
        run = entry.shown
        visits = sum(len(r["clients"]) for r in run.records if isinstance(r.get("clients"), list))
        totals = {key: _total(run, f"bytes_{key}") for key in ("down", "up", "kept")}
        each = {key: None if value is None or not visits else value / visits for key, value in totals.items()}
        both = None if totals["down"] is None or totals["up"] is None else totals["down"] + totals["up"]
        seconds = statistics.median(run.seconds) if run.seconds else None
        row = [text_cell(entry.title), number_cell(visits)]
        row += [number_cell(each["down"], 1e6, 2), number_cell(each["up"], 1e6, 2), number_cell(both, 1e6, 0)]
        row += [number_cell(each["kept"], 1e6, 2), number_cell(seconds, 1, 1)]
        row.append(number_cell(sum(run.seconds) if run.seconds else None, 60, 1))
        rows.append(row)
    columns = ["method", "visits", "MB down per visit", "MB up per visit", "MB in total", "MB stored per party"]
    return Table("costs", [*columns, "seconds per round", "minutes in total"], rows, NOTE_COSTS)


def _total(run: StoredRun, key: str) -> float | None:
    values = [v for r in run.records if (v := number(r.get(key))) is not None]
    return sum(values) if values else None
