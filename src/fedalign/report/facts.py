"""What only the data and the model can tell: who annotates what, what is mistaken for what, which classes are alike.

Kept in the run's folder as facts.json, so that the page can be drawn again without either. It may be removed: the next
`fedalign report` measures it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from fedalign.engines.local import chunks, cores
from fedalign.errors import UserError
from fedalign.labels.choose import description
from fedalign.learning import metrics
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.report.load import StoredRun, first_of
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.system.files import write_atomically
from fedalign.types import Arrays, Examples, Federation, Task

FORMAT = 1
MOST_CLASSES = 200  # a square of more classes is no picture
CHANGED = "the data or label vectors have changed since the run was begun"


def write(folder: Path, facts: dict[str, Any]) -> None:
    write_atomically(folder / "facts.json", json.dumps(facts, separators=(",", ":"), ensure_ascii=False))


def about(plan: Plan) -> dict[str, Any]:
    """Before the first round: the parties, their classes and how many labels they bring."""
    data = plan.federation
    return {
        "format": FORMAT,
        "fedalign": fedalign.__version__,
        "torch": torch.__version__,
        "round": 0,
        "task": data.task,
        "label_names": list(data.label_names),
        "label_source": description(plan.config.labels) if plan.algorithm.head == "names" else None,
        "weights": sum(parameter.numel() for parameter in plan.model.parameters()),
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


def measured(plan: Plan, weights: Arrays, number: int) -> dict[str, Any]:
    """The same, and what the model of a round does on the test rows."""
    facts = about(plan) | {"round": number}
    model = plan.model.clone().load(weights)
    if len(plan.federation.label_names) <= MOST_CLASSES:
        facts["similarity"] = rounded(cosine(model.anchors()))
    test = plan.federation.test
    if test is not None and len(test):
        decided = decisions(model, test)
        facts["counts"] = metrics.count(decided, test.y, test.known).tolist()
        if len(plan.federation.label_names) <= MOST_CLASSES:
            facts |= crossed(decided, test, plan.federation.task)
    return facts


def decisions(model: DualEncoder, rows: Examples) -> Tensor:
    """(n, C) bool, what the model says of each row."""
    logits = over_rows(model, rows, lambda model, part: model(part.x), rows.y.shape[1])
    return metrics.decide(logits, model.task)


def over_rows(
    model: DualEncoder, rows: Examples, look: Callable[[DualEncoder, Examples], Tensor], width: int
) -> Tensor:
    """(n, width) what `look` gives for all rows, in a few threads with one core and one copy of the model each."""
    found = torch.zeros(len(rows), width)
    parts, workers = chunks(rows), cores()

    def work(mine: int) -> None:
        own = model.clone()
        with torch.no_grad():
            for part in parts[mine::workers]:
                found[part] = look(own, rows.take(part))

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, range(workers)))
    return found


def crossed(decided: Tensor, test: Examples, task: Task) -> dict[str, Any]:
    """Single-label: confusion[truth][answer]. Multi-label: how often two classes go together, in truth and in answers,
    among rows where both are known, and how often the first does there, with the second or without."""
    said, truth = decided.double(), ((test.y > 0) & test.known).double()
    if task == "single":
        return {"confusion": (truth.T @ said).long().tolist()}
    known = test.known.double()
    predictions = said * known
    counted = {
        "truth": truth.T @ truth,
        "truth_first": truth.T @ known,
        "answers": predictions.T @ predictions,
        "answers_first": predictions.T @ known,
        "known": known.T @ known,
    }
    return {"together": {key: values.long().tolist() for key, values in counted.items()}}


def cosine(rows: Tensor) -> Tensor:
    """(C, C) similarity of class representations."""
    unit = F.normalize(rows.double(), dim=1)
    return unit @ unit.T


def rounded(values: Tensor, digits: int = 3) -> list[list[float]]:
    return [[round(float(v), digits) for v in row] for row in values]


# --- from a folder ------------------------------------------------------------------------------------------------


class Rebuilder:
    """Builds plans from configurations, reading each division of the data once."""

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


def changed(run: StoredRun, plan: Plan) -> bool:
    """Whether the data or label vectors here are others than the run's; one whose checkpoint is gone is believed."""
    stored = RunFolder(run.folder).fingerprint
    return stored is not None and stored != experiment.fingerprint(plan)


def weights_of(run: StoredRun) -> tuple[int, Arrays]:
    """(round, weights) of a run: the final model, or the newest checkpoint of an unfinished one."""
    path = run.folder / "model.safetensors"
    if run.finished and path.is_file():
        try:
            return (run.records[-1]["round"] if run.records else 0), load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"model.safetensors cannot be read ({error})") from error
    newest = RunFolder(run.folder).newest()
    if newest is None:
        raise UserError("there is neither a model nor an intact checkpoint")
    return newest.round, newest.weights


def outdated(facts: dict[str, Any]) -> bool:
    """Whether pairs of classes were counted without what they are a share of, though not every label was known."""
    together, size = facts.get("together"), len(facts.get("label_names") or ())
    return isinstance(together, dict) and first_of(together, "truth", size) is None


def complete(run: StoredRun, rebuilder: Rebuilder, say: Callable[[str], None] = lambda message: None) -> None:
    """Fills in what facts.json lacks by building data and model again; what cannot be had goes to `missing`."""
    if run.alone.get("left_out"):
        run.missing.append(f"{CHANGED}, so no party was trained alone on them")
    done = run.records[-1]["round"] if run.records else 0
    current = run.facts.get("format") == FORMAT and not outdated(run.facts)
    if current and run.facts.get("round") == done and (done or "parties" in run.facts):
        return
    without = "so parties, confusion and similarity of classes are not shown"
    if run.config is None:
        run.missing.append(f"without a configuration the model cannot be rebuilt, {without}")
        run.facts = {}
        return
    say(f"measuring the model of {run.folder}")
    try:
        plan = rebuilder.plan(run.config)
        if changed(run, plan):
            raise UserError(CHANGED)
        run.facts = about(plan)
        number, weights = weights_of(run)
        run.facts = measured(plan, weights, number)
    except UserError as error:
        run.missing.append(
            f"{error}, {without}" if not run.facts.get("parties") else f"{error}, so the final model is not measured"
        )
        return
    except (RuntimeError, KeyError) as error:  # weights of another shape
        reason = str(error).splitlines()[0]
        run.missing.append(f"the stored weights do not fit this configuration ({reason}), so the model is not measured")
        return
    with suppress(OSError):  # a read-only folder is measured each time
        write(run.folder, run.facts)
