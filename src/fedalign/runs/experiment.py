"""From a configuration to a result. The only file that knows every room."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

import fedalign
from fedalign import registry
from fedalign.config import Config
from fedalign.data import partition
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError
from fedalign.inference.card import Encoder, Head, ModelCard
from fedalign.ingest.reading import Reading
from fedalign.inputs import InputKind, Shape
from fedalign.labels import vectors
from fedalign.learning import metrics
from fedalign.learning.client_state import ClientStates
from fedalign.learning.model import DualEncoder, LabelEncoder, random_rows
from fedalign.learning.rounds import Engine, Plan, Round, describe, rounds
from fedalign.randomness import torch_generator
from fedalign.runs.folder import RunFolder
from fedalign.types import Examples, Federation, Pool, Sequences, Server

LAST = 10  # rounds averaged in a result, because single rounds swing


@dataclass(frozen=True)
class RunCallbacks:
    """What a front end wants to hear of while a run goes on."""

    on_start: Callable[[Plan, int], None] = lambda plan, done: None
    on_visit: Callable[[int], None] = lambda client: None
    on_round: Callable[[Round, float], None] = lambda now, seconds: None
    on_warning: Callable[[str], None] = lambda message: None


def both(one: RunCallbacks, other: RunCallbacks) -> RunCallbacks:
    """Two front ends that hear of the same run."""

    def after(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
        def call(*what: Any) -> None:
            first(*what)
            second(*what)

        return call

    return RunCallbacks(
        after(one.on_start, other.on_start),
        after(one.on_visit, other.on_visit),
        after(one.on_round, other.on_round),
        one.on_warning,  # once is enough
    )


def load(config: Config) -> Pool | Federation:
    """The data of a configuration; fetched first if that may be done silently."""
    dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
    if hasattr(dataset, "for_seed"):
        dataset = dataset.for_seed(config.seed)  # a split of its own for each seed
    folder = data_folder()
    if not dataset.present(folder):
        dataset.fetch(folder)
    loaded: Pool | Federation = dataset.load(folder)
    return loaded


def federation(config: Config) -> Federation:
    """The data of a configuration, divided among its clients."""
    loaded, kind = load(config), config.partition.kind
    if isinstance(loaded, Pool):
        return partition.divide(loaded, config.partition, config.seed)
    if kind not in ("none", "centralised"):
        raise UserError(f"these data bring their own parties; remove partition.kind = {kind!r}")
    return loaded if kind == "none" else partition.centralised(loaded)


def with_data_seed(config: Config, seed: int) -> Config:
    """The configuration with the data that another seed gives, for a run whose data were divided before its seed was
    chosen."""
    if config.seed == seed:
        return config
    changes: dict[str, Any] = {}
    dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
    if hasattr(dataset, "for_seed"):
        dataset = dataset.for_seed(seed)
        options = {key: getattr(dataset, key) for key in registry.option_names(type(dataset))}
        options = {key: value for key, value in options.items() if value is not None}
        changes["dataset"] = registry.Choice(name=config.dataset.name, **options)
    if config.partition.seed is None and config.partition.kind not in ("none", "centralised"):
        changes["partition"] = config.partition.model_copy(update={"seed": seed})
    return config.model_copy(update=changes)


def plan(config: Config, data: Federation | None = None) -> Plan:
    """Everything a run needs; server and clients build the same one from the same configuration."""
    data = federation(config) if data is None else data
    if config.thresholds and data.task == "single":
        raise UserError("thresholds are for multi-label data; a single-label row gets its likeliest class")
    algorithm = registry.build("algorithms", config.algorithm.name, config.algorithm.options)
    config = with_feature_map(config, data.inputs)
    return Plan(config, data, algorithm, model(config, data, algorithm.head))


def with_feature_map(config: Config, inputs: InputKind) -> Config:
    """The configuration with a fixed feature map for this kind of rows, if the algorithm needs one and its encoder is
    none."""
    if not registry.build("algorithms", config.algorithm.name, config.algorithm.options).fixed_features:
        return config
    options = registry.build("encoders", config.encoder.name, config.encoder.options)
    if getattr(options, "fixed", False):
        return config
    name = inputs.feature_map
    if not name:
        raise UserError(f"there is no fixed feature map for {inputs.rows_called}; choose another algorithm.name")
    chosen = registry.build("encoders", name, {})
    filled = {key: getattr(chosen, key) for key in registry.option_names(type(chosen))}
    return config.model_copy(update={"encoder": registry.Choice(name=name, **filled)})


def model(config: Config, data: Federation, head: str) -> DualEncoder:
    """The model before the first round: the same data encoder for every algorithm of a seed."""
    shape: Shape = data.inputs.shape
    options = registry.build("encoders", config.encoder.name, config.encoder.options)
    encoder = options.build(shape, torch_generator(config.seed, "encoder"))
    classes, dim = len(data.label_names), encoder.dim
    if head in ("linear", "rows"):
        rows = random_rows(classes, dim, torch_generator(config.seed, "head"))
        return DualEncoder(encoder, LabelEncoder(rows, bias=head == "linear", normalise=False), data.task)
    how = config.labels if head == "names" else config.labels.model_copy(update={"source": "random"})
    rows = vectors.make(data.label_names, dim, how, config.seed)
    normalise = data.task == "single" if how.normalise is None else how.normalise
    return DualEncoder(encoder, LabelEncoder(rows, bias=False, normalise=normalise), data.task)


def run(
    config: Config,
    out: Path,
    resume: bool = False,
    callbacks: RunCallbacks | None = None,
    prepared: Plan | None = None,
    opened: Engine | None = None,
) -> dict[str, Any]:
    """Runs (or goes on with) an experiment in a folder and returns what `result.json` holds.

    Plan and engine are built from the configuration unless they are given, as they are where the rows are elsewhere.
    """
    callbacks = callbacks or RunCallbacks()
    if resume:
        folder = RunFolder.existing(out)
    prepared = prepared or plan(config)
    config = prepared.config  # with the feature map that suits the rows
    if resume:
        folder.check_same(config)
    first = prepared.start()  # says what does not fit before a folder is made
    if opened is None:
        check_simulated(prepared, callbacks.on_warning)
    if not resume:
        folder = RunFolder.create(out, config)
    with folder.lock(), ExitStack() as stack:
        if resume:
            folder.keep(config)
        options = registry.build("engines", config.engine.name, config.engine.options)
        memory = ClientStates(folder.checkpoints, getattr(options, "memory_mb", 1024))
        mark = fingerprint(prepared)
        done, server = folder.load_round(first, memory, mark, callbacks.on_warning)
        engine = opened or stack.enter_context(options.open(prepared, memory))
        engine.on_visit = callbacks.on_visit
        callbacks.on_start(prepared, done)
        isolated_names = vectors.without_ties(prepared.federation.label_names, config.labels)
        if prepared.algorithm.head == "names" and isolated_names:
            callbacks.on_warning(
                f"the label counts know no tie of {', '.join(isolated_names)}; their first vectors are random"
            )
        began = time.perf_counter()
        for now in rounds(prepared, engine, server, done):
            server = now.server
            folder.save_round(now.number, server, memory, mark, now.record)
            seconds, began = time.perf_counter() - began, time.perf_counter()
            folder.note_time(now.number, seconds)
            callbacks.on_round(now, seconds)
        result = summary(prepared, folder.records())
        for sentence in prepared.algorithm.warnings(server, prepared.federation.label_names):
            callbacks.on_warning(sentence)
        chosen = prepared.algorithm.summary(server)
        if chosen:
            result["chosen"] = chosen | true_priors(prepared)
        thresholds = final_checks(prepared, engine, server, result, callbacks.on_warning)
        folder.finish(server.weights, label_card(prepared, thresholds), result)
    return result


def check_simulated(prepared: Plan, warn: Callable[[str], None]) -> None:
    """What a simulation knows beforehand and a deployment does not: who takes part, and whether rows are held out."""
    config, parties = prepared.config, prepared.federation.parties
    most = min(config.clients_per_round, len(parties))
    if config.min_clients > most:
        raise UserError(
            f"min_clients = {config.min_clients} is never reached, for a round has {most} clients; lower it"
        )
    if any(party.validation is not None for party in parties):
        return
    if config.thresholds:
        raise UserError(
            "thresholds are chosen on validation rows, and there are none; set dataset.validation to a share"
        )
    if prepared.algorithm.needs_class_f1(prepared.federation.task):
        warn(
            "no party holds validation rows, so no class passes the gate for pseudo labels; set dataset.validation to "
            "a share, or algorithm.gate to 0"
        )


def true_priors(prepared: Plan) -> dict[str, Any]:
    """The share of positive rows of each class over all parties, which only a simulation knows (multi-label)."""
    truth = [party.truth for party in prepared.federation.parties if party.truth is not None]
    if prepared.federation.task == "single" or len(truth) < len(prepared.federation.parties):
        return {}
    yes = torch.stack([(part.y * part.known).sum(0) for part in truth]).sum(0)
    known = torch.stack([part.known.sum(0) for part in truth]).sum(0).clamp(min=1)
    return {"true_priors": [round(float(p), 6) for p in yes / known]}


def final_checks(
    prepared: Plan, engine: Engine, server: Server, result: dict[str, Any], warn: Callable[[str], None]
) -> torch.Tensor | None:
    """Adds the score on validation rows and, if asked for, thresholds chosen there and what they do on test rows.
    Parties may be gone by then; the model is worth keeping without these."""
    task, weights = prepared.federation.task, server.weights
    decided = prepared.algorithm.thresholds(server)
    if decided is not None:
        at_half = engine.score(weights)
        result["thresholds"] = {"values": [round(float(t), 4) for t in decided]}
        if at_half is not None:
            found = metrics.scores(at_half, task)
            result["at_half"] = {"f1": found.f1, "accuracy": found.accuracy}
    held = engine.validate(weights)
    if held is not None:
        checked = metrics.scores(held, task)
        result["validation"] = {"f1": checked.f1, "accuracy": checked.accuracy}
    if not prepared.config.thresholds or decided is not None:
        return decided
    counts = None if held is None else engine.validate(weights, metrics.GRID)
    if counts is None:
        warn("nobody counted on validation rows at the end, so the model has no thresholds and decides at 0.5")
        return None
    thresholds = metrics.best_thresholds(counts, metrics.GRID)
    tested = engine.score(weights, thresholds)
    result["thresholds"] = {"values": [round(float(t), 4) for t in thresholds]}
    if tested is not None:
        found = metrics.scores(tested, task)
        result["thresholds"] |= {"f1": found.f1, "accuracy": found.accuracy}
    return thresholds


def summary(prepared: Plan, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The last round's scores, the mean of the last ten, and the last round by class."""
    last = records[-1]
    found: dict[str, Any] = {
        "fedalign": fedalign.__version__,
        "name": prepared.config.name,
        "algorithm": prepared.config.algorithm.name,
        "seed": prepared.config.seed,
        "rounds": len(records),
    }
    visits = max(sum(len(r["clients"]) for r in records), 1)
    found["traffic"] = {  # bytes of a client and round, on average
        key: sum(r[f"bytes_{key}"] for r in records) // visits for key in ("down", "up", "kept")
    }
    if "f1" in last:
        tail = [r for r in records if "f1" in r][-LAST:]
        found["last"] = {key: last[key] for key in ("f1", "accuracy", "balanced_accuracy")}
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
    """What is needed beside the weights to read rows and name classes."""
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
        # the shortest decimals that give the same float32: a rare class may have a threshold far below 0.0001
        thresholds=None if thresholds is None else tuple(float(str(t)) for t in thresholds.numpy()),
    )


