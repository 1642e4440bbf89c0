"""The sentences of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedalign import registry
from fedalign.privacy.attacks import told
from fedalign.report.grouping import Entry, Setting
from fedalign.report.load import StoredRun, number
from fedalign.report.style import printable
from fedalign.report.tables import gains, parties_of


def verdict(setting: Setting) -> str:
    """Returns the result in one sentence."""
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
        return f"{second.title} is {ahead:.2f} behind, which may be chance with one seed"
    wins = sum(a > b for a, b in pairs)
    return f"{second.title} is {ahead:.2f} behind, and {best.title} is ahead in {wins} of {len(pairs)} seeds"


def classes_text(run: StoredRun, method: str = "") -> str:
    """Returns sentences about the best and the worst class, and the classes that are never predicted; among several
    methods they name the one they are about."""
    names = [printable(name) for name in run.label_names]
    known = [(v, name) for v, name in zip(run.class_f1(), names, strict=False) if v is not None]
    if not known:
        return ""
    top, low = max(known), min(known)
    begin = f"With {method}, the" if method else "The"
    text = f"{begin} best class is {top[1]} ({100 * top[0]:.1f}), the worst is {low[1]} ({100 * low[0]:.1f})."
    never = never_predicted(run)
    if never:
        text += f" Never predicted: {', '.join(never)}."
    chosen = run.result.get("thresholds")
    if isinstance(chosen, dict) and (f1 := number(chosen.get("f1"))) is not None:
        text += f" With one threshold per class, chosen on validation rows, F1 is {100 * f1:.2f}."
    parties = parties_of(run)
    if parties:
        unannotated = [name for c, name in enumerate(names) if not any(c in p.get("classes", []) for p in parties)]
        if unannotated:
            text += f" Annotated by no party: {', '.join(unannotated)}."
    return text


def never_predicted(run: StoredRun) -> list[str]:
    """Returns the names of classes that the model never predicts on the test rows."""
    counts = run.facts.get("counts") or []
    names = [printable(name) for name in run.label_names]
    return [name for name, cells in zip(names, counts, strict=False) if not cells[0] + cells[1]]


def run_summary(setting: Setting) -> list[tuple[str, str]]:
    """Returns what was trained, as pairs of a term and a value."""
    run = setting.best.shown
    facts, table = run.facts, run.table
    parties = parties_of(run)
    items: list[tuple[str, str]] = [("methods" if len(setting.entries) > 1 else "method", _titles(setting))]
    dataset = table.get("dataset")
    if isinstance(dataset, dict):
        items.append(("data set", printable(_data_name(dataset, run))))
    if parties:
        items.append(("parties", f"{len(parties):,}"))
        items.append(("training rows", f"{sum(int(p.get('rows', 0)) for p in parties):,}"))
        each = sum(len(p.get("classes", [])) for p in parties) / len(parties)
        task = {"single": "one per row", "multi": "any number per row"}.get(str(facts.get("task")), "")
        items.append(("classes", f"{len(run.label_names)} ({task}), {each:.1f} annotated per party on average"))
    if facts.get("label_source"):
        items.append(("class vectors start from", printable(str(facts["label_source"]), 200)))
    training = table.get("training")
    whose = f" of {setting.best.title}" if len(setting.entries) > 1 else ""
    if _fixed(run):
        items.append((f"plan{whose}", f"{len(run.records)} exchanges with all parties; nothing is trained in rounds"))
    elif isinstance(training, dict):
        chosen = min(int(number(table.get("clients_per_round")) or 0), len(parties) or 10**9)
        rounds, epochs = table.get("rounds", "?"), training.get("epochs", "?")
        trained = f"{epochs} local epoch{'' if epochs == 1 else 's'}"
        items.append((f"plan{whose}", f"{rounds} rounds, {chosen} parties per round, {trained}"))
    if facts.get("weights"):
        encoder = table.get("encoder")
        kind = f"{encoder.get('name')}, " if isinstance(encoder, dict) else ""
        items.append((f"model{whose}", printable(f"{kind}{facts['weights']:,} weights")))
    if run.kept.get("why"):
        items.append(("kept", printable(str(run.kept["why"]), 300)))
    if told(run.audit):
        items.append(("attacks on it", told(run.audit)))
    seeds = sorted({run.seed for run in setting.runs if run.seed is not None})
    if seeds:
        items.append(("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))))
    return items


def _data_name(dataset: dict[str, Any], run: StoredRun) -> str:
    """Returns the data set's name; for own files that of their folder, without its path."""
    name = str(dataset.get("name", "?"))
    if name == "files":
        return f"{Path(str(dataset.get('path') or run.name)).name or run.name} (own files)"
    return "rows in memory" if name.endswith("._in_memory") else name


def _fixed(run: StoredRun) -> bool:
    """Returns whether the method solves for its weights instead of training in rounds."""
    return run.config is not None and bool(
        getattr(registry.find("algorithms", run.config.algorithm.name), "fixed_features", False)
    )


def _titles(setting: Setting) -> str:
    titles = [entry.title for entry in setting.entries]
    if len(titles) > 3:
        return str(len(titles))
    return ", ".join(printable(title, 60) for title in titles)


def gain_text(run: StoredRun) -> str:
    """Returns what joining gained, in one sentence; empty if local training was not measured."""
    found = [gain for gain in gains(run) if gain.own_local is not None]
    if not found:
        return ""
    own = [g.own_federated - g.own_local for g in found if g.own_federated is not None and g.own_local is not None]
    others = [g.others_federated - (g.others_local or 0) for g in found if g.others_federated is not None]
    up = sum(value > 0 for value in own)
    text = f"On the classes they annotate, {up} of {len(own)} parties score higher with federated training"
    text += f" (mean change {sum(own) / len(own):+.1f} F1)" if own else ""
    if others:
        text += f"; on classes they never labelled, parties gain {sum(others) / len(others):.1f} F1 on average"
    return text + "."


def missing_notes(setting: Setting) -> list[str]:
    """Returns notes on what is missing in which run; equal notes of several runs are joined."""
    found: dict[str, list[str]] = {}
    for entry in setting.entries:
        for run in entry.runs:
            for sentence in run.missing:
                found.setdefault(sentence, []).append(f"{entry.title}, seed {run.seed}" if run.seed else entry.title)
    runs = len(setting.runs)
    notes = []
    for sentence, who in found.items():
        about = (
            ""
            if runs == 1
            else ("all runs: " if len(who) == runs else f"{'; '.join(who[:4])}{' …' if len(who) > 4 else ''}: ")
        )
        notes.append(printable(about + sentence))
    # a method that solves for its weights ends by itself
    lengths = {run.records[-1]["round"] for run in setting.runs if run.records and not _fixed(run)}
    if len(lengths) > 1:
        notes.append(f"the runs have different numbers of rounds ({', '.join(map(str, sorted(lengths)))})")
    return notes
