"""The result of a run: final scores, thresholds, and the card that a model needs besides its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

import fedalign
from fedalign.config import Config
from fedalign.inference.card import Encoder, Head, ModelCard
from fedalign.inference.storage import stored_thresholds
from fedalign.ingest.reading import Reading
from fedalign.learning import metrics
from fedalign.learning.distillation import Distillation
from fedalign.learning.own_encoders import OwnEncoders, OwnModels
from fedalign.learning.rounds import Engine, Plan
from fedalign.runs import own_encoders
from fedalign.runs.folder import RunFolder
from fedalign.types import Server

LAST = 10  # rounds averaged in a result, because the scores of single rounds vary


def finish(
    prepared: Plan, engine: Engine, server: Server, folder: RunFolder, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Writes the model and `result.json` of a run that has ended, and returns what `result.json` holds."""
    result = summary(prepared, folder.records())
    for sentence in prepared.algorithm.warnings(server, prepared.federation.label_names):
        warn(sentence)
    chosen = prepared.algorithm.summary(server)
    if chosen:
        result["chosen"] = chosen | true_priors(prepared)
    thresholds = final_checks(prepared, engine, server, result, warn)
    card, weights = label_card(prepared, thresholds), server.weights
    if isinstance(prepared.algorithm, OwnEncoders):
        if isinstance(engine, OwnModels):  # in a deployment, parties keep their models
            result["parties"] = own_encoders.finish(prepared, engine, weights, thresholds, folder.path, card)
        weights = {}
        if isinstance(prepared.algorithm, Distillation) and prepared.algorithm.solved(server):
            weights, card, result["distilled"] = own_encoders.finish_distilled(prepared, server, card)
        elif prepared.config.encoder.distilled:
            warn("too many rounds had too few replies, so no model was distilled; start a new run")
    folder.finish(weights, card, result)
    return result


def true_priors(prepared: Plan) -> dict[str, Any]:
    """The share of positive rows of each class over all parties, which only a simulation knows (multi-label)."""
    if prepared.federation.task == "single" or any(party.truth is None for party in prepared.federation.parties):
        return {}
    truth = [party.truth for party in prepared.federation.parties if party.truth is not None]
    yes = torch.stack([(part.y * part.known).sum(0) for part in truth]).sum(0)
    known = torch.stack([part.known.sum(0) for part in truth]).sum(0).clamp(min=1)
    return {"true_priors": [round(float(p), 6) for p in yes / known]}


def final_checks(
    prepared: Plan, engine: Engine, server: Server, result: dict[str, Any], warn: Callable[[str], None]
) -> torch.Tensor | None:
    """Adds the score on validation rows and, if configured, thresholds chosen there with their score on test rows.

    Returns the thresholds. Parties may have left by then; the model is kept without thresholds.
    """
    task, weights = prepared.federation.task, server.weights
    decided = prepared.algorithm.thresholds(server)
    if decided is not None:
        at_half = engine.score(weights)
        result["thresholds"] = {"values": [round(float(t), 4) for t in decided]}
        if at_half is not None:
            found = metrics.scores(at_half, task)
            result["at_half"] = {"f1": found.f1, "accuracy": found.accuracy}
    held = engine.validate(weights) if decided is None else engine.validate(weights, decided[None])
    held = held[0] if held is not None and decided is not None else held
    if held is not None:
        checked = metrics.scores(held, task)
        result["validation"] = {"f1": checked.f1, "accuracy": checked.accuracy}
    if not prepared.config.thresholds or decided is not None:
        return decided
    counts = None if held is None else engine.validate(weights, metrics.GRID)
    if counts is None:
        warn("no party scored validation rows at the end, so the model has no thresholds and decides at 0.5")
        return None
    thresholds = metrics.best_thresholds(counts, metrics.GRID)
    tested = engine.score(weights, thresholds)
    result["thresholds"] = {"values": [round(float(t), 4) for t in thresholds]}
    if tested is not None:
        found = metrics.scores(tested, task)
        result["thresholds"] |= {"f1": found.f1, "accuracy": found.accuracy}
    return thresholds


def summary(prepared: Plan, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The scores of the last round, their mean over the last ten rounds, and the last round by class."""
    last = records[-1]
    found: dict[str, Any] = {
        "fedalign": fedalign.__version__,
        "name": prepared.config.name,
        "algorithm": prepared.config.algorithm.name,
        "seed": prepared.config.seed,
        "rounds": len(records),
    }
    visits = max(sum(len(r["clients"]) for r in records), 1)
    found["traffic"] = {  # mean bytes per client and round
        key: sum(r[f"bytes_{key}"] for r in records) // visits for key in ("down", "up", "kept")
    }
    if "f1" in last:
        tail = [r for r in records if "f1" in r][-LAST:]
        measured = ("f1", "accuracy", "balanced_accuracy", "macro_accuracy")
        found["last"] = {key: last[key] for key in measured if key in last}
        found["mean_of_last"] = {
            "rounds": len(tail),
            **{key: sum(r[key] for r in tail) / len(tail) for key in ("f1", "accuracy", "balanced_accuracy")},
        }
        owners = prepared.federation.classes.sum(0).tolist()
        found["classes"] = [
            {"name": name, "f1": score, "owners": owners[c]}
            for c, (name, score) in enumerate(zip(prepared.federation.label_names, last["class_f1"], strict=True))
        ]
    return found


def label_card(prepared: Plan, thresholds: torch.Tensor | None = None) -> ModelCard:
    """What the model needs besides its weights to read rows and to name classes."""
    config, data = prepared.config, prepared.federation
    head = prepared.model.label_encoder
    return ModelCard(
        fedalign=fedalign.__version__,
        task=data.task,
        label_names=tuple(data.label_names),
        encoder=Encoder(**config.encoder.model_dump(mode="json")),
        head=Head(bias=head.bias is not None, normalise=head.normalise),
        inputs=data.inputs,
        reading=reading_of(config, data.aliases),
        thresholds=stored_thresholds(thresholds),
    )


def reading_of(config: Config, aliases: Mapping[str, str]) -> dict[str, Any] | None:
    """The columns that hold input, labels and party, and the aliases of classes, for runs on files."""
    if config.dataset.name != "files":
        return None
    options = config.dataset.options
    columns = [field.name for field in fields(Reading) if field.name != "aliases"]
    found = {key: options[key] for key in columns if options.get(key)}
    return {**found, "aliases": dict(aliases)} if aliases else found
