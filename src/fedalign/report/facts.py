"""Facts that need the data and the model: who annotates what, the confusion of classes, the similarity of classes.

They are stored in the run's folder as facts.json, so that the page can be drawn later without data or model. The file
can be deleted: the next `fedalign report` computes it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import fedalign
from fedalign import registry
from fedalign.config import Config
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError
from fedalign.labels.choose import description
from fedalign.learning import metrics, scoring
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.report.load import StoredRun, cooccurrence_totals
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.system.files import write_atomically
from fedalign.types import Arrays, Examples, Federation, Task

FORMAT = 1
MOST_CLASSES = 200  # a matrix of more classes is unreadable as a picture
DATA_CHANGED = "the data or label vectors have changed since the run started"


def write(folder: Path, facts: dict[str, Any]) -> None:
    """Writes facts.json into a run's folder."""
    write_atomically(folder / "facts.json", json.dumps(facts, separators=(",", ":"), ensure_ascii=False))


def describe_data(plan: Plan) -> dict[str, Any]:
    """Returns what is known before the first round: the parties, their classes and their numbers of labels."""
    data = plan.federation
    return {
        "format": FORMAT,
        "fedalign": fedalign.__version__,
        "torch": torch.__version__,
        "round": 0,
        "task": data.task,
        "label_names": list(data.label_names),
        "label_source": description(plan.config.labels) if plan.algorithm.head == "names" else None,
        "weights": sum(value.numel() for one in plan.models or (plan.model,) for value in one.parameters()),
        "parties": [
            {
                "name": party.name,
                "rows": len(party.train),
                "classes": party.train.classes.nonzero().flatten().tolist(),
                "labelled": ((party.train.y > 0) & party.train.known).sum(0).tolist(),
            }
            for party in data.parties
        ],
        "test_rows": 0 if data.test is None else len(data.test),
    }


def measure_model(plan: Plan, weights: Arrays, number: int, thresholds: Tensor | None = None) -> dict[str, Any]:
    """Returns the same and the results of the model of one round on the test rows, at the method's own thresholds."""
    facts = describe_data(plan) | {"round": number, "own_thresholds": thresholds is not None}
    model = plan.model.clone().load(weights)
    if len(plan.federation.label_names) <= MOST_CLASSES:
        facts["similarity"] = rounded(cosine_similarity(model.anchors()))
    test = plan.federation.test
    if test is not None and len(test) and not plan.models:  # else each party has a model, see result.json
        decided = decisions(model, test, thresholds)
        facts["counts"] = metrics.count(decided, test.y, test.known).tolist()
        if len(plan.federation.label_names) <= MOST_CLASSES:
            facts |= class_pairs(decided, test, plan.federation.task)
    return facts


def decisions(model: DualEncoder, rows: Examples, thresholds: Tensor | None = None) -> Tensor:
    """Returns the predicted classes of each row, (n, C) bool."""
    with scoring.threads() as pool:
        logits = scoring.logits(model, rows.x, pool)
    return metrics.decide(logits, model.task, thresholds)


def class_pairs(decided: Tensor, test: Examples, task: Task) -> dict[str, Any]:
    """Returns counts for each pair of classes.

    Single-label: confusion[true][predicted]. Multi-label: how often two classes occur together among rows where both
    are known, in the true labels and in the predictions, and how often the first one occurs in those rows at all.
    """
    predicted, truth = decided.double(), ((test.y > 0) & test.known).double()
    if task == "single":
        return {"confusion": (truth.T @ predicted).long().tolist()}
    known = test.known.double()
    answers = predicted * known
    counted = {
        "truth": truth.T @ truth,
        "truth_first": truth.T @ known,
        "answers": answers.T @ answers,
        "answers_first": answers.T @ known,
        "known": known.T @ known,
    }
    return {"together": {key: values.long().tolist() for key, values in counted.items()}}


def cosine_similarity(rows: Tensor) -> Tensor:
    """Returns the cosine similarity of class vectors, (C, C)."""
    unit = F.normalize(rows.double(), dim=1)
    return unit @ unit.T


