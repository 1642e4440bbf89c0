"""fedalign check: validates a user's files before training."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._check_tables import print_classes, print_parties
from fedalign.cli._json import Code, answer, failed
from fedalign.errors import UserError, printable
from fedalign.runs.display import note, output, screen, suggest, typed

if TYPE_CHECKING:
    from fedalign.flower.preview import Preview
    from fedalign.ingest.party_files import Files
    from fedalign.ingest.validate import ValidationReport

ORDER = 3


def command(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE|FILE.toml", help="The files, or the TOML of a run.")],
    label: Annotated[str, typer.Option(help="Column with one class name per row.")] = "",
    labels: Annotated[str, typer.Option(help="Column with several class names per row.")] = "",
    text: Annotated[str, typer.Option(help="Column with the text.")] = "",
    client: Annotated[str, typer.Option(help="Column with the party, if all parties are in one file.")] = "",
    write_aliases: Annotated[
        Path | None, typer.Option(help="Write similar names to this TOML, for you to decide on.")
    ] = None,
    what_leaves: Annotated[
        bool,
        typer.Option("--what-leaves", help="For one party's file: everything that a run would send from this machine."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="With --what-leaves: the run's configuration, from the operators of the server.")
    ] = None,
    party: Annotated[
        str, typer.Option(help="With --what-leaves: the party's name, if it differs from its file's.")
    ] = "",
) -> None:
    """Show who annotates what, and report problems in the files; nothing is trained."""
    from fedalign.ingest import validate
    from fedalign.labels.choose import choose_source

    if what_leaves or config is not None:
        show_what_leaves(path, config, party)
        return
    hints = {"label": label, "labels": labels, "text": text, "client": client}
    if write_aliases is not None and (write_aliases.exists() or write_aliases.suffix != ".toml"):
        what = "exists already" if write_aliases.exists() else "must end in .toml"
        raise UserError(f"{write_aliases} {what}; give another name to --write-aliases")
    given = files_of(path, hints)
    found = validate.look(given.files, given.encoder)
    chosen = choose_source(found.names, given.labels) if given.labels is not None else None  # of class vectors
    if write_aliases is not None:
        write(write_aliases, validate.proposed_aliases(found))
    answer(found.table() | {"label_source": chosen and chosen.source, "left_out": given.identifiers})
    if chosen is not None:
        note(str(chosen))
    for name, reason in given.identifiers.items():
        note(f"column {printable(name)} is no input: {reason}")
    print_survey(found, given.how, path)
    suggest(next_command(path, found, hints))
    if not found.trainable:
        first = next(finding.message for finding in found.findings if finding.level == "error")
        failed(Code.NOT_TRAINABLE, first)
        raise typer.Exit(2)


@dataclass(frozen=True)
class Given:
    """The files to check, and what the settings say about them."""

    files: Files
    encoder: Any  # of a TOML; None without one
    labels: Any  # the section that says where class vectors start; None if the method has none that start from names
    how: str  # where the settings come from
    identifiers: dict[str, str]  # columns that are left out, and why


def files_of(path: Path, hints: dict[str, str]) -> Given:
    """Returns the files of a folder, of one file or of a TOML."""
    from fedalign import config, registry
    from fedalign.ingest.detect import detect
    from fedalign.labels.settings import Labels

    own = path / config.OWN
    toml = own if own.is_file() and not any(hints.values()) else path
    if toml.suffix == ".toml":
        if any(hints.values()):
            raise UserError(f"{path} states which columns hold what; leave out --label and similar options")
        settings = config.load(str(toml))
        if settings.dataset.name != "files":
            raise UserError(f"{toml} reads the data set {settings.dataset.name}; check is for your own files")
        files = registry.build("datasets", "files", settings.dataset.options)
        encoder = registry.build("encoders", settings.encoder.name, settings.encoder.options)
        method = registry.build("algorithms", settings.algorithm.name, settings.algorithm.options)
        if method.fixed_features and not getattr(encoder, "fixed", False):
            encoder = None  # the method takes the fixed feature map of the rows instead
        labels = settings.labels if method.head == "names" else None
        return Given(files, encoder, labels, f"settings: {toml}", {})
    detected = detect(path, hints)
    columns = {key: value for key, value in detected.options.items() if key not in ("path", "test_file", "aliases")}
    found = ", ".join(
        f"{key} = {value if isinstance(value, str) else ', '.join(value)}" for key, value in columns.items()
    )
    files = registry.build("datasets", "files", detected.options)
    labels = None if detected.kind.feature_map else Labels(source="auto")  # analytic, unless there is no feature map
    return Given(files, None, labels, f"guessed: {found}", detected.identifiers)


def show_what_leaves(path: Path, given: Path | None, party: str) -> None:
    from fedalign import config
    from fedalign.flower.preview import preview
    from fedalign.system.files import stem

    if path.suffix == ".toml" or not path.exists():
        raise UserError(f"{path} is not a party's file; --what-leaves reads one such file, for example clinic.csv")
    toml = given or path.parent / config.OWN
    if not toml.is_file():
        raise UserError("add --config FILE.toml, the run's configuration that the operators of the server gave you")
    settings = config.load(str(toml))
    if settings.dataset.name != "files":
        raise UserError(f"{toml} reads the data set {settings.dataset.name}; --what-leaves is for your own files")
    with screen.status("reading"):
        found = preview(path, settings, party or stem(path))
    if found.refused:
        raise UserError(found.refused)
    answer(found.table())
    print_leaving(found, path)
    folder = f"fedalign check {shlex.quote(str(path.parent))}"
    suggest(folder if given is None else "fedalign deploy check --server HOST:PORT")


def print_leaving(found: Preview, path: Path) -> None:
    from fedalign.flower.preview import CAVEATS

    offer = found.offer
    output.print(f"[bold]What leaves this machine when {escape(printable(path.name))} takes part[/]", soft_wrap=True)
    output.print("\n[bold]Once, before the first round[/]")
    output.print(f"  the party's name, by default that of its file: {escape(printable(offer.party))}", soft_wrap=True)
    output.print(
        f"  the names of the classes it annotates: {escape(', '.join(map(printable, offer.classes)))}", soft_wrap=True
    )
    output.print(f"  what a row is ({offer.kind}) and whether it has one class or several ({offer.task})")
    for sentence in offer.input.describe_offer(offer):
        output.print(f"  {escape(sentence)}")
    for when, spec in found.replies.items():
        output.print(f"\n[bold]{when.capitalize()}: {spec.size:,} bytes[/]")
        for group, arrays in (("", spec.weights), (" (extra)", spec.extra)):
            for name, value in arrays.items():
                shape = " x ".join(map(str, value.shape)) or "1"
                output.print(f"  {escape(name + group)}: {shape}", soft_wrap=True)
        rows = "" if found.privacy else f"the number of its labelled training rows ({found.num_examples:,}), and "
        output.print(f"  {rows}its classes")
    print_growth(found)
    when = "After each round, and at the end" if found.every_round_counts else "When the server asks for scores"
    output.print(f"\n[bold]{when}[/]")
    for part, size in found.counts.items():
        times = f"{size[0]} thresholds x " if len(size) == 3 else ""
        what = f"{times}{size[-2]} classes x true and false positives and negatives"
        output.print(f"  of its rows for {part}: {what}", soft_wrap=True)
    if found.privacy:
        output.print("\n[bold]Differential privacy[/]")
    for sentence in found.privacy:
        output.print(f"  {escape(sentence)}", soft_wrap=True)
    output.print("\n[bold]What never leaves[/]")
    for sentence in found.never:
        output.print(f"  {escape(sentence)}", soft_wrap=True)
    output.print("\n[bold]To keep in mind[/]")
    for sentence in CAVEATS:
        output.print(f"  {sentence}", soft_wrap=True)
    output.print(
        "\nEvery message is recorded with sizes and hashes in receipt.jsonl of the memory folder.", soft_wrap=True
    )


def print_growth(found: Preview) -> None:
    """What the classes of other parties add to the arrays."""
    if not found.own_vectors:
        output.print(f"  each class of another party adds one row to the arrays with {found.classes} rows")
        return
    names = ", ".join(found.own_vectors)
    output.print(f"  of {escape(names)} only the rows of its own classes: other classes add nothing", soft_wrap=True)
    extra = {name: spec for reply in found.replies.values() for name, spec in reply.extra.items()}
    if any(spec.shape[:1] == (found.classes,) for spec in extra.values()):
        output.print(f"  each class of another party adds one row to the extra arrays with {found.classes} rows")


def write(path: Path, text: str) -> None:
    from fedalign.system.files import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another name") from error


def next_command(path: Path, found: ValidationReport, hints: dict[str, str]) -> str:
    from fedalign.config import OWN

    options = "".join(f" --{key} {shlex.quote(value)}" for key, value in hints.items() if value)
    if not found.trainable:
        return f"fedalign check {shlex.quote(str(path))}{options}   (after fixing the errors)"
    toml = path if path.suffix == ".toml" else path / OWN
    if toml.is_file() and not options:
        return f"fedalign run {shlex.quote(str(toml))}"
    other = f" --out {shlex.quote(str(path / 'other.toml'))}" if toml.is_file() else ""  # init never overwrites a file
    return f"fedalign init {shlex.quote(str(path))}{options}{other}"


# --- for people -------------------------------------------------------------------------------------------------------


def print_survey(found: ValidationReport, how: str, path: Path) -> None:
    """Prints everything that was found; `how` says where the settings come from."""
    rows = sum(party.rows for party in found.parties)
    shape = "one class per row" if found.task == "single" else "any number of classes per row"
    output.print(
        f"{len(found.parties)} parties, {rows:,} rows of {found.kind}, {len(found.names)} classes, {shape}"
        + (f"; {found.test_rows:,} test rows" if found.test_rows else ""),
        soft_wrap=True,
    )
    output.print(escape(how), soft_wrap=True)
    if found.parties:
        print_parties(found)
    if found.names:
        print_classes(found)
    for pair in found.near[:20]:
        names = f"'{escape(printable(pair.first))}' and '{escape(printable(pair.second))}'"
        output.print(f"[yellow]similar:[/] {names} ({pair.reason})", soft_wrap=True)
    if found.near:
        more = f"{len(found.near) - 20} more pairs; " if len(found.near) > 20 else ""
        join = typed("fedalign labels match", path) if path.is_dir() else "--write-aliases FILE.toml"
        output.print(
            f"[yellow]similar:[/] {more}each is a separate class unless you join them: {escape(join)}", soft_wrap=True
        )
    errors = [finding for finding in found.findings if finding.level == "error"]
    for finding in found.findings:
        if finding.level == "note":
            note(finding.message)
    for finding in errors:
        screen.print(f"[bold red]error:[/] {escape(finding.message)}")
    many = "one error" if len(errors) == 1 else f"{len(errors):,} errors"
    output.print("ready to train" if found.trainable else f"{many}: training would stop", style="bold")
