"""The model of a run that is not finished: its newest checkpoint, which can answer at once."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

from fedalign import registry
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.inference.storage import CARD
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.runs.own_encoders import FOLDER
from fedalign.runs.results import label_card


def load_model(folder: Path, trust_code: bool, warn: Callable[[str], None]) -> Model:
    """The model of a folder. For a run that is not finished it is that of the newest checkpoint, and `warn` says so."""
    if (folder / CARD).is_file() or not (folder / "config.toml").is_file():
        return Model.load(folder, trust_code)
    if any(folder.glob(f"{FOLDER}/*/{CARD}")):
        return Model.load(folder, trust_code)  # which names the parties' models
    resume = f"`fedalign run {shlex.quote(str(folder))} --resume`"
    if not trust_code:
        _check_plugins(folder / "config.toml")
    run = RunFolder.existing(folder)
    saved, config = run.newest(), run.stored_config()
    if config.encoder.parties:
        where = "the parties keep theirs" if run.finished else f"resume it with {resume}"
        raise UserError(f"{folder} has no model, because each party gets its own; {where}")
    if saved is None:
        raise UserError(f"{folder} has not finished a round yet, so it has no model; resume it with {resume}")
    plan = experiment.plan(config)
    if plan.algorithm.fixed_features:
        raise UserError(f"{folder} stopped before its model was solved; resume it with {resume}, which takes seconds")
    if saved.fingerprint != experiment.fingerprint(plan):
        raise UserError(f"the data or label vectors of {folder} have changed since it started; start a new run")
    warn(
        f"{folder} is not finished: this is its model after round {saved.round} of {config.rounds}; resume the run "
        f"with {resume}"
    )
    data = plan.federation
    network = plan.model.load(saved.weights)
    return Model(network, tuple(data.label_names), data.inputs, card=label_card(plan))


def _check_plugins(path: Path) -> None:
    """Refuses a configuration that names programs of its own; a run's folder may come from anywhere."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); start a new run") from error
    found = registry.first_program(table)
    if found is not None:
        raise UserError(f"{path} names the {found}, a program of its own; look at it, then allow it with --trust-code")