def reading_of(config: Config, aliases: Mapping[str, str]) -> dict[str, Any] | None:
    """Which columns of a file hold input, labels and party, and other names of classes there, for runs on files."""
    if config.dataset.name != "files":
        return None
    options = config.dataset.options
    columns = [field.name for field in fields(Reading) if field.name != "aliases"]
    found = {key: options[key] for key in columns if options.get(key)}
    return {**found, "aliases": dict(aliases)} if aliases else found


def fingerprint(prepared: Plan, absent: bool = False) -> str:
    """A digest of the data and the first weights, so that a run is not resumed on others. Parties whose rows are
    elsewhere are left out, since they may join at any time; `absent` takes them in, as was done once."""
    digest = hashlib.sha256(json.dumps(list(prepared.federation.label_names)).encode())
    parts = [party.train for party in prepared.federation.parties if absent or not _elsewhere(party.train)]
    if prepared.federation.test is not None:
        parts.append(prepared.federation.test)
    for part in parts:
        for tensor in _tensors(part):
            digest.update(tensor.contiguous().numpy().tobytes())
    for value in prepared.model.arrays().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def _elsewhere(part: Examples) -> bool:
    """Rows of a party on another machine: neither they nor their columns are known here."""
    return isinstance(part.x, torch.Tensor) and part.x.shape == (0, 0)


def _tensors(part: Examples) -> list[torch.Tensor]:
    x = [part.x.values, part.x.offsets] if isinstance(part.x, Sequences) else [part.x]
    return [*x, part.y, part.known, part.classes]


__all__ = ["RunCallbacks", "describe", "federation", "fingerprint", "model", "plan", "run"]
