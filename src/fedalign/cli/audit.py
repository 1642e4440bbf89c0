"""fedalign audit: attack a run, and print how much the attacks find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedalign.cli._complete import runs
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

ORDER = 9


def command(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE.toml", help="The folder of a run, or a configuration.", autocompletion=runs),
    ],
    shadows: Annotated[int, typer.Option(min=4, help="Models trained on random halves of the rows.")] = 16,
) -> None:
    """Attack a run: who was in its rows, what one party's message tells, and whether its noise is what it claims."""
    from fedalign import config as configs
    from fedalign.diagnosis import audit
    from fedalign.runs import experiment
    from fedalign.runs.folder import RunFolder
    from fedalign.system.files import write_atomically

    folder = Path(run)
    stored = folder.is_dir()
    settings = configs.load(str(folder / "config.toml") if stored else run)
    if settings.engine.name != "local" and not stored:
        raise UserError("audit reads all rows on one machine; set engine.name to 'local'")
    plan = experiment.plan(settings)
    final = None
    if stored:
        existing = RunFolder.existing(folder)
        if not existing.finished:
            raise UserError(f"the run in {folder} is not finished; resume it first")
        from fedalign.inference.model import Model

        final = Model.load(folder).network
        if existing.fingerprint not in (None, experiment.fingerprint(plan)):
            raise UserError(f"the rows or the config.toml of {folder} are not those of the run; restore them")
    found = audit.audit(plan, final, shadows, lambda message: screen.print(f"  {escape(message)}"))
    if stored:
        write_atomically(folder / audit.FILE, json.dumps(found, indent=1))
    answer(found)
    print_found(found)
    if stored:
        suggest("fedalign report", folder, "--open")
    else:
        note("nothing was stored; audit the folder of a run to keep the figures")


def print_found(found: dict[str, Any]) -> None:
    table = Table(title=f"attacks on {found['algorithm']}, {found['rows']:,} rows of {found['parties']} parties")
    for column in ("attack", "figure", "chance"):
        table.add_column(column)
    for name, title in (("final_model", "final model: training against test rows"), ("membership", "likelihood ratio")):
        if name in found:
            one = found[name]
            table.add_row(f"{title}, AUC", f"{one['auc']:.3f}", "0.500")
            table.add_row(f"{title}, members found at 1 % false alarms", f"{one['hits']:.1%}", "1.0%")
    messages = found["first_message"]
    if any(one["masked"] for one in messages):
        table.add_row("labels and rows from one party's message", "masked: random numbers", "")
    for key, title, chance in (
        ("class_set_auc", "classes of a party, AUC", "0.500"),
        ("label_counts_correlation", "label counts of a party, rank correlation", "0.000"),
    ):
        values = [one[key] for one in messages if key in one]
        if values:
            table.add_row(f"{title}, mean", f"{sum(values) / len(values):.3f}", chance)
    rows = [one["reconstructed_rows"] for one in messages if "reconstructed_rows" in one]
    if rows:
        table.add_row("rows reconstructed from class sums", str(sum(rows)), "0")
    texts = [one for one in messages if one.get("words")]
    if texts:
        shown = sum(one["right"] / one["words"] for one in texts) / len(texts)
        table.add_row("words of a party's texts that its update shows, mean", f"{shown:.0%}", "")
    if "gradient" in found:
        one = found["gradient"]
        for key, title in (("one_step", "one step"), ("visit", f"a visit of {one['epochs']} epochs")):
            most = max(one[key]["exact"], one[key]["found"])
            table.add_row(f"rows found from {title}, of {one['rows']}", str(most), str(one["chance"]))
    if "canary" in found:
        one, claimed = found["canary"], f"claimed {found['canary']['claimed_epsilon']:g}"
        table.add_row("canary: epsilon is at least", f"{one['epsilon_at_least']:.3f}", claimed)
        table.add_row("the same, as the noise is Gaussian", f"{one['gaussian_epsilon_at_least']:.3f}", claimed)
    output.print(table)
