"""The server's side of a deployment: it gathers the parties, agrees on their classes, and runs the rounds.

The server holds no rows. It asks each party for an offer (label names and, for numbers, column statistics), derives one
list of names and one way to read rows, and then exchanges weights with the parties.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError

from fedalign import config as configs
from fedalign import registry
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.flower.engine import DeployedEngine, NewClassesError
from fedalign.flower.roster import Roster, StoredRoster, look_alikes, refusal
from fedalign.flower.transport import Log, Transport
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Agreement
from fedalign.labels import names as label_names
from fedalign.labels.notices import notices
from fedalign.learning.analytic.totals import Totals
from fedalign.learning.client_state import ClientStates
from fedalign.learning.rounds import Plan, last_accepted
from fedalign.registry import explain
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder

if TYPE_CHECKING:
    from flwr.serverapp import Grid


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Settings:
    """Settings of a deployment that are not part of the run's configuration."""

    out: Path
    parties: Annotated[int, Field(ge=1)] = 1  # to wait for before the first round
    wait: Seconds = 600.0  # for these parties
    timeout: Seconds = 3600.0  # of a round
    resume: bool = False
    new_classes: Literal["refuse", "extend"] = "refuse"  # extend: a party that joins later may add classes
    evaluate_every: Annotated[int, Field(ge=1)] = 5  # rounds, if the configuration scores all of them
    approved: tuple[str, ...] = ()  # names that look like another party's and are correct
    dropped: tuple[str, ...] = ()  # parties that left for good, for which a resumed run does not wait
    packed: bool = False  # every message is sent as one record, as parties with fedalign party understand
    trial: bool = False  # parties are clients of a preset, not files

    @classmethod
    def read(cls, run: Mapping[str, Any]) -> Settings:
        known = {key: run[key] for key in cls.__dataclass_fields__ if key in run}
        known["out"] = Path(str(run.get("out", "run")))
        for key in ("approved", "dropped"):
            words = str(run.get(key, "")).split(";")  # a name may contain a comma
            known[key] = tuple(word.strip() for word in words if word.strip())
        try:
            return TypeAdapter(cls).validate_python(known)
        except ValidationError as error:
            raise UserError(f"{explain(error)}; set it with --run-config or in the app's pyproject.toml") from error


