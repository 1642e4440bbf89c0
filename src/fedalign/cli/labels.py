"""fedalign labels: join names of parties, count label names in a corpus, make vectors from the counts, show them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.cli._labels_hash import hash_command, shared_command
from fedalign.cli._labels_match import match_command
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from rich.progress import Progress


ORDER = 6
group = typer.Typer(
    invoke_without_command=True,
    help="Join names of parties, count names in a corpus, make vectors from the counts, show them.",
)


group.command(name="match")(match_command)
group.command(name="hash")(hash_command)
group.command(name="shared")(shared_command)


class Segment(StrEnum):
    line = "line"
    sentence = "sentence"
    paragraph = "paragraph"
    document = "document"


class Reading(StrEnum):
    paper = "paper"
    released = "released"


@group.callback()
def table(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from fedalign.labels import counts

    shown = Table(title="label counts shipped with the package", title_justify="left")
    for column in ("name", "labels", "corpus", "text", "segments", "too rare names"):
        shown.add_column(column, overflow="fold")
    for name in counts.shipped():
        one = counts.read(name)
        size = sum(corpus.bytes for corpus in one.corpora)
        about = "; ".join(corpus.about for corpus in one.corpora)
        little = escape(", ".join(one.little()) or "-")
        pieces = f"{one.segments:,} {one.rule.segment}s"
        shown.add_row(name, str(len(one.rule.names)), escape(about), f"{size / 1e6:.1f} MB", pieces, little)
    output.print(shown)
    answer({"counts": {name: list(counts.read(name).rule.names) for name in counts.shipped()}})
    suggest("fedalign labels vectors --counts extrasensory --out vectors.safetensors")


@group.command(name="count")
def count_command(
    names: Annotated[
        Path, typer.Option(help="A text file with one label name per line; after a tab, words to search for instead.")
    ],
    corpus: Annotated[
        list[Path], typer.Option(help="A file, a folder or an archive of text; may be repeated. - is standard input.")
    ],
    out: Annotated[Path, typer.Option(help="The file for the counts (JSON).")],
    segment: Annotated[
        Segment, typer.Option(help="The unit of text in which names occur together.")
    ] = Segment.sentence,
    window: Annotated[str, typer.Option(help="Length in words of the window that covers a name of n words.")] = "2n+2",
    stem: Annotated[bool, typer.Option("--stem", help="Match all forms of a word: walk, walked, walking.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Search for the names themselves, not for the words after a tab.")
    ] = False,
    field: Annotated[
        str, typer.Option(help="The field of JSON or Parquet with the text; default: text and similar names.")
    ] = "",
    encoding: Annotated[str, typer.Option(help="The encoding of plain text.")] = "utf-8",
    about: Annotated[str, typer.Option(help="A description of the corpus, stored with the counts.")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first file that cannot be read.")] = False,
) -> None:
    """Count how often label names occur, and occur together, in a corpus."""
    import time

    from fedalign.cli._count_report import print_counts
    from fedalign.labels import counts
    from fedalign.labels import names as label_names
    from fedalign.labels.corpus import cooccurrence
    from fedalign.labels.corpus.proposals import propose

    wanted, descriptions = label_names.read_names(names)
    descriptions = {} if plain else descriptions
    rule = cooccurrence.rule(wanted, segment.value, descriptions, window, stem)
    _may_write(out)
    began = time.perf_counter()
    progress = _bytes_progress()
    task = progress.add_task("counting", total=None)
    try:
        with progress:
            outcome = cooccurrence.count(
                rule,
                corpus,
                encoding=encoding,
                field=field,
                workers=workers,
                strict=strict,
                about=about or ", ".join(path.name for path in corpus),
                command=_command(names, corpus, segment, window, stem, plain, field, encoding),
                on_progress=lambda read, total: progress.update(task, completed=read, total=total or None),
            )
    except KeyboardInterrupt:
        screen.print("stopped; nothing was written")
        sys.exit(130)
    counts.write(outcome.counts, out)
    seconds = time.perf_counter() - began
    found = dict(zip(outcome.counts.rule.names, outcome.counts.counts, strict=True))
    answer({"out": out, "segments": found, "unreadable": [name for name, _ in outcome.unreadable]})
    print_counts(outcome, seconds, propose(outcome.counts, corpus, encoding, field))
    suggest("fedalign labels vectors --counts", out, "--out", out.with_suffix(".safetensors"))


def _may_write(out: Path) -> None:
    """Refuses a path that cannot be written before the work starts."""
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for {out.name}; create it first")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file's name")


def _bytes_progress() -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
    )


def _command(
    names: Path, corpus: list[Path], segment: Segment, window: str, stem: bool, plain: bool, field: str, encoding: str
) -> str:
    """Returns the command that makes these counts. Only the last part of paths is kept, because counts are shared."""
    import shlex

    parts = ["fedalign", "labels", "count", "--names", names.name]
    for path in corpus:
        parts += ["--corpus", path.name]
    parts += ["--segment", segment.value]
    for flag, value, usual in (("--window", window, "2n+2"), ("--field", field, ""), ("--encoding", encoding, "utf-8")):
        parts += [flag, value] if value != usual else []
    return shlex.join([*parts, *(["--stem"] if stem else []), *(["--plain"] if plain else [])])


@group.command(name="merge")
def merge_command(
    parts: Annotated[list[Path], typer.Argument(metavar="COUNTS...", help="Files of `labels count`.")],
    out: Annotated[Path, typer.Option(help="The file for the sum.")],
) -> None:
    """Add counts of parts of a corpus, made on one machine or many."""
    from fedalign.labels import counts

    _may_write(out)
    if len({path.resolve() for path in parts}) < len(parts):
        raise UserError("a file of counts is given twice; give each once")
    total = counts.merge([counts.read(path) for path in parts])
    counts.write(total, out)
    answer({"out": out, "segments": dict(zip(total.rule.names, total.counts, strict=True))})
    size = sum(corpus.bytes for corpus in total.corpora)
    output.print(f"{len(parts)} files: {size / 1e6:,.1f} MB of text, {total.segments:,} {total.rule.segment}s")
    suggest("fedalign labels vectors --counts", out, "--out", out.with_suffix(".safetensors"))


@group.command(name="vectors")
def vectors_command(
    out: Annotated[Path, typer.Option(help="The file for the vectors (safetensors).")],
    counts: Annotated[str, typer.Option(help="A file of `labels count`, or the name of shipped counts.")] = "",
    sentence: Annotated[
        bool, typer.Option("--sentence", help="Use a pretrained sentence model instead; needs --names.")
    ] = False,
    names: Annotated[
        Path | None, typer.Option(help="Only these names, one per line; default: all that were counted.")
    ] = None,
    model: Annotated[str, typer.Option(help="Folder of a sentence model; default: the installed one.")] = "",
    phrase: Annotated[str, typer.Option(help="The text for the sentence model, in which {} is the name.")] = "{}",
    dim: Annotated[int, typer.Option(min=2, help="Width of the vectors.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 4321,
    reading: Annotated[
        Reading, typer.Option(help="Edges as in the paper, or as in its published code.")
    ] = Reading.paper,
    smoothing: Annotated[float, typer.Option(min=0, help="Added to counts against chance; 0: none.")] = 0.5,
) -> None:
    """Make label vectors from counts: PMI, a graph, random walks, skip-gram."""
    from fedalign.config import from_table
    from fedalign.labels import names as label_names
    from fedalign.labels import vectors

    _may_write(out)
    if bool(counts) == sentence:
        raise UserError("give either --counts COUNTS or --sentence")
    if sentence and names is None:
        raise UserError("--sentence needs --names, a text file with one label name per line")
    options: dict[str, Any] = {"source": "sentence", "file": model, "phrase": phrase, "descriptions": str(names)}
    if counts:
        options = {"source": "counts", "file": counts, "reading": reading.value, "smoothing": smoothing}
    how = from_table({"labels": options}, where="labels vectors").labels
    wanted = label_names.read_names(names)[0] if names else vectors.counted_names(counts)
    rows = vectors.make(wanted, dim, how, seed)
    facts = vectors.notes(wanted, how)
    vectors.write_vectors(out, wanted, rows, {**facts, "seed": seed})
    isolated_names = facts.get("isolated", [])
    answer({"out": out, "names": wanted, "dim": dim, "isolated": isolated_names})
    if isolated_names:
        note(f"no edge was found for {', '.join(isolated_names)}; they get random vectors of the mean length")
    output.print(f"{len(wanted)} vectors of {dim} numbers in {escape(str(out))}", soft_wrap=True)
    suggest("fedalign labels show", out)


@group.command(name="show")
def show_command(
    source: Annotated[Path, typer.Argument(metavar="VECTORS", help="A file of `labels vectors`.")],
    nearest: Annotated[int, typer.Option(min=1, help="Number of nearest names per label.")] = 3,
    png: Annotated[Path | None, typer.Option(help="The file for the heatmap; default: next to the vectors.")] = None,
) -> None:
    """Show the nearest names of each label, names without edges, and a heatmap of similarities."""
    from rich.table import Table

    from fedalign.labels import vectors
    from fedalign.report import heatmap

    picture = png or source.with_suffix(".png")
    _may_write(picture)
    names, rows = vectors.stored(source)
    if len(names) < 2:
        raise UserError(f"{source} holds {len(names)} vector; comparing needs at least two")
    facts = vectors.facts(source)
    similar = vectors.cosines(rows)
    shown = Table(title="nearest names, by cosine", title_justify="left")
    for column in ("name", "segments", "nearest"):
        shown.add_column(column, overflow="fold")
    counted = dict(zip(names, facts.get("counts", []), strict=False))
    for i, name in enumerate(names):
        order = [j for j in similar[i].argsort(descending=True).tolist() if j != i][:nearest]
        close = ", ".join(f"{escape(names[j])} {float(similar[i, j]):.2f}" for j in order)
        shown.add_row(escape(name), f"{counted[name]:,}" if name in counted else "-", close)
    output.print(shown)
    if facts.get("isolated"):
        note(f"without an edge, so their vectors are random: {', '.join(facts['isolated'])}")
    if facts.get("says_little"):
        note(f"these names occur too rarely in the corpus: {', '.join(facts['says_little'])}")
    heatmap.draw(names, similar.numpy(), picture, "cosine of label vectors")
    answer({"names": names, "cosines": similar, "heatmap": picture})
    output.print(f"heatmap: {escape(str(picture))}", soft_wrap=True)
    suggest("fedalign run PRESET --set labels.source=vectors --set", f"labels.file={source}")
