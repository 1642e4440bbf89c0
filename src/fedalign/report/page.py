"""Writes one self-contained HTML page for a run or a comparison: no network access, two themes, any width."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

import fedalign
from fedalign import config as configs
from fedalign.report import pictures, rerun, tables, wording
from fedalign.report.diagnosis_section import diagnosis_pictures
from fedalign.report.facts import Rebuilder, complete_facts
from fedalign.report.grouping import Entry, Setting, group_runs
from fedalign.report.load import StoredRun, read, runs_in
from fedalign.report.pictures import Picture
from fedalign.report.style import printable, save
from fedalign.system.files import write_atomically

NAME = "report.html"
MOST_DETAILED = 24  # methods with figures of their own


@dataclass
class Details:
    """The figures and text of one method."""

    title: str
    pictures: list[Picture]
    text: str = ""


@dataclass
class Part:
    """The contents of the page for one data set."""

    name: str
    verdict: str
    summary: list[tuple[str, str]]
    missing: list[str]
    gain_text: str
    hint: str
    hint_place: str  # the run's folder, if the hint is for the folder around it
    gains: tables.Table | None
    gain_pictures: list[Picture]
    methods: tables.Table | None
    curves: list[Picture]
    matrix: tables.Table | None
    classes: tables.Table | None
    classes_text: str
    details: list[Details]
    diagnosis: list[Details]
    costs: tables.Table
    repeats: list[tuple[str, str, str]] = field(default_factory=list)  # method, command, configuration
    best: str = ""


def make(paths: Sequence[Path], out: Path | None = None, say: Callable[[str], None] = lambda message: None) -> Path:
    """Reads the runs, computes what facts.json lacks, and writes the page into their folder or to `out`."""
    runs = [read(folder) for folder in runs_in(list(paths))]
    rebuilder = Rebuilder()
    for run in sorted(runs, key=lambda run: (str(run.table.get("dataset")), run.seed or 0)):
        complete_facts(run, rebuilder, say)
    out = out or paths[0] / NAME
    write(runs, out)
    return out


def write(runs: Sequence[StoredRun], out: Path, live: bool = False) -> None:
    """Writes the page; a live page leaves out what needs the final model."""
    write_atomically(out, render(group_runs(runs), live))


def render(settings: Sequence[Setting], live: bool = False) -> str:
    """Returns the page as HTML."""
    parts = [_part(setting, f"p{i}", live) for i, setting in enumerate(settings)]
    script, style = _text("page.js"), _text("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["svg"] = lambda one: Markup(one.svg)  # written by matplotlib, which escapes names
    template = environment.from_string(_text("page.html"))
    return template.render(
        parts=parts,
        title=_title(parts),
        live=live,
        made=time.strftime("%Y-%m-%d %H:%M"),
        version=fedalign.__version__,
        script=Markup(script),
        style=Markup(style),
        # nothing external is loaded and only our own script runs, whatever a name contains
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
    )


def store_figures(paths: Sequence[Path], folder: Path, kind: str) -> list[Path]:
    """Stores the figures of the page as files, named by data set and method."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = []
    for i, setting in enumerate(group_runs([read(path) for path in runs_in(list(paths))])):
        part = _part(setting, _plain(setting.name) + (f"-{i}" if i else ""), live=False)
        inner = [picture for one in (*part.details, *part.diagnosis) for picture in one.pictures]
        for picture in (*part.gain_pictures, *part.curves, *inner):
            stored.append(folder / f"{picture.name}.{kind}")
            save(picture.figure, stored[-1])
    return stored


def _plain(name: str) -> str:
    """Returns a name that is safe in a file name."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:40] or "run"


def _text(name: str) -> str:
    return files("fedalign.report").joinpath(name).read_text(encoding="utf-8")


def _title(parts: Sequence[Part]) -> str:
    names = ", ".join(dict.fromkeys(part.name for part in parts))
    if len(parts) == 1:
        return f"{names}: {parts[0].best}" if parts[0].methods is None else f"{names}: methods compared"
    return names


def _part(setting: Setting, prefix: str, live: bool) -> Part:
    best = setting.best
    run = best.shown
    table = tables.party_table(run)
    measured = bool(run.local_only.get("parties"))
    folder = _short(run.folder)
    hint = "" if measured or live or table is None else f"fedalign report {shlex.quote(folder)} --local-only"
    return Part(
        name=printable(setting.name, 60),
        verdict=printable(wording.verdict(setting)),
        summary=wording.run_summary(setting),
        missing=wording.missing_notes(setting),
        gain_text=wording.gain_text(run),
        hint=hint,
        hint_place=run.folder.name if run.folder.is_absolute() and folder == run.folder.name else "",
        gains=table,
        gain_pictures=pictures.gain_pictures(run, prefix),
        methods=tables.methods_table(setting),
        curves=pictures.curves(setting, prefix),
        matrix=tables.party_class_table(run),
        classes=tables.classes_table(setting),
        classes_text=wording.classes_text(run, printable(best.title, 60) if len(setting.entries) > 1 else ""),
        details=_details(setting, prefix, live),
        diagnosis=[] if live else _diagnosis(setting, prefix),
        costs=tables.costs_table(setting),
        repeats=[_repeat(entry) for entry in setting.entries],
        best=printable(best.title, 60),
    )


def _details(setting: Setting, prefix: str, live: bool) -> list[Details]:
    """Returns the details of each method, the best one first."""
    found = []
    entries = sorted(setting.entries, key=lambda entry: entry is not setting.best)
    for i, entry in enumerate(entries[:MOST_DETAILED]):
        mine = f"{prefix}-m{i}"
        drawn = pictures.pseudo_labels(entry, mine)
        if not live:
            run = entry.shown
            drawn = [*pictures.confusion(run, mine, entry.title), *pictures.similarity(run, mine, entry.title), *drawn]
        if drawn:
            found.append(Details(printable(entry.title, 60), drawn))
    return found


def _diagnosis(setting: Setting, prefix: str) -> list[Details]:
    found = []
    for i, entry in enumerate(setting.entries):
        run = next((run for run in entry.runs if run.diagnosis), None)
        if run is not None:
            drawn = diagnosis_pictures(run.diagnosis, f"{prefix}-d{i}")
            found.append(Details(printable(entry.title, 60), drawn, printable(str(run.diagnosis.get("verdict", "")))))
    return found


def _repeat(entry: Entry) -> tuple[str, str, str]:
    run = entry.shown
    if run.config is None:
        return printable(entry.title, 60), "", _dumped(run.table)
    line = rerun.command(run.config)
    if line is None:
        line = f"fedalign run {shlex.quote(_short(run.folder) + '/config.toml')} --out ANOTHER_FOLDER"
    return printable(entry.title, 60), printable(_without_folders(line), 2000), _dumped(configs.as_table(run.config))


def _short(folder: Path) -> str:
    """Returns a run's folder without the folders of this machine: relative to the working folder, or its name."""
    if not folder.is_absolute():
        return str(folder)
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else folder.name


def _without_folders(value: Any) -> Any:
    """Returns a table or text in which absolute paths are only their last part; a page is sent to other people."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return re.sub(r"(?<![\w.:/])(/[^\s'\"=,]+)+", lambda m: Path(m[0]).name, value) if isinstance(value, str) else value


def _dumped(table: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(_without_folders(table)) if table else ""
