"""Valid folders for every command that takes a file, and which file of them a fuzzer may change."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.forked import Ended, command, forked

TABLES = ("csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "npz")
SMALL = {
    "name": "small",
    "rounds": 1,
    "encoder": {"name": "transformer", "dim": 8, "heads": 2, "feedforward": 8},
    "training": {"epochs": 1, "batch_size": 8},
    "engine": {"name": "local", "workers": 1},
}
GROUPS = ("labels", "deploy", "party", "server", "receipt")
# what a command may add to its folder although it refused: the lock of a run that it wanted to resume
HARMLESS = (".lock",)


@dataclass(frozen=True)
class Case:
    """A command, the folder it runs in, and the file that is changed."""

    folder: str  # a name in `prepare`
    file: str
    arguments: tuple[str, ...]
    reader: str = ""  # in helpers.hostile, whose mutations fit the file; default: by the file's name
    broken: int = 2  # the exit code of a refusal

    @property
    def command(self) -> str:
        return " ".join(self.arguments[: 2 if self.arguments[0] in GROUPS else 1])

    @property
    def name(self) -> str:
        return f"fedalign {' '.join(self.arguments)}  ({self.folder}/{self.file})"

    @property
    def slug(self) -> str:
        """A file name for what broke the command; one case of several with this name is enough to repeat it."""
        return f"{self.command.replace(' ', '_')}+{self.folder}+{self.file.replace('/', '+')}"

    @property
    def kind(self) -> str:
        if self.reader:
            return self.reader
        if self.file.endswith(".safetensors"):
            return "safetensors"
        return Path(self.file).name


def cases() -> list[Case]:
    """Every command that takes a file, with every file that it reads."""
    return [*_tables(), *_configurations(), *_runs(), *_labels(), *_deployments()]


def _tables() -> Iterator[Case]:
    for ending in TABLES:
        folder, file = f"rows-{ending}", f"rows/north.{ending}"
        for arguments in (
            ("check", "rows"),
            ("check", file, "--what-leaves", "--config", "run.toml"),
            ("init", "rows", "--out", "new.toml"),
            ("run", "run.toml", "--no-report", "--out", "new"),
            ("predict", "../run/run", file, "--skip-empty", "--out", "new.csv"),
            ("evaluate", "../run/run", file),
            ("labels", "match", "rows", "--no-model", "--accept-above", "0.9", "--out", "new.toml"),
        ):
            yield Case(folder, file, arguments, ending)


def _configurations() -> Iterator[Case]:
    for arguments in (
        ("run", "run.toml", "--print-config"),
        ("run", "run.toml", "--no-report", "--out", "new"),
        ("check", "run.toml"),
        ("labels", "match", "run.toml", "--no-model", "--accept-above", "0.9", "--out", "new.toml"),
        ("compare", "run.toml", "--algorithms", "fedavg", "--no-report", "--out", "new"),
        ("audit", "run.toml", "--shadows", "4"),
        ("deploy", "init", "new", "--config", "run.toml", "--parties", "north,south"),
        ("check", "rows/north.csv", "--what-leaves", "--config", "run.toml"),
    ):
        yield Case("rows-csv", "run.toml", arguments, "toml")
    for file, reader in (("aliases.toml", "aliases"), ("aliases.csv", "aliases.csv")):
        chosen = ("--set", f"dataset.aliases={file}")
        yield Case("rows-csv", file, ("run", "run.toml", *chosen, "--no-report", "--out", "new"), reader)
        yield Case("rows-csv", file, ("run", "run.toml", *chosen, "--print-config"), reader)


def _runs() -> Iterator[Case]:
    for file in ("config.toml", "metrics.jsonl", "facts.json", "result.json", "timing.jsonl"):
        yield Case("run", f"run/{file}", ("report", "run"))
        yield Case("run", f"run/{file}", ("diagnose", "run", "--quick"))
    for file in ("labels.json", "model.safetensors"):
        for arguments in (
            ("predict", "run", "rows/north.csv", "--skip-empty", "--out", "new.csv"),
            ("evaluate", "run", "rows/north.csv"),
            ("export", "run", "--out", "new"),
            ("report", "run"),
        ):
            yield Case("run", f"run/{file}", arguments)
    for file in ("config.toml", "metrics.jsonl", "checkpoint/state.json", "server", "client"):
        yield Case("stopped", f"run/{file}", ("run", "run", "--resume", "--rounds", "2", "--no-report"))
    for file in ("config.toml", "result.json", "labels.json", "metrics.jsonl", "checkpoint/state.json", "server"):
        yield Case("analytic", f"run/{file}", ("forget", "run", "--party", "north"))
    yield Case("run", "run/config.toml", ("audit", "run", "--shadows", "4"))


def _labels() -> Iterator[Case]:
    from helpers.hostile_records import CORPORA

    count = ("labels", "count", "--names", "names.txt", "--workers", "1", "--out", "new.json", "--corpus")
    for corpus in CORPORA:
        yield Case("labels", corpus, (*count, corpus), corpus)
    yield Case("labels", "names.txt", (*count, "corpus.jsonl"), "names")
    yield Case("labels", "names.txt", ("labels", "hash", "names.txt", "--key", "key", "--new-key"), "names")
    vectors = ("labels", "vectors", "--counts", "counts.json", "--dim", "4", "--out", "new.safetensors")
    yield Case("labels", "counts.json", vectors, "counts")
    yield Case(
        "labels", "vectors.safetensors", ("labels", "show", "vectors.safetensors", "--png", "new.png"), "vectors"
    )


def _deployments() -> Iterator[Case]:
    for file in ("receipt.jsonl", "receipt.head"):
        yield Case("receipts", f"record/{file}", ("receipt", "verify", "record"), broken=1)
    join = ("party", "join", "invitation.json", "rows/north.csv", "--name", "north", "--folder", "new")
    yield Case("kit", "invitation.json", join, "invitation.json")
    yield Case("kit", "rows/north.csv", join, "csv")
    for arguments in (("party", "show", "north"), ("deploy", "check", "--party", "north")):
        for file in ("party.json", "invitation.json"):
            yield Case("kit", f"north/{file}", arguments)
    for file in ("kit.json", "admitted.json", "dropped.json"):
        for arguments in (("server", "invite", "kit"), ("server", "drop", "kit", "north")):
            yield Case("kit", f"kit/{file}", arguments)
        yield Case("kit", f"kit/{file}", ("server", "admit", "kit", "north", "KEY"))


# --- valid folders ----------------------------------------------------------------------------------------------------


def prepare(home: Path, only: str = "") -> list[Case]:
    """Writes the valid folders into `home`, runs every command on them once, and imports what the commands imported.

    All work is done in forked children: threads of polars in this process would not survive a fork.
    """
    found = [case for case in cases() if only in case.name]
    for name in sorted({case.folder for case in found} | {"run"}):  # `predict` uses the model of "run"
        made = forked(lambda name=name: write_folder(name, home), home, patience=300)  # type: ignore[misc]
        assert made.code == 0, made.err
    found = [_resolved(case, home) for case in found]
    for case in found:
        for module in _modules(case, home):
            importlib.import_module(module)
    return found


def run_case(case: Case, home: Path, data: bytes, *more: str) -> tuple[Ended, list[str]]:
    """Runs the command on a copy of its folder in which the file holds `data`; also the files that were added."""
    own = home / "now"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(home / case.folder, own, symlinks=True)
    (own / case.file).write_bytes(data)
    before = _files(own)
    ended = forked(command(*_arguments(case, own), *more), own)
    return ended, [name for name in _files(own) if name not in before and not name.endswith(HARMLESS)]


def _arguments(case: Case, own: Path) -> list[str]:
    key = own / "key.txt"
    return [key.read_text().strip() if word == "KEY" else word for word in case.arguments]


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _resolved(case: Case, home: Path) -> Case:
    """`server` and `client` stand for the first such file of a checkpoint, whose name holds a digest."""
    from dataclasses import replace

    stem = Path(case.file).name
    if stem not in ("server", "client"):
        return case
    folder = home / case.folder / "run" / "checkpoint"
    path = max(folder.glob(f"{stem}-*.safetensors"))
    return replace(case, file=str(path.relative_to(home / case.folder)))


def _modules(case: Case, home: Path) -> list[str]:
    """What a command imports on valid files, which must be accepted."""
    listed = home / "modules.json"

    def work() -> None:
        ended = 0
        try:
            command(*_arguments(case, Path.cwd()))()
        except SystemExit as exit:
            ended = exit.code if isinstance(exit.code, int) else 1
        names = [name for name in sys.modules if name.partition(".")[0] != "__main__"]
        listed.write_text(json.dumps(names))
        os._exit(ended)

    own = home / "now"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(home / case.folder, own)
    ended = forked(work, own)
    allowed = (0, 2) if case.arguments[0] in ("party", "deploy") else (0,)  # no answer to a question, and no network
    assert ended.code in allowed, (case.name, ended.code, ended.out, ended.err)
    before = set(sys.modules)
    return [name for name in json.loads(listed.read_text()) if name not in before and _importable(name)]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def write_folder(name: str, home: Path) -> None:
    """One of the valid folders. It changes the current folder, as a command sees it."""
    from helpers.hostile import seeds

    folder = home / name
    if name.startswith("rows-"):
        ending = name.removeprefix("rows-")
        _rows(folder, ending, seeds(ending, home)[0])
    elif name == "labels":
        _labels_folder(folder)
    elif name == "receipts":
        _receipts_folder(folder)
    elif name == "kit":
        _kit_folder(folder, seeds("csv", home)[0])
    else:
        _rows(folder, "csv", seeds("csv", home)[0], {"algorithm": {"name": "analytic"}} if name == "analytic" else {})
        os.chdir(folder)
        _ended(command("run", "run.toml", "--out", "run"))


def _ended(work: Any) -> None:
    try:
        work()
    except SystemExit as ended:
        assert not ended.code, ended.code


def _rows(folder: Path, ending: str, data: bytes, settings: dict[str, Any] | None = None) -> None:
    import tomli_w

    from helpers.hostile import ROWS
    from helpers.written import write

    (folder / "rows").mkdir(parents=True)
    (folder / "rows" / f"north.{ending}").write_bytes(data)
    write(folder / "rows" / "south.csv", {key: ROWS[key] for key in ("note", "label", "pulse")})
    dataset = {"name": "files", "path": "rows", "text": "note", "label": "label"}
    (folder / "run.toml").write_text(tomli_w.dumps({**SMALL, "dataset": dataset, **(settings or {})}))
    (folder / "aliases.toml").write_text('"ant" = "bee"\n')
    (folder / "aliases.csv").write_text("name,class\nant,bee\n")


def _labels_folder(folder: Path) -> None:
    from helpers.hostile import seeds
    from helpers.hostile_records import CORPORA

    folder.mkdir()
    for name in CORPORA:
        (folder / name).write_bytes(seeds(name, folder)[0])
    (folder / "names.txt").write_text("angina\nasthma\theavy breath | asthma\n")
    (folder / "counts.json").write_bytes(seeds("counts", folder)[0])
    (folder / "vectors.safetensors").write_bytes(seeds("vectors", folder)[0])


def _receipts_folder(folder: Path) -> None:
    from fedalign.privacy import receipts

    (folder / "record").mkdir(parents=True)
    for number in range(3):
        receipts.add(folder / "record", {"direction": "out", "kind": "train", "number": number}, None)


def _kit_folder(folder: Path, rows: bytes) -> None:
    from fedalign.deploy.approval import leaving
    from fedalign.deploy.invitation import read_invitation
    from fedalign.deploy.party import PartyFolder

    _rows(folder, "csv", rows)
    os.chdir(folder)
    names = ("--parties", "north,south", "--port", "9092")
    _ended(command("deploy", "init", "kit", "--config", "run.toml", *names))
    shutil.copy("kit/invitation.json", "invitation.json")
    consent = leaving(Path("rows/north.csv"), read_invitation(Path("invitation.json")).config, "north")
    join = ("party", "join", "invitation.json", "rows/north.csv", "--folder", "north", "--approve", consent.digest)
    _ended(command(*join))
    Path("key.txt").write_text(PartyFolder.read(Path("north")).key)
    _ended(command("server", "admit", "kit", "north", Path("key.txt").read_text()))
    Path("kit/dropped.json").write_text('["north"]')
