"""fedalign init: writes a commented TOML for a user's files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.ingest.defaults import suggest_settings
from fedalign.runs.display import output, suggest

if TYPE_CHECKING:
    from fedalign.ingest.detect import Detected
    from fedalign.ingest.looked_at import LookedAt

ORDER = 2
ABOUT = {
    "path": "a folder with one file per party, or one file",
    "client": "the column that names the party",
    "test_file": "rows with all classes that belong to no party",
    "aliases": "other names of classes",
    "label": "the column with the class name; empty: not looked at",
    "labels": "the column with the class names; empty: not looked at",
    "separator": "between the names",
    "missing": "texts that mean an empty cell, also in the labels",
    "label_prefix": "columns whose names begin like this are classes: 1 or yes, 0 or no, empty not looked at",
}


def command(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A folder with one file per party, or one file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The TOML to write, never over an existing file; default fedalign.toml, in FOLDER if it is one."
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="Column with one class name per row.")] = "",
    labels: Annotated[str, typer.Option(help="Column with several class names per row.")] = "",
    text: Annotated[str, typer.Option(help="Column with the text.")] = "",
    client: Annotated[str, typer.Option(help="Column with the party, if all parties are in one file.")] = "",
) -> None:
    """Write a commented TOML for your own files."""
    from fedalign.config import OWN
    from fedalign.ingest.detect import detect
    from fedalign.system.files import write_atomically

    out = out or (path / OWN if path.is_dir() else Path(OWN))
    if out.exists():
        raise UserError(f"{out} exists already and is not overwritten; give another --out or remove it")
    if path.suffix == ".toml":
        raise UserError(f"{path} is a TOML already; run it with `fedalign run {path}`")
    hints = {"label": label, "labels": labels, "text": text, "client": client}
    detected = detect(path, hints)
    found = surveyed(detected)
    content = written(detected, found.looked_at if found else None, path, out)
    try:
        write_atomically(out, content)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; give another --out") from error
    for key, value in detected.options.items():
        shown = value if isinstance(value, str) else ", ".join(value)
        reason = f"  ({detected.why[key]})" if key in detected.why else ""
        output.print(f"{key} = {escape(shown)}{escape(reason)}", soft_wrap=True)
    source = found.source if found else "the best source available for the label names"
    when = "for run --deep; analytic uses no label names; " if detected.kind.feature_map else ""
    output.print(f"labels.source = auto  ({when}{escape(source)})", soft_wrap=True)
    if found:
        none = f"; {none_of_these(detected, found.looked_at)}" if found.looked_at.none else ""
        output.print(f"labels: {found.looked_at}{escape(none)}", soft_wrap=True)
    output.print(f"written: {escape(str(out))}", soft_wrap=True)
    counts = vars(found.looked_at) if found else None
    left = {"identifiers": detected.identifiers, "looked_at": counts}
    answer({"written": out, "options": detected.options, "reasons": detected.why, "task": detected.task, **left})
    suggest(f"fedalign check {shlex.quote(str(out))}")


def none_of_these(detected: Detected, looked_at: LookedAt) -> str:
    """Returns a sentence on rows that were looked at and have none of their party's classes."""
    from fedalign.ingest.looked_at import share

    how = "an empty list" if detected.options.get("labels") else "'none of these'"
    return f"{share(looked_at.none, looked_at.rows)} have none of their party's classes ({how})"


