"""fedalign datasets: lists, downloads and describes public data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import datasets as names
from fedalign.cli._complete import presets
from fedalign.cli._json import answer
from fedalign.errors import UserError, nearest
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.data.downloads import Progress

ORDER = 5
group = typer.Typer(
    invoke_without_command=True, help="List data sets, download them, and describe how presets divide them."
)


@group.callback()
def table(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from fedalign import config, registry
    from fedalign.data.downloads import data_folder

    folder = data_folder()
    users: dict[str, list[str]] = {}
    for preset in sorted(config.presets(), key=lambda preset: (len(preset), preset)):  # es-5 before es-15
        users.setdefault(config.load(preset).dataset.name, []).append(preset)
    output.print(f"data folder: {escape(str(folder))} (set FEDALIGN_DATA for another)", soft_wrap=True)
    listed: dict[str, Any] = {}
    for name in registry.names("datasets"):
        kind = registry.find("datasets", name)
        about = kind.about
        here = kind().present(folder)
        listed[name] = {**vars(about), "here": here, "presets": users.get(name, [])}
        # a few short lines each: a table of seven columns would break words in a narrow terminal
        lines = [
            f"[bold]{name}[/]  [green]here[/]" if here else f"[bold]{name}[/]  not here",
            f"  {about.title} ({about.task})",
            f"  {about.size}",
            f"  licence: {about.licence}",
            f"  {about.address}" if about.address else "",
            f"  presets: {', '.join(users.get(name, [])) or 'none'}",
            "" if here else f"  get it: {about.how}",
        ]
        output.print("\n" + "\n".join(line for line in lines if line), soft_wrap=True)
    answer({"folder": folder, "datasets": listed})
    suggest("fedalign datasets describe r8-8")


@group.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="A name from the list that `fedalign datasets` prints.", autocompletion=names)
    ],
    source: Annotated[
        str,
        typer.Option("--from", metavar="FILE|URL", help="Your own copy of the archive instead of the owners' address."),
    ] = "",
) -> None:
    """Download a data set, resuming an interrupted download, or explain how to get it."""
    from fedalign import registry
    from fedalign.data.downloads import data_folder, fetch_archive

    if name not in registry.names("datasets"):
        raise UserError(f"unknown dataset {name!r}{nearest(name, registry.names('datasets'))}")
    kind = registry.find("datasets", name)
    folder = data_folder()
    archive = getattr(kind, "archive", None)
    if source and archive is None:
        raise UserError(f"{name} does not come as an archive; leave --from out")
    if kind().present(folder):
        output.print(f"{name} is already in {escape(str(folder))}; remove its folder to fetch it anew", soft_wrap=True)
    elif archive is not None:
        screen.print(f"{escape(kind.about.title)}: {escape(kind.about.licence)} ({escape(kind.about.address)})")
        with downloading(name) as progress:
            count, digest = fetch_archive(archive, folder / name, source, progress)
        output.print(f"{count:,} files in {escape(str(folder / name))}", soft_wrap=True)
        if not archive.digest:
            note(f"the owners publish no checksum (SHA-256 here: {digest}); the files are checked when they are read")
    elif hasattr(kind, "steps"):
        screen.print(escape(kind.steps(folder)))
        raise UserError(f"{name} cannot be downloaded automatically; follow the steps above")
    else:
        kind().fetch(folder)
    answer({"dataset": name, "folder": folder / name})
    from fedalign import config

    users = [preset for preset in config.presets() if config.load(preset).dataset.name == name]
    suggest(f"fedalign datasets describe {users[0]}" if users else "fedalign datasets")


@contextmanager
def downloading(name: str) -> Iterator[Progress]:
    """A progress bar in a terminal; elsewhere one line per tenth."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(f"[bold]{name}[/]"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        tenth = -1

        def show(done: int, total: int | None) -> None:
            nonlocal tenth
            bar.update(task, completed=done, total=total)
            if not screen.is_terminal and total and done * 10 // total > tenth:
                tenth = done * 10 // total
                screen.print(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

        yield show


@group.command()
def describe(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="The setting to describe.", autocompletion=presets)
    ],
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting; may be repeated.")
    ] = None,
) -> None:
    """Print the columns of the paper's Table 1 for a setting, and each client's classes and rows."""
    from rich.table import Table

    from fedalign import config as configs
    from fedalign.data import partition
    from fedalign.data.statistics import partition_statistics, published
    from fedalign.runs import experiment
    from fedalign.types import Pool

    config = configs.load(source, settings or [], seed=seed)
    loaded = experiment.load(config)
    pool = loaded if isinstance(loaded, Pool) else None
    data = partition.divide(loaded, config.partition, config.seed) if isinstance(loaded, Pool) else loaded
    ours, theirs = partition_statistics(data, pool), published().get(config.name)
    parties = [
        {"name": p.name, "rows": len(p.train), "annotates": [data.label_names[c] for c in p.train.classes.nonzero()]}
        for p in data.parties
    ]
    answer({"setting": config.name, "seed": config.seed, "statistics": vars(ours), "parties": parties})
    shown = Table(title=f"{escape(config.name)}, seed {config.seed}", title_justify="left")
    for column in ("", "here", *(["paper, Table 1"] if theirs else [])):
        shown.add_column(column, justify="right" if column else "left")
    for title, key, form in (
        ("classes", "classes", "d"),
        ("clients", "clients", "d"),
        ("training rows per client, mean", "rows", ",.1f"),
        ("classes per client, mean", "classes_per_client", ".2f"),
        ("smallest class / largest class", "imbalance", ".4f"),
    ):
        found = [getattr(row, key) for row in (ours, theirs) if row is not None]
        shown.add_row(title, *("-" if value is None else format(value, form) for value in found))
    output.print(shown)
    for remark in (pool.note if pool else "", theirs.remark if theirs else ""):
        if remark:
            output.print(f"note: {escape(remark)}", soft_wrap=True)
    clients = Table(box=None, pad_edge=False)
    for column in ("client", "rows", "validation"):
        clients.add_column(column, justify="left" if column == "client" else "right", no_wrap=True)
    clients.add_column("annotates")
    for party in data.parties:
        names = [data.label_names[c] for c in party.train.classes.nonzero().flatten().tolist()]
        held = "-" if party.validation is None else f"{len(party.validation):,}"
        clients.add_row(escape(party.name), f"{len(party.train):,}", held, escape(", ".join(names)))
    output.print(clients)
    if data.test is not None:
        output.print(f"test rows that belong to no client: {len(data.test):,}")
    nobody = [name for name, n in zip(data.label_names, data.classes.sum(0).tolist(), strict=True) if not n]
    if nobody:
        note(
            f"no client annotates {', '.join(nobody)}; with partition.cover = true the draw is repeated until one does"
        )
    suggest("fedalign run", source)