def rounded(values: Tensor, digits: int = 3) -> list[list[float]]:
    return [[round(float(v), digits) for v in row] for row in values]


# --- from a folder ------------------------------------------------------------------------------------------------


class Rebuilder:
    """Builds plans from configurations and reads each partition of the data once."""

    def __init__(self) -> None:
        self._held: tuple[str, Federation] | None = None

    def plan(self, config: Config) -> Plan:
        key = json.dumps([config.dataset.model_dump(), config.partition.model_dump(), config.seed], default=str)
        if self._held is None or self._held[0] != key:
            dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
            if not dataset.present(data_folder()):
                raise UserError(
                    f"the data set {config.dataset.name} is not on this machine; `fedalign datasets` says how to get it"
                )
            self._held = (key, experiment.federation(config))
        return experiment.plan(config, self._held[1])


def data_changed(run: StoredRun, plan: Plan) -> bool:
    """Returns whether data or label vectors differ from those of the run; without a checkpoint they count as equal."""
    stored = RunFolder(run.folder).fingerprint
    return stored is not None and stored != experiment.fingerprint(plan)


def load_weights(run: StoredRun) -> tuple[int, Arrays]:
    """Returns (round, weights) of a run: the final model, or the newest checkpoint of an unfinished run."""
    path = run.folder / "model.safetensors"
    if run.finished and path.is_file() and "distilled" not in run.result:  # a model with an encoder of its own
        try:
            return (run.records[-1]["round"] if run.records else 0), load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"model.safetensors cannot be read ({error})") from error
    newest = RunFolder(run.folder).newest()
    if newest is None:
        raise UserError("the run has neither a model nor an intact checkpoint")
    return newest.round, newest.weights


def outdated(facts: dict[str, Any]) -> bool:
    """Returns whether pairs of classes lack their totals although some labels were unknown (older files)."""
    together, size = facts.get("together"), len(facts.get("label_names") or ())
    return isinstance(together, dict) and cooccurrence_totals(together, "truth", size) is None


def own_thresholds(run: StoredRun) -> Tensor | None:
    """Returns the thresholds with which the run's scores were computed, (C,); None for 0.5."""
    if "at_half" not in run.result:  # there are none, or they were chosen after the last score
        return None
    try:
        values = json.loads((run.folder / "labels.json").read_text(encoding="utf-8"))["thresholds"]
        return torch.tensor([float(value) for value in values])  # result.json has them rounded
    except (OSError, ValueError, TypeError, KeyError):
        return None


def complete_facts(run: StoredRun, rebuilder: Rebuilder, say: Callable[[str], None] = lambda message: None) -> None:
    """Fills in what facts.json lacks by rebuilding data and model; adds to `run.missing` what cannot be computed."""
    if run.local_only.get("left_out"):
        run.missing.append(f"{DATA_CHANGED}, so no party was trained on its own rows only")
    done = run.records[-1]["round"] if run.records else 0
    thresholds = own_thresholds(run)
    current = run.facts.get("format") == FORMAT and not outdated(run.facts)
    current &= thresholds is None or bool(run.facts.get("own_thresholds"))
    if current and run.facts.get("round") == done and (done or "parties" in run.facts):
        return
    without = "so parties, confusion and class similarity are not shown"
    if run.config is None:
        run.missing.append(f"the model cannot be rebuilt without a configuration, {without}")
        run.facts = {}
        return
    say(f"measuring the model of {run.folder}")
    try:
        plan = rebuilder.plan(run.config)
        if data_changed(run, plan):
            raise UserError(DATA_CHANGED)
        run.facts = describe_data(plan)
        done, weights = load_weights(run)
        run.facts = measure_model(plan, weights, done, thresholds)
    except UserError as error:
        run.missing.append(
            f"{error}, {without}" if not run.facts.get("parties") else f"{error}, so the final model is not measured"
        )
        return
    except (RuntimeError, KeyError) as error:  # weights of another shape
        reason = str(error).splitlines()[0]
        run.missing.append(f"the stored weights do not fit this configuration ({reason}), so the model is not measured")
        return
    with suppress(OSError):  # a read-only folder: measure again next time
        write(run.folder, run.facts)
