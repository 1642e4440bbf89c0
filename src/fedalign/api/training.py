"""Training from Python: one call, with a callback after each round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedalign.api.federation import Federation
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.learning.rounds import Plan, Round
from fedalign.report.live import LivePage
from fedalign.runs import experiment
from fedalign.runs.display import Display, NotebookDisplay, in_notebook, note
from fedalign.runs.results import label_card


@dataclass(frozen=True)
class Progress:
    """What a callback receives after a round. Scores are on test rows, None if there are none."""

    round: int
    rounds: int
    seconds: float
    f1: float | None
    accuracy: float | None
    class_f1: Mapping[str, float]
    notes: Mapping[str, Any]  # the round's line of metrics.jsonl


class Stopped(Exception):  # noqa: N818 - not an error
    """A callback asked for no more rounds."""


def train(
    federation: Federation,
    algorithm: str | None = None,
    rounds: int | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    callback: Callable[[Progress], bool | None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Train one classifier for every class of every party.

    algorithm: analytic (default for own rows: seconds, whatever `rounds` says), fedalign, fedavg, ... or a file
    "./my_method.py".
    seed: of the first weights and of training; the division of the data stays as it is.
    out: the run's folder, with a report.html; `resume=True` continues from there. Without it nothing is left on disk.
    callback: receives a `Progress` after each round. If it returns False, or at Ctrl-C, training ends and the model so
    far is returned.
    settings: other settings by dotted key, such as {"training.epochs": 3}.

    `model.result` holds the scores.
    """
    if not isinstance(federation, Federation):
        raise UserError(f"train takes a federation, not {federation!r:.60}; make one with Federation.from_files(...)")
    config = federation.config(algorithm, rounds, seed, settings or {})
    if resume and out is None:
        raise UserError("resume=True needs out=, the folder of the run to resume")
    state: dict[str, Any] = {}

    def on_start(plan: Plan, done: int) -> None:
        state["plan"] = plan

    def on_round(now: Round, seconds: float) -> None:
        state["round"] = now
        if callback is not None and callback(_progress(now, seconds, config, federation)) is False:
            raise Stopped

    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        callbacks = experiment.RunCallbacks(on_start, on_round=on_round, on_warning=note)
        if progress:
            display: Display | NotebookDisplay = NotebookDisplay() if in_notebook() else Display(folder)
            stack.enter_context(display)
            callbacks = experiment.both(display.callbacks(), callbacks)
        page = LivePage(folder, note)
        if out is not None:
            callbacks = page.callbacks(callbacks, folder)
        plan = experiment.plan(config, federation)
        if plan.models:
            raise UserError("with encoder.parties each party has a model; train them with `fedalign run FILE.toml`")
        try:
            result = experiment.run(config, folder, resume, callbacks, prepared=plan)
            if out is not None:
                page.finish()
            return replace(Model.load(folder, trust_code=True), result=result)
        except (KeyboardInterrupt, Stopped):
            if "round" not in state:
                raise
    plan, now = state["plan"], state["round"]
    if progress:
        hint = f"; train(..., out={str(out)!r}, resume=True) resumes it" if out is not None else ""
        note(f"stopped after round {now.number} of {config.rounds}{hint}")
    return _model_so_far(plan, now, federation)


def _model_so_far(plan: Plan, now: Round, data: Federation) -> Model:
    """The model after the last finished round."""
    result: dict[str, Any] = {
        "name": plan.config.name,
        "algorithm": plan.config.algorithm.name,
        "rounds": now.number,
    }
    if now.scores is not None:
        result["last"] = {"f1": now.scores.f1, "accuracy": now.scores.accuracy}
    network = plan.model.load(now.server.weights)
    return Model(network, tuple(data.label_names), data.inputs, card=label_card(plan), result=result)


def _progress(now: Round, seconds: float, config: Config, data: Federation) -> Progress:
    scores = now.scores
    by_class = {} if scores is None else dict(zip(data.label_names, scores.class_f1.tolist(), strict=True))
    f1, accuracy = (None, None) if scores is None else (scores.f1, scores.accuracy)
    return Progress(now.number, config.rounds, seconds, f1, accuracy, by_class, now.record)