def written(detected: Detected, looked_at: LookedAt | None, path: Path, out: Path) -> str:
    """The TOML: what was found, and the settings that users change most often."""
    options = dict(detected.options)
    for key in ("path", "test_file", "aliases"):
        if key in options:
            options[key] = Path(os.path.relpath(options[key], out.resolve().parent)).as_posix()
    name = path.resolve().stem or "mine"
    lines = [
        remark(f"Made by: fedalign init {shlex.quote(str(path))}"),
        remark("Paths are relative to this file. Look at the files first: fedalign check; then: fedalign run."),
        line("name", name),
        line("seed", 1),
        line("rounds", 30),
        "# parties that train in each round",
        line("clients_per_round", min(detected.parties, 10)),
        "",
        "[dataset]",
        line("name", "files"),
    ]
    about = {**ABOUT, **detected.kind.about}
    for key, value in options.items():
        why = f" ({detected.why[key]})" if key in detected.why else ""
        lines += [remark(about.get(key, key) + why), line(key, value)]
    lines += _label_choices(detected) + _input_choices(detected)
    if "test_file" not in options:
        lines += ["# share of each party's rows kept for testing; or test_file = ...", line("test", 0.2)]
    lines += ["# share of each party's other rows, to follow training", line("validation", 0.1)]
    if "aliases" not in options:
        lines += [
            "# other names of classes; fedalign labels match proposes some",
            '# aliases = "aliases.toml"',
        ]
    lines += [
        "# the classes that a party annotates, if more than those in its labels",
        "# [dataset.classes]",
        '# party = ["a class", "another"]',
        "",
        "[algorithm]",
        "# analytic: a linear model from a few exchanges of sums, in seconds. `fedalign run --deep` also trains an",
        "# encoder over rounds and keeps the better model. Others: fedalign compare FILE.toml --algorithms all",
        line("name", "analytic" if detected.kind.feature_map else "fedalign"),
        *_complement(detected, looked_at),
        "",
        "[labels]",
        "# for methods that train an encoder, where class vectors start: counts shipped for these names, else an",
        "# installed sentence model, else at random",
        line("source", "auto"),
        "",
        "[encoder]",
        *_encoder(detected),
        "",
        "[training]",
        "# passes over a party's rows per round",
        *(line(key, value) for key, value in suggest_settings(detected.kind, detected.rows)["training"].items()),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Surveyed:
    """What reading all rows adds to the first guess."""

    source: str  # a sentence that says where class vectors start
    looked_at: LookedAt


def surveyed(detected: Detected) -> Surveyed | None:
    """Reads every row; None if a file cannot be read, which `fedalign check` explains."""
    from fedalign import registry
    from fedalign.ingest.looked_at import count_looked_at
    from fedalign.labels.choose import choose_source
    from fedalign.labels.names import reconcile
    from fedalign.labels.settings import Labels

    try:
        files = registry.build("datasets", "files", detected.options)
        holdings = files.read(files.reading())
        names = reconcile([holding.classes for holding in holdings]).names
    except UserError:
        return None
    return Surveyed(str(choose_source(names, Labels(source="auto"))), count_looked_at(holdings))


def _complement(detected: Detected, looked_at: LookedAt | None) -> list[str]:
    """The option that uses rows with none of their party's classes, if there are such rows of one class each."""
    if detected.task != "single" or looked_at is None or not looked_at.none:
        return []
    return [
        "",
        '# for methods that train an encoder (run --deep, or algorithm.name = "fedalign"); analytic needs no option',
        "[when.fedalign.algorithm]",
        remark(f"{none_of_these(detected, looked_at)}: each has a class of another party"),
        line("complement", True),
    ]


def _label_choices(detected: Detected) -> list[str]:
    if "label_prefix" in detected.options:
        return []
    return ["# in the label column: looked at, and none of the party's classes", line("other", "none of these")]


def _input_choices(detected: Detected) -> list[str]:
    empty = [] if "missing" in detected.options else [remark(ABOUT["missing"]), '# missing = ["NA"]']
    settings = detected.kind.suggested(detected.rows)
    return [text for comment, key, value in settings for text in (remark(comment), line(key, value))] + empty


def _encoder(detected: Detected) -> list[str]:
    values = suggest_settings(detected.kind, detected.rows)["encoder"]
    return [
        '# or "package.module:Class", your own torch.nn.Module',
        *(line(key, value) for key, value in values.items()),
    ]


def remark(text: str) -> str:
    """A comment line; characters that cannot be printed become ?."""
    return "# " + "".join(c if c.isprintable() else "?" for c in text)


def line(key: str, value: Any) -> str:
    """A TOML line; the value may contain any character."""
    import tomli_w

    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = ", ".join(tomli_w.dumps({"x": part}).removeprefix("x = ").strip() for part in value)
        return f"{key} = [{parts}]"
    return tomli_w.dumps({key: value}).strip()
