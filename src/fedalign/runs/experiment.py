"""From a configuration to a result: builds data, model and plan, and runs the rounds in a folder."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from fedalign import registry
from fedalign.config import Config
from fedalign.data import partition
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError
from fedalign.labels import choose
from fedalign.labels.notices import notices
from fedalign.learning.aggregation import promise
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.totals import totals_only
from fedalign.learning.client_state import ClientStates
from fedalign.learning.on_base import OnBase
from fedalign.learning.rounds import Engine, Plan, rounds
from fedalign.runs import own_encoders, protection
from fedalign.runs.callbacks import RunCallbacks as RunCallbacks
from fedalign.runs.callbacks import both as both
from fedalign.runs.folder import RunFolder
from fedalign.runs.models import model as model
from fedalign.runs.models import with_feature_map as with_feature_map
from fedalign.runs.results import finish
from fedalign.system import device
from fedalign.system.mapped import give_back
from fedalign.system.memory import running_out_named
from fedalign.types import Examples, Federation, Pool, Sequences, bytes_of, elsewhere, in_pieces

ROWS = 1 << 16  # of a digest, at once
LESS_MEMORY = "give fewer rows, fewer classes or a smaller encoder, or resume the run on a machine with more memory"


def load(config: Config) -> Pool | Federation:
    """The data of a configuration, downloaded first if that needs no consent."""
    dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
    if hasattr(dataset, "for_seed"):
        dataset = dataset.for_seed(config.seed)  # each seed has its own split
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
    """Everything that a run needs. Server and clients build the same plan from the same configuration."""
    data = federation(config) if data is None else data
    if config.thresholds and data.task == "single":
        raise UserError("thresholds are for multi-label data; a single-label row gets its likeliest class")
    config = config.model_copy(update={"labels": choose.resolved(data.label_names, config.labels)})
    if config.encoder.parties:
        sharing = own_encoders.sharing_class_vectors(algorithm_of(config), config, data)
        common = model(config, data, sharing.head)
        return Plan(config, data, sharing, common, own_encoders.models(config, data, common))
    if config.encoder.distilled or config.encoder.taught_rounds:
        option = "distilled" if config.encoder.distilled else "taught_rounds"
        raise UserError(f"encoder.{option} is for parties with encoders of their own; add [encoder.parties.NAME]")
    algorithm = protection.simulated(algorithm_of(config), config, data)
    config = with_feature_map(config, data.inputs, len(data.label_names))
    return Plan(config, data, algorithm, model(config, data, algorithm.head))


def algorithm_of(config: Config) -> Algorithm:
    """The algorithm of a configuration, on top of the analytic solution if it says so."""
    found: Algorithm = registry.build("algorithms", config.algorithm.name, config.algorithm.options)
    whole = config.privacy.protected or found.base != "none" or found.robust != "off" or not found.average_over_owners
    if found.own_class_vectors and whole:
        raise UserError(
            "algorithm.own_class_vectors needs algorithm.average_over_owners = true, and neither algorithm.base, "
            "algorithm.robust nor privacy; set it to false"
        )
    if found.sampled_classes and (config.privacy.protected or found.base != "none"):
        raise UserError("algorithm.sampled_classes needs neither algorithm.base nor privacy; set it to 0")
    if config.privacy.protected:
        return protection.protected(found, config)
    if found.base == "none":
        return found if getattr(found, "keep_sums", True) else totals_only(found)
    if found.fixed_features:
        raise UserError(f"algorithm.base is for methods that train; {config.algorithm.name} is the base itself")
    # sums are compared, whatever rule updates are voted by
    asked: dict[str, Any] = {} if found.robust == "off" else {"robust": "auto"}
    if getattr(found, "balance", False):
        asked["balance"] = True
    first: Algorithm = registry.build("algorithms", found.base, asked)
    clip, robust = found.clip_updates, found.robust
    return OnBase(first=first, then=found, rounds=config.rounds, clip_updates=clip, robust=robust)


def run(
    config: Config,
    out: Path,
    resume: bool = False,
    callbacks: RunCallbacks | None = None,
    prepared: Plan | None = None,
    opened: Engine | None = None,
) -> dict[str, Any]:
    """Runs or resumes an experiment in a folder and returns its result, as in result.json.

    Plan and engine are built from the configuration unless they are given, as in a deployment.
    """
    callbacks = callbacks or RunCallbacks()
    asked = config.labels
    if resume:
        folder = RunFolder.existing(out)
        config = folder.resolved(config)
        if prepared is not None and prepared.config.labels != config.labels:
            prepared = plan(config, prepared.federation)  # by the source chosen when the run began
    prepared = prepared or plan(config)
    config = prepared.config  # with the label source and the feature map that were chosen
    if resume:
        folder.check_same(config)
    first = prepared.start()  # reports what does not fit before a folder is made
    protection.check_ledgers(prepared.algorithm, prepared.model)
    options = registry.build("engines", config.engine.name, config.engine.options)
    if opened is None:
        check_simulated(prepared, callbacks.on_warning)
        if hasattr(options, "check"):
            options.check(prepared)  # such as whether the device is here
    if not resume:
        folder = RunFolder.create(out, config)
    with folder.lock(), running_out_named(LESS_MEMORY), ExitStack() as stack:
        if resume:
            folder.keep(config)
        states = ClientStates(folder.checkpoints, getattr(options, "memory_mb", 1024))
        mark = fingerprint(prepared)
        done, server = folder.load_round(first, states, mark, callbacks.on_warning)
        del first  # the largest arrays of a run; those of each round replace them
        engine = opened or stack.enter_context(options.open(prepared, states))
        engine.on_visit = callbacks.on_visit
        callbacks.on_start(prepared, done)
        wanted = getattr(options, "device", "cpu")
        if wanted != "cpu" and opened is None and (wanted != "auto" or device.present()):
            callbacks.on_warning(device.sentence(options.device_for(prepared), config.encoder.name))
        if opened is None and prepared.algorithm.head == "names" and config.dataset.name != "synthetic":
            for sentence in notices(prepared.federation.label_names, asked, config.labels):
                callbacks.on_warning(sentence)
        if prepared.algorithm.robust != "off" and not prepared.algorithm.fixed_features:
            data = prepared.federation
            callbacks.on_warning(promise(data.classes, data.label_names, prepared.algorithm.robust))
        began = time.perf_counter()
        for now in rounds(prepared, engine, server, done):
            server = now.server
            folder.save_round(now.number, server, states, mark, now.record)
            seconds, began = time.perf_counter() - began, time.perf_counter()
            folder.note_time(now.number, seconds)
            callbacks.on_round(now, seconds)
        return finish(prepared, engine, server, folder, callbacks.on_warning)


def check_simulated(prepared: Plan, warn: Callable[[str], None]) -> None:
    """Refuses settings that cannot work with these parties, which a simulation knows before it starts."""
    config, parties = prepared.config, prepared.federation.parties
    most = min(config.clients_per_round, len(parties))
    if config.min_clients > most:
        raise UserError(
            f"min_clients = {config.min_clients} is never reached, because a round has {most} clients; lower it"
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


def fingerprint(prepared: Plan, absent: bool = False) -> str:
    """A digest of the data and the first weights, so that a run is not resumed with others.

    Parties whose rows are on another machine are left out, since they may join at any time. `absent` includes them, as
    earlier versions did.
    """
    digest = _digest_of(prepared.federation, absent)
    for value in prepared.model.arrays().values():
        digest.update(bytes_of(value))
    return digest.hexdigest()


def data_fingerprint(data: Federation) -> str:
    """A digest of the data alone."""
    return _digest_of(data, absent=False).hexdigest()


def _digest_of(data: Federation, absent: bool) -> hashlib._Hash:
    digest = hashlib.sha256(json.dumps(list(data.label_names)).encode())
    parts = (party.train for party in data.parties if absent or not elsewhere(party.train))
    for part in chain(parts, [] if data.test is None else [data.test]):
        for tensor in _tensors(part):
            digest.update(bytes_of(tensor))
    return digest


def _tensors(part: Examples) -> Iterator[torch.Tensor]:
    for x in [part.x.values, part.x.offsets] if isinstance(part.x, Sequences) else [part.x]:
        for first in range(0, len(x), ROWS):  # which may be in a file
            yield x[first : first + ROWS]
            give_back(x, slice(first, first + ROWS))
    yield from (piece.y for piece in in_pieces(part))
    yield from (piece.known for piece in in_pieces(part))
    yield part.classes