def serve(grid: Grid, text: str, run: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """Runs all rounds over the network. The run's folder is on the server."""
    settings = Settings.read(run)
    config = configs.from_table(tomllib.loads(text), where="the run's configuration")
    if isinstance(experiment.algorithm_of(config), Totals):
        raise UserError(
            "algorithm.keep_sums = false is for runs on one machine; parties of a deployment may come late and leave, "
            "so the sums of each are kept; remove it"
        )
    transport = Transport(grid, settings.parties, settings.wait, settings.timeout, log)
    transport.packed = settings.packed
    stored = StoredRoster.read(settings.out) if settings.resume and Roster.path(settings.out).is_file() else None
    if settings.trial:
        roster, plan = trial(transport, config)
        roster = roster if stored is None else replace(roster, run=stored.run)
    elif stored is not None:
        roster, plan = reopened(transport, stored, config, settings)
    else:
        roster = open_roster(transport, config, settings, log)
        plan = experiment.plan(config, roster.federation)
    if plan.algorithm.head == "names" and config.dataset.name != "synthetic":
        for sentence in notices(plan.federation.label_names, config.labels, plan.config.labels):
            log(sentence)
    config = plan.config  # names that join later do not change the source of class vectors
    resume, extend = settings.resume, settings.new_classes == "extend"
    every = settings.evaluate_every if config.evaluate_every == 1 else config.evaluate_every
    while True:
        engine = DeployedEngine(plan, transport, roster, extend, every, settings.out)

        def on_start(plan: Plan, done: int, roster: Roster = roster, engine: DeployedEngine = engine) -> None:
            engine.counted = last_accepted(RunFolder(settings.out).records(), config.min_clients)
            roster.keep(settings.out)
            transport.write_receipts(settings.out)

        callbacks = experiment.RunCallbacks(
            on_start=on_start,
            on_round=lambda now, seconds: log(round_line(now.record, seconds)),
            on_warning=log,
        )
        try:
            result = experiment.run(config, settings.out, resume, callbacks, prepared=plan, opened=engine)
            return {**result, "scored_by": [engine.scored_by, len(plan.federation.parties)]}
        except NewClassesError as joining:
            log(f"{joining.offer.party!a} joins with {', '.join(map(ascii, joining.names))}")
            roster = roster.extended(joining.offer, joining.names)
            roster.keep(settings.out)
            plan = experiment.plan(config, roster.federation)
            add_new_classes(settings.out, plan)
            resume = True


def in_flower(message: str) -> str:
    """Returns an error message whose fix fits a Flower app, which has no command line of its own."""
    message = re.sub(
        r"resume it with `fedalign run .* --resume`", "give the app the configuration of that run", message
    )
    message = message.replace("another --out", "another folder with --run-config 'out=\"...\"'")
    return message.replace("--resume to continue", "--run-config 'resume=true' to continue")


def trial(transport: Transport, config: Config) -> tuple[Roster, Plan]:
    """Returns roster and plan of a trial, whose parties are clients of a preset."""
    transport.trial = True
    plan = experiment.plan(config)
    data = plan.federation
    agreed = Agreement(task=data.task, label_names=tuple(data.label_names), inputs=data.inputs)
    order = {party.name: i for i, party in enumerate(data.parties)}
    return Roster(agreed, sorted(transport.gather(), key=lambda offer: order[offer.party])), plan


def round_line(record: Mapping[str, Any], seconds: float) -> str:
    scores = f"  F1 {100 * record['f1']:.2f}" if "f1" in record else ""
    refused = f"  refused: {json.dumps(record['refused'])}" if "refused" in record else ""
    return f"round {record['round']}: {len(record['clients'])} parties{scores}{refused}  {seconds:.1f} s"


def open_roster(transport: Transport, config: Config, settings: Settings, log: Log) -> Roster:
    """Returns the roster of a new run: offers from all parties, one list of names, one way to read rows."""
    files = registry.build("datasets", "files", config.dataset.options)
    offers = sorted(transport.gather(), key=lambda offer: offer.party)
    agreed, near = agree(offers, files.preparation, files.reading().aliases)
    for pair in near:
        log(f"similar names: {pair.first!a} and {pair.second!a} ({pair.reason}, {pair.score})")
    for pair in look_alikes(near, offers, settings.approved):
        raise UserError(refusal(pair))
    owners = {offer.party: {label_names.normalised(name) for name in offer.classes} for offer in offers}
    for party in parties_without_shared_class(owners):
        log(f"note: {party!a} shares no class with another party; only label names relate its classes to theirs")
    return Roster(agreed, offers, how=files.preparation, approved=settings.approved)


def reopened(transport: Transport, stored: StoredRoster, config: Config, settings: Settings) -> tuple[Roster, Plan]:
    """Returns roster and plan of a resumed run once all its parties are connected, and updates its checkpoint."""
    folder = RunFolder.existing(settings.out)
    config = experiment.with_feature_map(config, stored.agreed.inputs, len(stored.agreed.label_names))
    folder.check_same(config)
    config = folder.resolved(config)
    files = registry.build("datasets", "files", config.dataset.options)
    present = transport.gather([name for name in stored.parties if name not in settings.dropped])
    roster = Roster.resumed(stored, present, files.preparation, settings.approved)
    plan = experiment.plan(config, roster.federation)
    if stored.derived_key:
        update_fingerprint(settings.out, plan)
    add_new_classes(settings.out, plan)
    return roster, plan


def update_fingerprint(folder: Path, plan: Plan) -> None:
    """Updates the checkpoint of a run from when the fingerprint still included the parties on other machines."""
    run = RunFolder(folder)
    saved = run.newest()
    if saved is not None and saved.fingerprint == experiment.fingerprint(plan, absent=True):
        server = replace(plan.start(), weights=saved.weights, extra=saved.extra, state=saved.state)
        with run.lock():
            run.commit(saved.round, server, ClientStates(run.checkpoints, 1), experiment.fingerprint(plan))


def parties_without_shared_class(owners: Mapping[str, set[str]]) -> list[str]:
    """Returns the parties none of whose classes another party annotates."""
    return [
        party
        for party, own in owners.items()
        if len(owners) > 1 and not any(own & other for name, other in owners.items() if name != party)
    ]


def add_new_classes(folder: Path, plan: Plan) -> None:
    """Adds to the checkpoint a class vector for each new class, made from its name. The roster is stored first, so that
    a run that is killed in between adds them when it is resumed."""
    run, start, names = RunFolder(folder), plan.start(), plan.federation.label_names
    saved = run.newest()
    if saved is None or all(len(saved.weights[name]) == len(names) for name in start.class_arrays):
        return
    known = len(saved.weights[start.class_arrays[0]])
    before = experiment.plan(plan.config, replace(plan.federation, label_names=names[:known], parties=[]))
    states = ClientStates(run.checkpoints, 1)
    done, server = run.load_round(start, states, experiment.fingerprint(before), warn=lambda message: None)
    fresh = plan.model.arrays()
    weights, extra = dict(server.weights), dict(server.extra)
    for name in server.class_arrays:
        rows = fresh[name][known:]
        if rows.dim() > 1:  # scaled to the mean length of the trained class vectors
            rows = rows / rows.norm(dim=1, keepdim=True) * weights[name].norm(dim=1).mean()
        weights[name] = torch.cat([weights[name], rows])
    for name, value in extra.items():
        if value.shape != start.extra[name].shape:
            extra[name] = torch.cat([value, start.extra[name][len(value) :]])
    with run.lock():
        run.commit(done, replace(server, weights=weights, extra=extra), states, experiment.fingerprint(plan))
