"""fedalign labels match: proposes which names of different parties mean one class, and asks a person."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._json import answer, asked
from fedalign.errors import UserError, printable
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.ingest.party_files import Files
    from fedalign.labels.match import Proposal


@dataclass(frozen=True)
class Found:
    """The names to reconcile, and what is known of them."""

    proposals: list[Proposal]
    rows: dict[str, int]  # positive rows of each name, over all parties
    classes: dict[str, list[str]]  # party -> its names


def match_command(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE.toml", help="The parties' files, or the TOML of a run.")],
    page: Annotated[
        bool, typer.Option("--page", help="Decide on a page in the browser, served on this machine.")
    ] = False,
    accept_above: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Ask nothing: accept all proposals with at least this score."),
    ] = None,
    model: Annotated[
        bool, typer.Option(help="Train a first model to see which classes it takes for each other.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="The aliases to write; default aliases.toml beside the files.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --page: the port; 0 chooses a free one.")] = 0,
) -> None:
    """Propose names of different parties that mean one class; you decide on each, and aliases.toml is written."""
    from fedalign.cli.check import files_of

    target = out or (path if path.is_dir() else path.parent) / "aliases.toml"
    if target.exists():
        raise UserError(f"{target} exists already and is not overwritten; give another --out or remove it")
    if target.suffix != ".toml":
        raise UserError(f"{target} must end in .toml; give another --out")
    with screen.status("comparing names"):
        found = proposals_of(files_of(path, {}).files, model)
    answer({"proposals": [vars(pair) for pair in found.proposals], "classes": found.classes, "out": None})
    if not found.proposals:
        output.print("no two names of different parties look like one class")
        suggest("fedalign check", path)
        return
    accepted = decide(found, page, accept_above, port)
    if accepted is None:
        return
    write_aliases(target, accepted, found)
    answer({"accepted": accepted, "out": target if accepted else None})
    if accepted:
        output.print(f"written: {escape(str(target))} ({len(accepted)} joins)", soft_wrap=True)
        if not path.is_dir() or (path / "fedalign.toml").is_file():
            note(f'add  aliases = "{target.name}"  under [dataset] in the TOML of the run')
    else:
        output.print("nothing was accepted, so nothing was written")
    suggest("fedalign check", path)


def decide(found: Found, page: bool, accept_above: float | None, port: int) -> list[tuple[str, str]] | None:
    """The accepted pairs: by score, on a page, or from the keyboard. None if nobody can be asked."""
    if accept_above is not None:
        return [(pair.first, pair.second) for pair in found.proposals if pair.score >= accept_above]
    if page:
        from fedalign.cli._match_server import ask_on_page

        return ask_on_page(found.proposals, found.rows, port, lambda url: screen.print(f"open {url}", soft_wrap=True))
    if asked() or not sys.stdin.isatty():
        print_proposals(found)
        note("nobody can be asked here, so nothing was written; add --accept-above 0.9, or --page")
        return None
    return ask(found)


def ask(found: Found) -> list[tuple[str, str]]:
    """Asks about each pair in the terminal: y, n, or q to stop asking."""
    accepted = []
    for number, pair in enumerate(found.proposals, start=1):
        print_pair(pair, found.rows, f"{number}/{len(found.proposals)}")
        key = typer.prompt("  the same class? y/n/q", default="n", show_default=False, err=True).strip().lower()[:1]
        if key == "q":
            break
        if key == "y":
            accepted.append((pair.first, pair.second))
    return accepted


def print_proposals(found: Found) -> None:
    for number, pair in enumerate(found.proposals, start=1):
        print_pair(pair, found.rows, str(number))


def print_pair(pair: Proposal, rows: Mapping[str, int], number: str) -> None:
    """Prints two names, who uses them, and the evidence; short lines, for narrow terminals."""
    both = " = ".join(f"[bold]{escape(printable(name))}[/]" for name in (pair.first, pair.second))
    output.print(f"{number}  {both}  {pair.score:.2f}")
    for name, parties in ((pair.first, pair.first_parties), (pair.second, pair.second_parties)):
        who = ", ".join(map(printable, parties))
        output.print(f"  {escape(printable(name))}: {escape(who)}, {rows.get(name, 0):,} rows")
    for text in pair.evidence:
        output.print(f"  {escape(text)}")


def write_aliases(target: Path, accepted: Sequence[tuple[str, str]], found: Found) -> None:
    """Writes the aliases; refused pairs are kept as comments."""
    import tomli_w

    from fedalign.labels.match import joined
    from fedalign.system.files import write_atomically

    if not accepted:
        return
    refused = [pair for pair in found.proposals if (pair.first, pair.second) not in accepted]
    lines = [
        "# Other names of classes, made by: fedalign labels match",
        tomli_w.dumps(joined(accepted, found.rows)).strip(),
    ]
    lines += [f"# two classes: {tomli_w.dumps({pair.first: pair.second}).strip()}" for pair in refused]
    write_atomically(target, "\n".join(lines) + "\n")


# --- evidence ---------------------------------------------------------------------------------------------------------


def proposals_of(files: Files, model: bool) -> Found:
    """Compares the names of all parties, with a sentence model and a first model where they are available."""
    from fedalign.ingest.checks import count_labels
    from fedalign.labels import sentence
    from fedalign.labels.match import cosines_of, propose
    from fedalign.labels.names import reconcile

    holdings = files.read(files.reading())
    names = reconcile([holding.classes for holding in holdings]).names
    counts, _ = count_labels(holdings, names)
    classes = {holding.name: list(holding.classes) for holding in holdings}
    cosines = cosines_of(names) if sentence.installed() else None
    if cosines is None:
        note("no sentence model is installed, so meanings are not compared; pip install 'fedalign[text]' adds one")
    predicted = _predicted(files) if model else None
    rows = dict(zip(names, counts[:, :, 0].sum(0).tolist(), strict=True))
    return Found(propose(classes, cosines, predicted), rows, classes)


def _predicted(files: Files) -> dict[tuple[str, str], float] | None:
    """For each pair of names the share of rows that a closed-form model gives to the other one. None if none can be
    trained."""
    from fedalign.api.federation import Federation, own_settings
    from fedalign.api.training import train

    try:
        data = files.load(Path())
        settings: dict[str, Any] = {"name": "first", "dataset": {"name": "files"}, **own_settings(data.inputs)}
        federation = Federation._of(data, {**settings, "dataset": {"name": "fedalign.datasets._in_memory"}})
        trained = train(federation, seed=1, progress=False)
    except UserError as error:
        note(f"no first model was trained ({error}), so rows are no evidence")
        return None
    from fedalign.labels.match import mutual_shares

    parts = [(trained.logits_of_prepared(p.train.x), p.train.y > 0, p.train.classes) for p in data.parties]
    return mutual_shares(data.label_names, parts)
