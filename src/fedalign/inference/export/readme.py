"""The README of an exported model."""

from __future__ import annotations

from typing import Any

import tomli_w

from fedalign.inference.export.graph import ONNX
from fedalign.inference.model import Model


def card(model: Model, config: dict[str, Any], result: dict[str, Any], onnx: bool, attacks: str = "") -> str:
    """The README of the folder, in Markdown: data, classes, scores, limits and use. `attacks`: what an audit found."""
    dataset = config.get("dataset", {}).get("name", "unknown")
    algorithm = config.get("algorithm", {}).get("name", "unknown")
    analytic = algorithm == "analytic"
    shared = "sums over rows" if analytic else "weights"
    lines = [
        f"# {_plain(str(config.get('name', 'model')))}",
        "",
        f"A {model.task}-label classifier for {len(model.label_names)} classes, learned by federated training with "
        f"{_plain(str(algorithm))} (fedalign {result.get('fedalign', '')}). It reads "
        f"{model.inputs.reads}. The parties' rows stayed with them; "
        f"{shared} were shared, and {shared} can contain traces of rows."
        + (f" Before training, parties reported {model.inputs.reported}." if model.inputs.reported else ""),
        "",
        "## Data",
        "",
        f"Data set `{_plain(str(dataset))}`, seed {config.get('seed')}, {result.get('rounds', '?')} rounds, "
        + ("all parties in each." if analytic else f"{config.get('clients_per_round')} parties per round at most."),
        "",
        "## Classes, who annotated them, scores",
        "",
        "| class | annotated by | test F1 | threshold |",
        "|---|---|---|---|",
    ]
    scored = {row["name"]: row for row in result.get("classes", [])}
    limits = [0.5] * len(model.label_names) if model.thresholds is None else model.thresholds.tolist()
    for name, limit in zip(model.label_names, limits, strict=True):
        row = scored.get(name, {})
        f1 = row.get("f1")
        shown = "not measured" if f1 is None else f"{100 * f1:.1f}"
        owners = _parties(row["owners"]) if "owners" in row else "not recorded"
        lines.append(f"| {_plain(name)} | {owners} | {shown} | {limit if model.task == 'multi' else '-'} |")
    last = result.get("last")
    if last:
        lines += ["", f"Macro F1 {100 * last['f1']:.2f}, accuracy {100 * last['accuracy']:.2f} on test rows."]
    tuned = result.get("thresholds")
    if tuned and "f1" in tuned:
        lines += [f"With the thresholds above, chosen on the parties' validation rows: F1 {100 * tuned['f1']:.2f}."]
    elif tuned:
        lines += ["These scores are at the thresholds above, which come from estimated class priors."]
    weak = [name for name, row in scored.items() if row["f1"] is not None and row["f1"] < 0.5]
    few_owners = [name for name, row in scored.items() if row.get("owners", 2) < 2]
    lines += ["", "## Limits", ""]
    if weak:
        lines.append(f"- F1 below 50, so do not rely on: {', '.join(map(_plain, weak))}.")
    if few_owners:
        lines.append(
            f"- Annotated by at most one party, so they may reflect its habits: {', '.join(map(_plain, few_owners))}."
        )
    noise = result.get("chosen", {}).get("privacy")
    if noise:
        lines.append(f"- Noise: epsilon {noise['epsilon']:g} at delta {noise['delta']:g}; {noise['neighbours']}.")
    if attacks:
        lines.append(f"- Attacks on the run that made it: {attacks}.")
    lines += [
        "- Scores hold for rows like the parties' own; they may be lower for other rows.",
        "- Probabilities are not calibrated. In single-label, a row of none of these classes still gets one of them.",
        "",
        "## Use",
        "",
        "```python",
        "from fedalign import Model",
        'model = Model.load("this folder")',
        "model.predict(rows)",
        "```",
        "",
        "`labels.json` holds the order of classes, how raw rows become numbers, the thresholds and the file's version.",
    ]
    if onnx:
        lines += ["", f"`{ONNX}`: inputs {model.inputs.graph_rows}; outputs `logits` and `probabilities` (n, classes)."]
    lines += ["", "## Repeat", "", "```toml", *_toml(config), "```", ""]
    return "\n".join(lines)


def _parties(number: int) -> str:
    return "1 party" if number == 1 else f"{number} parties" if number else "nobody"


def _toml(config: dict[str, Any]) -> list[str]:
    return tomli_w.dumps(config).replace("```", "'''").splitlines()


def _plain(text: str) -> str:
    """The text with every character escaped that Markdown or HTML would interpret."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>()#|!&" else c for c in text)
