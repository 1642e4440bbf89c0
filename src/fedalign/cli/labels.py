"""fedalign labels: from label names and a corpus to counts, from counts to vectors, and what is in them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from rich.progress import Progress

    from fedalign.labels.corpus.cooccurrence import Outcome

ORDER = 6
SHOWN = 10  # unreadable files that are named on the screen
group = typer.Typer(
    invoke_without_command=True, help="Count label names in a corpus, make vectors of them, look at them."
)


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

    shown = Table(title="label counts that come with the package", title_justify="left")
    for column in ("name", "labels", "corpus", "text", "segments", "says too little about"):
        shown.add_column(column, overflow="fold")
    for name in counts.shipped():
        one = counts.read(name)
        size = sum(corpus.bytes for corpus in one.corpora)
        about = "; ".join(corpus.about for corpus in one.corpora)
        little = escape(", ".join(one.little()) or "-")
        pieces = f"{one.segments:,} {one.rule.segment}s"
        shown.add_row(name, str(len(one.rule.names)), escape(about), f"{size / 1e6:.1f} MB", pieces, little)
    output.print(shown)
    suggest("fedalign labels vectors --counts extrasensory --out vectors.safetensors")


@group.command(name="count")
def count_command(
    names: Annotated[
        Path, typer.Option(help="A text file, a label name a line; after a tab, words to look for in its place.")
    ],
    corpus: Annotated[
        list[Path], typer.Option(help="A file, a folder or an archive of text; may be repeated. - is standard input.")
    ],
    out: Annotated[Path, typer.Option(help="Where the counts go (JSON).")],
    segment: Annotated[Segment, typer.Option(help="What names occur together in.")] = Segment.sentence,
    window: Annotated[str, typer.Option(help="Words of text that may cover a name of n words.")] = "2n+2",
    stem: Annotated[bool, typer.Option("--stem", help="Match word forms alike: walk, walked, walking.")] = False,
    field: Annotated[str, typer.Option(help="Where JSON and Parquet hold the text; default: text and the like.")] = "",
    encoding: Annotated[str, typer.Option(help="Of plain text.")] = "utf-8",
    about: Annotated[str, typer.Option(help="What the corpus is, for those who get the counts.")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first file that cannot be read.")] = False,
) -> None:
    """Count how often label names occur, and occur together, in a corpus."""
    import time

    from fedalign.labels import counts
    from fedalign.labels import names as label_names
    from fedalign.labels.corpus import cooccurrence

    wanted, descriptions = label_names.read_names(names)
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
                command=_command(names, corpus, segment, window, stem, field, encoding),
                on_progress=lambda read, total: progress.update(task, completed=read, total=total or None),
            )
    except KeyboardInterrupt:
        screen.print("stopped; nothing was written")
        sys.exit(130)
    counts.write(outcome.counts, out)
    _report(outcome, time.perf_counter() - began)
    suggest("fedalign labels vectors --counts", out, "--out", out.with_suffix(".safetensors"))


def _may_write(out: Path) -> None:
    """Better now than after an hour."""
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for {out.name}; make it first")
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
    names: Path, corpus: list[Path], segment: Segment, window: str, stem: bool, field: str, encoding: str
) -> str:
    """How to make these counts again. Of paths only the last part: counts are passed on, folders' names are not."""
    import shlex

    parts = ["fedalign", "labels", "count", "--names", names.name]
    for path in corpus:
        parts += ["--corpus", path.name]
    parts += ["--segment", segment.value]
    for flag, value, usual in (("--window", window, "2n+2"), ("--field", field, ""), ("--encoding", encoding, "utf-8")):
        parts += [flag, value] if value != usual else []
    return shlex.join([*parts, *(["--stem"] if stem else [])])


def _report(outcome: Outcome, seconds: float) -> None:
    from rich.table import Table

    counted = outcome.counts
    shown = Table(title="segments with each name", title_justify="left")
    for column in ("name", "looked for as", "segments", "together with"):
        shown.add_column(column, overflow="fold")
    partners = [0] * len(counted.counts)
    for i, j, _ in counted.pairs:
        partners[i] += 1
        partners[j] += 1
    for name, ways, number, others in zip(counted.rule.names, counted.rule.ways, counted.counts, partners, strict=True):
        said = " | ".join(" ".join(way.words) for way in ways)
        shown.add_row(escape(name), escape(said), f"{number:,}", f"{others} names")
    output.print(shown)
    for name, reason in outcome.unreadable[:SHOWN]:
        note(f"skipped {name}: it {reason}")
    if len(outcome.unreadable) > SHOWN:
        note(f"and {len(outcome.unreadable) - SHOWN:,} more were skipped")
    if outcome.ignored:
        kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in outcome.ignored.most_common(5))
        note(f"ignored, because they are not text: {kinds}")
    if counted.little():
        note(f"the corpus says too little about {', '.join(counted.little())}; descriptions or more text may help")
    made = counted.corpora[0]
    output.print(
        f"{made.files:,} files, {made.bytes / 1e6:,.1f} MB of text, {made.segments:,} {counted.rule.segment}s, "
        f"{made.skipped:,} skipped, {seconds:.1f} s ({made.bytes / 1e6 / seconds:.0f} MB/s)"
    )


