"""What the page says in sentences."""

from __future__ import annotations

from typing import Any

from fedalign.report.grouping import Entry, Setting
from fedalign.report.load import StoredRun, number
from fedalign.report.style import printable
from fedalign.report.tables import gains, parties_of


def verdict(setting: Setting) -> str:
    """The result in a sentence."""
    best = setting.best
    f1, accuracy = best.mean("f1"), best.mean("accuracy")
    if f1 is None:
        return "There are no scores yet."
    run = best.shown
    rows = run.facts.get("test_rows")
    on = f" on {rows:,} test rows" if isinstance(rows, int) and rows else ""
    after = run.records[-1]["round"] if run.records else 0
    spread = best.spread("f1")
    shown = f"F1 {f1:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
    rounds = f"{after} round{'s' if after != 1 else ''}"
    if len(setting.entries) == 1:
        seeds = f", mean of {best.seeds} seeds" if best.seeds > 1 else ""
        return f"After {rounds} {best.title} reaches {shown} and accuracy {accuracy or 0:.2f}{on}{seeds}."
    return f"After {rounds} {best.title} has the highest score, {shown}{on}; {_lead(setting, best)}."


def _lead(setting: Setting, best: Entry) -> str:
    others = [entry for entry in setting.entries if entry is not best and entry.mean("f1") is not None]
    if not others:
        return "no other method has scores yet"
    second = max(others, key=lambda entry: entry.mean("f1") or 0)
    ahead = (best.mean("f1") or 0) - (second.mean("f1") or 0)
    ours = {run.seed: run.last("f1") for run in best.runs}
    theirs = {run.seed: run.last("f1") for run in second.runs}
    pairs = [(a, b) for seed, a in ours.items() if a is not None and (b := theirs.get(seed)) is not None]
    if len(pairs) < 2:
        return f"{second.title} follows {ahead:.2f} behind, which with one seed may be chance"
    wins = sum(a > b for a, b in pairs)
    return f"{second.title} follows {ahead:.2f} behind, and {best.title} is ahead in {wins} of {len(pairs)} seeds"


def classes_said(run: StoredRun) -> str:
    """The best and the hardest class, and those that never come out."""
    names = [printable(name) for name in run.label_names]
    known = [(v, name) for v, name in zip(run.class_f1(), names, strict=False) if v is not None]
    if not known:
        return ""
    top, low = max(known), min(known)
    said = f"The best class is {top[1]} ({100 * top[0]:.1f}), the hardest {low[1]} ({100 * low[0]:.1f})."
    never = never_answered(run)
    if never:
        said += f" Never predicted: {', '.join(never)}."
    chosen = run.result.get("thresholds")
    if isinstance(chosen, dict) and (f1 := number(chosen.get("f1"))) is not None:
        said += f" With a threshold for each class, chosen on validation rows, F1 is {100 * f1:.2f}."
    parties = parties_of(run)
    if parties:
        nobody = [name for c, name in enumerate(names) if not any(c in p.get("classes", []) for p in parties)]
        if nobody:
            said += f" Annotated by nobody: {', '.join(nobody)}."
    return said


def never_answered(run: StoredRun) -> list[str]:
    """Classes the model never gives as an answer on the test rows, by name."""
    counts = run.facts.get("counts") or []
    names = [printable(name) for name in run.label_names]
    return [name for name, cells in zip(names, counts, strict=False) if not cells[0] + cells[1]]


def trained(setting: Setting) -> list[tuple[str, str]]:
    """What was trained, as pairs of a word and a value."""
    run = setting.best.shown
    facts, table = run.facts, run.table
    parties = parties_of(run)
    said: list[tuple[str, str]] = [("methods" if len(setting.entries) > 1 else "method", _titles(setting))]
    dataset = table.get("dataset")
    if isinstance(dataset, dict):
        said.append(("data set", printable(str(dataset.get("name", "?")))))
    if parties:
        said.append(("parties", f"{len(parties):,}"))
        said.append(("training rows", f"{sum(int(p.get('rows', 0)) for p in parties):,}"))
        each = sum(len(p.get("classes", [])) for p in parties) / len(parties)
        task = {"single": "one a row", "multi": "any number a row"}.get(str(facts.get("task")), "")
        said.append(("classes", f"{len(run.label_names)} ({task}), {each:.1f} annotated by a party on average"))
    if facts.get("label_source"):
        said.append(("class vectors start from", printable(str(facts["label_source"]), 200)))
    training = table.get("training")
    if isinstance(training, dict):
        chosen = min(int(number(table.get("clients_per_round")) or 0), len(parties) or 10**9)
        rounds, epochs = table.get("rounds", "?"), training.get("epochs", "?")
        said.append(
            ("plan", f"{rounds} rounds, {chosen} parties a round, {epochs} epoch{'' if epochs == 1 else 's'} each")
        )
    if facts.get("weights"):
        encoder = table.get("encoder")
        kind = f"{encoder.get('name')}, " if isinstance(encoder, dict) else ""
        said.append(("model", printable(f"{kind}{facts['weights']:,} weights")))
    seeds = sorted({run.seed for run in setting.runs if run.seed is not None})
    if seeds:
        said.append(("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))))
    return said


def _titles(setting: Setting) -> str:
    titles = [entry.title for entry in setting.entries]
    if len(titles) > 3:
        return str(len(titles))
    return ", ".join(printable(title, 60) for title in titles)


def gained(run: StoredRun) -> str:
    """What joining was worth, in a sentence; a hint where that was not measured."""
    found = [gain for gain in gains(run) if gain.own_alone is not None]
    if not found:
        return ""
    own = [g.own_together - g.own_alone for g in found if g.own_together is not None and g.own_alone is not None]
    others = [g.others_together - (g.others_alone or 0) for g in found if g.others_together is not None]
    up = sum(value > 0 for value in own)
    said = f"On the classes it annotates itself, {up} of {len(own)} parties did better together than alone"
    said += f" (mean change {sum(own) / len(own):+.1f} F1)" if own else ""
    if others:
        said += f"; on classes it never labelled, a party gained {sum(others) / len(others):.1f} F1 on average"
    return said + "."


def missing(setting: Setting) -> list[str]:
    """What is not there, run by run; the same sentence about several runs is said once."""
    found: dict[str, list[str]] = {}
    for entry in setting.entries:
        for run in entry.runs:
            for sentence in run.missing:
                found.setdefault(sentence, []).append(f"{entry.title}, seed {run.seed}" if run.seed else entry.title)
    runs = len(setting.runs)
    said = []
    for sentence, who in found.items():
        about = (
            ""
            if runs == 1
            else ("all runs: " if len(who) == runs else f"{'; '.join(who[:4])}{' …' if len(who) > 4 else ''}: ")
        )
        said.append(printable(about + sentence))
    lengths = {run.records[-1]["round"] for run in setting.runs if run.records}
    if len(lengths) > 1:
        said.append(f"the runs have different numbers of rounds ({', '.join(map(str, sorted(lengths)))})")
    return said


def bound_said(diagnosis: dict[str, Any]) -> str:
    return printable(str(diagnosis.get("verdict", "")))