@group.command(name="merge")
def merge_command(
    parts: Annotated[list[Path], typer.Argument(metavar="COUNTS...", help="Files of `labels count`.")],
    out: Annotated[Path, typer.Option(help="Where the sum goes.")],
) -> None:
    """Add up counts of parts of a corpus, made on one machine or many."""
    from fedalign.labels import counts

    _may_write(out)
    if len({path.resolve() for path in parts}) < len(parts):
        raise UserError("a file of counts is given twice; give each once")
    total = counts.merge([counts.read(path) for path in parts])
    counts.write(total, out)
    size = sum(corpus.bytes for corpus in total.corpora)
    output.print(f"{len(parts)} files: {size / 1e6:,.1f} MB of text, {total.segments:,} {total.rule.segment}s")
    suggest("fedalign labels vectors --counts", out, "--out", out.with_suffix(".safetensors"))


@group.command(name="vectors")
def vectors_command(
    out: Annotated[Path, typer.Option(help="Where the vectors go (safetensors).")],
    counts: Annotated[str, typer.Option(help="A file of `labels count`, or the name of shipped counts.")] = "",
    sentence: Annotated[
        bool, typer.Option("--sentence", help="From a pretrained sentence model instead; needs --names.")
    ] = False,
    names: Annotated[Path | None, typer.Option(help="Only these names, a name a line; default: all counted.")] = None,
    model: Annotated[str, typer.Option(help="Folder of the sentence model; default: the package's.")] = "",
    phrase: Annotated[str, typer.Option(help="What the sentence model reads, {} being the name.")] = "{}",
    dim: Annotated[int, typer.Option(min=2, help="Width of the vectors.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 4321,
    reading: Annotated[
        Reading, typer.Option(help="Edges as the paper has them, or its published code.")
    ] = Reading.paper,
    smoothing: Annotated[float, typer.Option(min=0, help="Of counts against chance; 0: none.")] = 0.5,
) -> None:
    """Make label vectors from counts: PMI, a graph, random walks, skip-gram."""
    from fedalign.config import from_table
    from fedalign.labels import names as label_names
    from fedalign.labels import vectors

    _may_write(out)
    if bool(counts) == sentence:
        raise UserError("give either --counts COUNTS or --sentence")
    if sentence and names is None:
        raise UserError("--sentence needs --names, a text file with a label name a line")
    options: dict[str, Any] = {"source": "sentence", "file": model, "phrase": phrase, "descriptions": str(names)}
    if counts:
        options = {"source": "counts", "file": counts, "reading": reading.value, "smoothing": smoothing}
    how = from_table({"labels": options}, where="labels vectors").labels
    wanted = label_names.read_names(names)[0] if names else vectors.counted_names(counts)
    rows = vectors.make(wanted, dim, how, seed)
    noted = vectors.notes(wanted, how)
    vectors.write_vectors(out, wanted, rows, {**noted, "seed": seed})
    isolated_names = noted.get("isolated", [])
    if isolated_names:
        note(f"no tie was found for {', '.join(isolated_names)}; they get random vectors of ordinary length")
    output.print(f"{len(wanted)} vectors of {dim} numbers in {escape(str(out))}", soft_wrap=True)
    suggest("fedalign labels show", out)


@group.command(name="show")
def show_command(
    source: Annotated[Path, typer.Argument(metavar="VECTORS", help="A file of `labels vectors`.")],
    nearest: Annotated[int, typer.Option(min=1, help="Names shown for each.")] = 3,
    png: Annotated[Path | None, typer.Option(help="The heatmap; default: beside the vectors.")] = None,
) -> None:
    """Show the nearest names of each label, those without ties, and a heatmap of similarities."""
    from rich.table import Table

    from fedalign.labels import vectors
    from fedalign.report import heatmap

    picture = png or source.with_suffix(".png")
    _may_write(picture)
    names, rows = vectors.stored(source)
    if len(names) < 2:
        raise UserError(f"{source} holds {len(names)} vector; comparing needs at least two")
    noted = vectors.facts(source)
    similar = vectors.cosines(rows)
    shown = Table(title="nearest names, by cosine", title_justify="left")
    for column in ("name", "segments", "nearest"):
        shown.add_column(column, overflow="fold")
    counted = dict(zip(names, noted.get("counts", []), strict=False))
    for i, name in enumerate(names):
        order = [j for j in similar[i].argsort(descending=True).tolist() if j != i][:nearest]
        close = ", ".join(f"{escape(names[j])} {float(similar[i, j]):.2f}" for j in order)
        shown.add_row(escape(name), f"{counted[name]:,}" if name in counted else "-", close)
    output.print(shown)
    if noted.get("isolated"):
        note(f"without a tie, their vectors are random: {', '.join(noted['isolated'])}")
    if noted.get("says_little"):
        note(f"the corpus says too little about {', '.join(noted['says_little'])}")
    heatmap.draw(names, similar.numpy(), picture, "cosine of label vectors")
    output.print(f"heatmap: {escape(str(picture))}", soft_wrap=True)
    suggest("fedalign run PRESET --set labels.source=vectors --set", f"labels.file={source}")
